// @ts-check
// What is known of entities, requests and actors: the fold of snapshots and events. No node of the page is touched
// here.
// Who shows something subscribes to `changed`, which is called once for each animation frame, however much has come.

import { plain } from "./dom.js";

const MINUTE = 60;
const REMEMBERED = 20000; // turns of which it is known whose they are

export class Model {
  entities = new Map();
  below = new Map(); // entity id -> ids of its children and forks, oldest first
  roots = [];
  owner = new Map(); // turn id -> entity id
  live = new Map(); // entity id -> Map of item id -> the newest upsert of its running turn
  requests = new Map();
  actors = new Map();
  crashes = [];
  crystals = []; // those that take no queries now
  gates = new Set(); // those that were called
  limits = new Map(); // name of a cantrip -> what its wards allow
  dirty = new Set(); // entities to show again
  dirtyActors = new Set();
  shape = 1; // counts changes of the tree of entities
  actorShape = 1;
  turnRate = Array(MINUTE).fill(0); // a number for each of the last 60 seconds
  tokenRate = Array(MINUTE).fill(0);
  restartRate = Array(MINUTE).fill(0); // for each of the last 60 minutes
  costToday = 0;
  heard = 0; // events so far: an answer to a request sent before an event does not undo the event
  #ticks = 0;
  onStory = (_id, _event) => {};
  onRequest = (_request) => {};
  changed = [];
  #frame = 0;

