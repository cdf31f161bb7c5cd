// @ts-check
// The supervision tree as it stands: what runs, what waits in mailboxes, what was restarted and why.

import { api } from "./api.js";
import {
  ago,
  button,
  code,
  fact,
  h,
  number,
  pill,
  plain,
  plural,
  setAttr,
  setText,
  sign,
  standing,
  values,
  write,
} from "./dom.js";
import { title } from "./model.js";
import { Tree } from "./tree.js";

const FEW = 60; // rows up to which everything is open
const FLASH = 4000;

const parts = (path) => path.split("/");
export const entityOf = (path, model) => parts(path).findLast((part) => model.entities.has(part)) ?? null;

const badge = (tone, title, shape, count, word) =>
  h("span", { class: tone, title }, sign(shape), number(count), h("span", { class: "unseen" }, word));

// What a crash left: the reason, what its supervisor does, the traceback, and the actor's last events.
/** @param {{ reason: string, restart?: any, report?: string, events?: any[] }} crash */
export const crashReport = ({ reason, restart, report, events }) =>
  [
    h(
      "p",
      { class: "why" },
      write(h("span", { dir: "auto" }), String(reason ?? "").slice(0, 500)),
      restart ? h("span", { class: "dim" }, ` · restart: ${plain(restart)}`) : "",
    ),
    report ? code(report) : "",
    events?.length ? [h("h4", null, "Last events of the actor"), code(events.join("\n"))] : "",
  ]
    .flat(2)
    .filter(Boolean);

export class ActorsPane {
  #open = new Map(); // path -> whether somebody opened or closed it
  #shape = 0;
  #below = new Map();
  #idle = new Set(); // actors of idle entities, with what is below them: folded away
  #isIdleShown = false;
  #paths = new Map(); // entity id -> path of its actor
  #marked = null;