  touch(id) {
    if (id) this.dirty.add(id);
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      for (const show of this.changed) show(this);
      this.dirty.clear();
      this.dirtyActors.clear();
    });
  }
  tick() {
    const isMinute = ++this.#ticks % MINUTE === 0;
    for (const rate of [this.turnRate, this.tokenRate, ...(isMinute ? [this.restartRate] : [])]) {
      rate.shift();
      rate.push(0);
    }
    this.touch();
  }

  // ---------------------------------------------------------------------------------------------------------- entities

  add(shape, since = Infinity) {
    const known = this.entities.get(shape.id);
    if (known?.heard > since) return known;
    const entity = known ?? { tokens: 0, cost: 0, turns: 0, errors: 0, say: "" };
    Object.assign(entity, shape);
    entity.at ??= Date.parse(entity.began);
    entity.gates = new Set(shape.gates ?? entity.gates);
    entity.gates.forEach((gate) => this.gates.add(gate));
    if (shape.usage) {
      entity.tokens = shape.usage.total_tokens;
      entity.cost = shape.usage.cost;
    }
    if (!known) {
      this.entities.set(entity.id, entity);
      this.place(entity);
    }
    this.touch(entity.id);
    return entity;
  }
  place(entity) {
    const above = entity.origin ?? entity.parent ?? (entity.forked ? this.owner.get(entity.parent_turn) : null);
    entity.above = above && above !== entity.id ? above : null;
    if (entity.above) {
      if (!this.below.has(entity.above)) this.below.set(entity.above, []);
      insert(this.below.get(entity.above), entity, this.entities, 1);
    }
    if (!entity.above || !this.entities.has(entity.above)) insert(this.roots, entity, this.entities, -1);
    for (const id of this.below.get(entity.id) ?? []) {
      // what came before the entity that it hangs from
      const at = this.roots.indexOf(id);
      if (at >= 0) this.roots.splice(at, 1);
    }
    this.shape++;
  }
  unfinishedBelow(id) {
    let count = 0;
    for (const child of this.below.get(id) ?? []) {
      const one = this.entities.get(child);
      if (one && !one.forked && !one.over) count += 1 + this.unfinishedBelow(child);
    }
    return count;
  }
  setLimits(cantrips) {
    for (const one of cantrips) {
      const found = one.wards
        .map((ward) => /^(?:max_)?(turns|tokens|cost|timeout)\(([\d.]+)\)$/.exec(ward))
        .filter(Boolean);
      this.limits.set(
        one.name,
        found.map(([, what, most]) => [what, Number(most)]),
      );
    }
  }
  // The limit of which an entity has used more than four fifths: [what, used, most].
  nearLimit(one) {
    if (one.over || one.state !== "active") return null;
    for (const [what, most] of this.limits.get(one.cantrip) ?? []) {
      const used = what !== "timeout" ? one[what] : one.lasting ? 0 : (Date.now() - one.at) / 1000;
      if (used > most * 0.8) return [what, used, most];
    }
    return null;
  }
  own(turn, entity) {
    this.owner.set(turn, entity);
    if (this.owner.size > REMEMBERED) this.owner.delete(this.owner.keys().next().value);
  }
  set(id, values) {
    const entity = this.entities.get(id);
    if (!entity) return;
    Object.assign(entity, values);
    this.touch(id);
  }

  // ------------------------------------------------------------------------------------------------------------ events

  snapshot(data) {
    const there = new Set(data.entities.map((one) => one.id));
    const lost = [...this.entities.values()].filter((one) => !one.over && !there.has(one.id)).map((one) => one.id);
    data.entities.forEach((one) => {
      this.add(one).isQuiet = false;
    });
    this.live.clear();
    data.items.forEach((one) => this.upsert(one));
    for (const { id, state } of data.entities) {
      // tokens of an utterance count before its turn is committed
      const calls = [...(this.live.get(id)?.values() ?? [])].some((one) => one.type === "tool_call");
      this.entities.get(id).isCounted = state === "waiting" || calls;
    }
    if (data.actors) {
      this.actors.clear();
      this.crashes = data.actors.crashes;
      if (!this.#ticks)
        for (const one of this.crashes) {
          // restarts of the last hour, from before this page
          const minute = MINUTE - 1 - Math.floor((Date.now() / 1000 - one.at) / 60);
          if (minute in this.restartRate && one.what === "crashed" && one.restart !== "temporary")
            this.restartRate[minute]++;
        }
      this.setActors({ rows: data.actors.rows, gone: [], crashes: [], crystals: data.actors.crystals });
      this.actorShape++;
    }
    this.shape++;
    return lost;
  }
  setRequests(items, since) {
    const isNewer = (one) => this.entities.get(one.entity)?.asked > since;
    this.requests = new Map(
      [...items.filter((one) => !isNewer(one)), ...[...this.requests.values()].filter(isNewer)].map((one) => [
        one.id,
        one,
      ]),
    );
    this.touch();
  }
  take(kind, data, position) {
    const id = data.entity_id ?? data.entity ?? data.id;
    this.heard++;
    switch (kind) {
      case "entity":
        this.add({ ...data, state: "active", over: false });
        break;
      case "intent":
        this.set(id, { state: "active", isQuiet: false, interrupted: false, quarantine: null });
        break;
      case "resume":
        this.set(id, { isQuiet: false, interrupted: false, quarantine: null });
        break;
      case "turn":
        this.turn(data);
        break;
      case "request":
        this.requests.set(data.id, data);
        this.set(id, { state: "waiting" });
        this.onRequest(data);
        break;
      case "decision":
        this.requests.delete(data.id);
        this.set(id, { state: "active" });
        break;
      case "episode":
      case "end":
        this.costToday += Math.max(0, data.usage.cost - (this.entities.get(id)?.cost ?? 0));
        this.set(id, {
          state: kind === "end" ? data.state : "idle",
          over: kind === "end",
          interrupted: false,
          tokens: data.usage.total_tokens,
          cost: data.usage.cost,
          say: "",
          isQuiet: true,
        });
        this.live.delete(id);
        for (const [key, one] of this.requests) if (one.entity === id) this.requests.delete(key);
        break;
      case "forget":
        this.set(id, { state: "forgotten", over: true, say: "" });
        break;
      default:
        break;
    }
    this.set(id, {
      heard: this.heard,
      ...(["request", "decision", "episode", "end"].includes(kind) ? { asked: this.heard } : {}),
    });
    this.onStory(id, { id: position, event: kind, data });
  }
  turn(data) {
    const entity = this.entities.get(data.entity_id);
    this.own(data.id, data.entity_id);
    const items = this.live.get(data.entity_id);
    for (const [key, one] of items ?? []) if (one.turnId === data.id) items.delete(key);
    const used = data.metadata.tokens_prompt + data.metadata.tokens_completion;
    this.turnRate[MINUTE - 1]++;
    this.tokenRate[MINUTE - 1] += used;
    if (!entity) return;
    if (data.sequence > entity.turns)
      for (const { gate, is_error: failed } of data.gate_calls) {
        entity.gates.add(gate);
        this.gates.add(gate);
        entity.errors += failed;
      }
    this.set(entity.id, {
      turns: Math.max(entity.turns, data.sequence),
      interrupted: false,
      tokens: entity.tokens + (entity.isCounted ? 0 : used),
      isCounted: false,
      say: "",
    });
  }
  // Upserts come on another way than what is durable, so one of a turn that is committed may still come after it.
  upsert(item) {
    const id = item.sessionId;
    if (this.owner.has(item.turnId) || this.entities.get(id)?.isQuiet) return;
    if (!this.live.has(id)) this.live.set(id, new Map());
    const items = this.live.get(id);
    for (const [key, one] of items) if (one.turnId !== item.turnId) items.delete(key);
    if (item.status === "error") items.delete(item.itemId);
    else items.set(item.itemId, item);
    const entity = this.entities.get(id);
    if (!entity) return;
    entity.say = item.type === "tool_call" ? `${item.toolName}…` : String(item.content ?? "").slice(-120);
    this.touch(id);
  }

  // ------------------------------------------------------------------------------------------------------------ actors

  setActors({ rows, gone, crashes, crystals }) {
    this.crystals = crystals;
    for (const row of rows) {
      const known = this.actors.get(row.path);
      if (!known || !this.actors.size) this.actorShape++;
      if (known && row.restarts > known.restarts) {
        row.flash = Date.now();
        this.restartRate[MINUTE - 1] += row.restarts - known.restarts;
      }
      this.actors.set(row.path, row);
      this.dirtyActors.add(row.path);
    }
    for (const path of gone) {
      this.actors.delete(path);
      this.actorShape++;
    }
    for (const crash of crashes) this.crashes.push(crash);
    this.crashes.splice(0, this.crashes.length - 200);
    this.touch();
  }
}

// Keep a list of ids in the order of their beginnings; most come last (1), or first (-1), already.
function insert(list, entity, entities, order) {
  const key = (id) => entities.get(id)?.at ?? 0;
  let at = order === 1 ? list.length : 0;
  if (order === 1) while (at > 0 && key(list[at - 1]) > entity.at) at--;
  else while (at < list.length && key(list[at]) > entity.at) at++;
  if (list[at] !== entity.id && list[at - 1] !== entity.id) list.splice(at, 0, entity.id);
}

export const title = (entity) => plain(entity.name ?? entity.cantrip ?? (entity.parent ? "child" : "entity"));