  constructor(node, model, { onSelect }) {
    this.model = model;
    this.onSelect = onSelect;
    this.detail = h("div", { class: "detail", hidden: true });
    this.tree = new Tree({
      label: "Supervision tree",
      rowHeight: 30,
      empty: "This token does not see the supervision tree.",
      make: (row) => this.#make(row),
      update: (row, path) => this.#update(row, path),
      onSelect: (path) => this.select(path),
      onToggle: (path) => {
        this.#open.set(path, !this.#isOpen(path));
        this.rebuild();
      },
    });
    this.count = h("span", { class: "count" });
    this.idle = button({
      class: "quiet",
      hidden: true,
      "aria-pressed": "false",
      onclick: () => {
        this.#isIdleShown = !this.#isIdleShown;
        this.rebuild();
      },
    });
    this.service = button({ class: "quiet", hidden: true, onclick: () => this.#service() }, "Service");
    node.append(
      h(
        "div",
        { class: "head" },
        h("h2", { id: "actors-title" }, "Supervision"),
        this.count,
        h("span", { class: "grow" }),
        this.idle,
        this.service,
      ),
      this.tree.box,
      this.detail,
    );
  }
  #isOpen(path) {
    const depth = parts(path).length;
    return (
      this.#open.get(path) ??
      (depth < 3 || this.model.actors.size <= FEW || (depth === 3 && path.endsWith("/entities")))
    );
  }
  rebuild() {
    const { model } = this,
      below = (this.#below = new Map()),
      rows = [];
    this.#paths.clear();
    for (const path of model.actors.keys()) {
      this.#paths.set(parts(path).at(-1), path);
      const above = path.slice(0, Math.max(0, path.lastIndexOf("/")));
      below.has(above) ? below.get(above).push(path) : below.set(above, [path]);
    }
    this.#idle = new Set([...model.actors.keys()].filter((path) => this.#isIdle(path)));
    const walk = (all, depth) => {
      const list = this.#isIdleShown ? all : all.filter((path) => !this.#idle.has(path));
      list.forEach((path, at) => walkOne(path, at, list.length, depth));
    };
    const walkOne = (path, at, setsize, depth) => {
      const children = below.get(path) ?? [],
        isOpen = this.#isOpen(path);
      rows.push({ id: path, depth, hasChildren: children.length > 0, isOpen, posinset: at + 1, setsize });
      if (children.length && isOpen) walk(children, depth + 1);
    };
    walk(below.get("") ?? [], 0);
    this.#shape = model.actorShape;
    this.tree.setRows(rows);
    this.service.hidden = !model.actors.size;
    this.idle.hidden = !this.#idle.size;
    setText(this.idle, `${number(this.#idle.size)} idle`);
    setAttr(this.idle, "aria-pressed", String(this.#isIdleShown));
    setAttr(
      this.idle,
      "aria-label",
      `${this.#isIdleShown ? "Fold away" : "Show"} ${plural(this.#idle.size, "idle actor")}`,
    );
    const loaded = new Set([...model.actors.keys()].map((path) => parts(path).at(-1)));
    const unloaded = loaded.size
      ? [...model.entities.values()].filter((one) => !one.over && !loaded.has(one.id)).length
      : 0;
    setText(
      this.count,
      model.actors.size
        ? `${number(model.actors.size)}${unloaded ? ` · ${plural(unloaded, "entity", "entities")} not loaded` : ""}`
        : "",
    );
  }
  // The actor of an entity that waits for its next intent, has never crashed and has no mail; the selected one stays.
  #isIdle(path) {
    const entity = this.model.entities.get(parts(path).at(-1)),
      row = this.model.actors.get(path);
    if (!entity || entity.id === this.#marked || !["idle", "terminated"].includes(entity.state) || entity.interrupted)
      return false;
    const isCalm = (one) => one.state === "up" && !one.restarts && !one.mailbox && !one.exit?.startsWith("crash");
    return (
      isCalm(row) &&
      [...this.#under(path)].every((below) => isCalm(below) && !this.model.entities.has(parts(below.path).at(-1)))
    );
  }
  // Whether an actor, or an entity's state, came to be idle or to work since the rows were made.
  #hasMoved(model) {
    for (const path of model.dirtyActors) if (this.#isIdle(path) !== this.#idle.has(path)) return true;
    for (const id of model.dirty) {
      const path = this.#paths.get(id);
      if (path && model.actors.has(path) && this.#isIdle(path) !== this.#idle.has(path)) return true;
    }
    return false;
  }
  show(model) {
    if (this.#shape !== model.actorShape || this.#hasMoved(model)) this.rebuild();
    else if (model.dirtyActors.size || model.dirty.size) {
      const dirty = new Set();
      for (const path of model.dirtyActors)
        for (let up = path; up; up = up.slice(0, Math.max(0, up.lastIndexOf("/")))) dirty.add(up);
      if (dirty.size) this.tree.draw(dirty);
    }
    if (this.shown && model.dirtyActors.has(this.shown)) this.#detail(this.shown);
  }
  // Select the actor of an entity, without opening anything.
  mark(entityId) {
    this.#marked = entityId;
    const path = entityId && [...this.model.actors.keys()].find((one) => one.endsWith(`/${entityId}`));
    if (this.model.actors.size) this.rebuild();
    this.tree.select(path ?? null);
  }
  select(path) {
    this.tree.select(path);
    this.#detail(path);
    const entity = entityOf(path, this.model);
    if (entity) this.onSelect(entity);
  }
  // The service as it stands: its loom, what waits, who reads, and what was counted.
  async #service() {
    const told = await api("GET", "system").catch(() => null);
    if (!told) return; // the bar says that the connection is lost
    const { loom, requests, streams, counters } = told;
    this.shown = null;
    this.detail.hidden = false;
    const counted = Object.entries(counters).flatMap(([name, series]) =>
      series.filter((one) => one.value).map(({ labels, value }) => [[name, ...Object.values(labels)].join(" "), value]),
    );
    this.#head(
      null,
      "Service",
      [
        ["loom", loom.url],
        ["durability", loom.durability],
        ["backlog", number(loom.backlog)],
        ["size", loom.size === null ? "not on this disk" : `${number(loom.size / 1e3)} kB`],
        ["open requests", number(requests)],
        [
          "readers",
          Object.entries(streams)
            .map(([name, count]) => `${name} ${count}`)
            .join(", "),
        ],
      ],
      [h("h3", null, "Counters"), ...values(Object.fromEntries(counted), 500)],
    );
  }
  #head(state, name, facts, ...more) {
    this.detail.replaceChildren(
      h(
        "div",
        { class: "top" },
        state ?? "",
        h("b", { dir: "auto" }, plain(name)),
        button(
          {
            class: "plain",
            "aria-label": "Close",
            onclick: () => {
              this.detail.hidden = true;
              this.shown = null;
              this.tree.focus();
            },
          },
          sign("cross"),
        ),
      ),
      h("dl", { class: "facts" }, ...facts.map(([name, value]) => fact(name, plain(value)))),
      ...more.flat(),
    );
  }
  async #detail(path) {
    const row = this.model.actors.get(path);
    this.shown = row ? path : null;
    this.detail.hidden = !row;
    if (!row) return;
    const facts = [
      ["kind", row.kind ?? "none"],
      ["up for", row.since ? ago(row.since * 1000) : "not running"],
      ["mailbox", number(row.mailbox)],
      ["in hand", number(row.in_hand)],
      ["restarts", number(row.restarts)],
      ["last exit", row.exit ?? "none"],
    ];
    const report = h("div", { class: "report" });
    this.#head(pill(standing(row.state)), this.#label(path), facts, report);
    const crash = this.model.crashes.findLast((one) => one.path === path);
    if (crash) report.append(h("h3", null, "Last crash"), ...crashReport(crash));
    else if (row.exit?.startsWith("crash")) {
      // from before this page and without telemetry
      const told = await api("GET", `system/actors/${path.split("/").map(encodeURIComponent).join("/")}`).catch(
        () => null,
      );
      if (told?.report && this.shown === path)
        report.append(h("h3", null, "Last crash"), ...crashReport({ reason: row.exit, report: told.report }));
    }
  }
  #label(path) {
    const last = parts(path).at(-1),
      entity = this.model.entities.get(last);
    return entity
      ? title(entity)
      : /^\d+$/.test(last)
        ? `crystal ${(this.#below.get(path.slice(0, path.lastIndexOf("/"))) ?? []).indexOf(path) + 1}`
        : last; // in the order of their first queries
  }
  #make(row) {
    row.parts = {
      sign: h("span", { class: "stand" }),
      name: h("span", { class: "name", dir: "auto" }),
      kind: h("span", { class: "kind" }),
      badges: h("span", { class: "badges" }),
    };
    row.append(row.parts.sign, row.parts.name, row.parts.kind, row.parts.badges);
  }
  #update(row, path) {
    const one = this.model.actors.get(path);
    if (!one) return;
    const [shape, word, tone] = standing(one.state),
      isCell = this.model.entities.has(parts(path).at(-1));
    if (row.shape !== shape + tone) {
      row.parts.sign.className = `stand ${tone}`;
      row.parts.sign.replaceChildren(sign(shape), h("span", { class: "unseen" }, word));
      row.shape = shape + tone;
    }
    setText(row.parts.name, plain(this.#label(path)));
    row.classList.toggle("cell", isCell);
    setText(row.parts.kind, isCell ? "" : (one.kind ?? ""));
    let { restarts, mailbox } = one,
      flash = one.flash ?? 0;
    if (row.getAttribute("aria-expanded") === "false")
      for (const below of this.#under(path)) {
        restarts += below.restarts;
        mailbox += below.mailbox;
        flash = Math.max(flash, below.flash ?? 0);
      }
    const told = `${restarts} ${mailbox} ${one.state}`;
    if (row.told !== told) {
      row.told = told;
      const badges = [
        mailbox && badge("badge", "messages that wait", "mail", mailbox, " waiting"),
        restarts && badge("badge warn", "restarts", "again", restarts, restarts === 1 ? " restart" : " restarts"),
        one.state !== "up" && h("span", { class: `badge ${tone}` }, word),
      ];
      row.parts.badges.replaceChildren(...badges.filter(Boolean));
    }
    if (Date.now() - flash < FLASH && row.flash !== flash) {
      row.flash = flash;
      row.classList.remove("flash");
      requestAnimationFrame(() => row.classList.add("flash"));
    }
  }
  *#under(path) {
    for (const child of this.#below.get(path) ?? []) {
      const row = this.model.actors.get(child);
      if (row) yield row;
      yield* this.#under(child);
    }
  }
}
