// @ts-check
// One entity: its thread of turns, oldest first, what hangs from them, and the turn that runs, as it grows.

import { attachButton } from "./attach.js";
import {
  ago,
  asText,
  button,
  code,
  day,
  details,
  fact,
  h,
  linkTo,
  money,
  more,
  number,
  onEnter,
  picture,
  pill,
  plain,
  plural,
  setAttr,
  setText,
  short,
  sign,
  span,
  standing,
  standingOf,
  time,
  values,
  write,
} from "./dom.js";
import { prose } from "./markdown.js";
import { title } from "./model.js";
import { askPerson, nameOf } from "./request.js";

const PAGE = 100; // events that are read at once
const MOST = 600; // events that are kept while it follows the newest
const FEW = 50; // messages of a history that are shown at once
const BOOK = 2000; // events that are printed

export const order = (id) => {
  const [number, part] = id.split(".");
  return Number(number) * 10 + Number(part ?? 0);
};

const momentOf = ({ data }) =>
  Date.parse(data.metadata?.timestamp ?? data.began ?? data.asked_at ?? data.at ?? "") || 0;

export class Timeline {
  node;
  model;
  source;
  can;
  act;
  #events = new Map(); // id -> node
  #keys = []; // ids in order
  #earlier = 0;
  #later = 0; // events that follow those shown: a link led to a turn before the newest
  #liveNodes = new Map();
  #kin = new Map(); // turn id -> the node that lists what hangs from it
  #top = 0; // where the reader was
  #turn = null; // the turn of the address
  #requests = new Map(); // event id -> the event of a request
  #undone = []; // the turns of each undo, from the first to the last
  id = null;

  constructor(node, model, source, { can, act }) {
    Object.assign(this, { node, model, source, can, act });
    this.header = h("header", { class: "entity" });
    this.factList = h("dl", { class: "facts" });
    this.more = button({ class: "more", hidden: true, onclick: () => this.#try(() => this.#loadEarlier()) });
    this.rest = button({ class: "more", hidden: true, onclick: () => this.#try(() => this.#loadLater()) });
    this.problem = h("p", { class: "error", role: "alert" });
    this.list = h("ol", { class: "thread", "aria-label": "Turns" });
    this.liveBox = h("div", { class: "live", hidden: true, "aria-label": "The running turn" });
    this.body = h("div", { class: "body" }, this.problem, this.more, this.list, this.rest, this.liveBox);
    this.body.addEventListener(
      "scroll",
      () => {
        // only a person scrolls up: what is added below moves the end, and not the reader
        const { scrollTop, scrollHeight, clientHeight } = this.body;
        if (scrollHeight - scrollTop - clientHeight < 60) this.isAtEnd = true;
        else if (scrollTop < this.#top) this.isAtEnd = false;
        this.#top = scrollTop;
      },
      { passive: true },
    );
    this.composer = h("div", { class: "composer" });
    this.node.dataset.view = "turns";
    this.isAtEnd = true;
  }

  // The chat has what people and the entity say; everything else is hidden by the stylesheet.
  toggleChat() {
    const isChat = this.node.dataset.view !== "chat";
    this.node.dataset.view = isChat ? "chat" : "turns";
    setAttr(this.header.querySelector('[data-do="chat"]'), "aria-pressed", String(isChat));
    this.#follow();
  }

  // Open all calls, or close them if all are open.
  toggleCalls() {
    const calls = [...this.list.querySelectorAll("details.call")],
      isOpen = calls.every((one) => one.open);
    for (const one of calls) one.open = !isOpen;
  }
  // Print the whole entity, up to the length of a book, with its images.
  async print() {
    this.isAtEnd = false;
    await this.#try(async () => {
      while (this.#earlier && this.#keys.length < BOOK) await this.#loadEarlier();
      while (this.#later && this.#keys.length < BOOK) await this.#loadLater();
    });
    for (const one of this.list.querySelectorAll("button.picture")) one.click();
    await Promise.all([...this.list.querySelectorAll("img")].map((one) => one.decode().catch(() => null)));
    window.print();
  }

  // ----------------------------------------------------------------------------------------------------------- loading

  async open(id, turn) {
    this.#turn = turn ?? null;
    if (this.id === id) {
      if (this.#turn && !this.#turnNode()) await this.#try(() => this.#loadAround());
      this.#toTurn();
      return;
    }
    this.id = id;
    this.#clear();
    this.#earlier = this.#later = 0;
    this.#liveNodes.clear();
    this.#undone = [];
    this.liveBox.replaceChildren();
    this.isAtEnd = true;
    this.facts = null;
    this.node.replaceChildren(this.header, this.body, this.composer);
    if (!this.model.entities.has(id)) {
      try {
        this.model.add(await this.source.entity(id));
      } catch (error) {
        this.header.replaceChildren(h("h1", null, "No such entity"), h("p", { class: "dim" }, plain(error.message)));
        this.composer.replaceChildren();
        return;
      }
    }
    this.#head();
    this.#compose();
    setText(this.problem, "");
    await this.#try(() => (this.#turn ? this.#loadAround() : this.reload()));
    this.#toTurn();
  }
  // What cannot be read is read again after the next snapshot; until then it is said why.
  async #try(work) {
    try {
      await work();
      setText(this.problem, "");
    } catch (error) {
      setText(this.problem, `Not all turns could be read: ${plain(error.message)}`);
    }
  }
  async reload() {
    const id = this.id;
    if (!id) return;
    const told = await this.#read();
    if (id !== this.id || this.#later) return; // a reader of earlier turns stays there
    const first = told.items[0];
    if (first && this.#keys.length && order(first.id) > order(this.#keys.at(-1))) this.#clear(); // a gap
    if (!this.#keys.length) this.#earlier = told.earlier;
    this.#take(told);
  }
  #take({ items }) {
    items.forEach((one) => this.add(one));
    this.#showEarlier();
    this.showLive();
  }
  #read(range = {}) {
    return this.source.story(this.id, { limit: PAGE, ...range });
  }
  async #loadAround() {
    const id = this.id,
      told = await this.#read({ turn: Number(this.#turn) });
    if (id !== this.id) return;
    this.#clear();
    this.isAtEnd = false;
    [this.#earlier, this.#later] = [told.earlier, told.later];
    this.#take(told);
  }
  async #loadLater() {
    const id = this.id,
      told = await this.#read({ after: this.#keys.at(-1) });
    if (id !== this.id) return;
    this.#later = told.later;
    this.#take(told);
  }
  #clear() {
    this.#events.clear();
    this.#requests.clear();
    this.#keys = [];
    this.#kin.clear();
    this.list.replaceChildren();
  }
  async #loadEarlier() {
    const id = this.id,
      top = this.list.firstElementChild,
      was = top?.getBoundingClientRect().top ?? 0;
    const told = await this.#read({ before: this.#keys[0] });
    if (id !== this.id) return;
    this.#earlier = told.earlier;
    this.#take(told);
    if (top) this.body.scrollTop += top.getBoundingClientRect().top - was;
  }
  #showEarlier() {
    this.more.hidden = !this.#earlier;
    setText(this.more, `Show earlier turns (${number(this.#earlier)} events)`);
    this.rest.hidden = !this.#later;
    setText(this.rest, `Show later turns (${number(this.#later)} events)`);
  }

  // ------------------------------------------------------------------------------------------------------------ events

  add(one) {
    if (this.#events.has(one.id)) return;
    const made = this.#make(one),
      when = momentOf(one);
    made.dataset.day = when ? day(when) : "";
    made.prepend(h("p", { class: "day" }, made.dataset.day));
    this.#events.set(one.id, made);
    let at = this.#keys.length;
    while (at > 0 && order(this.#keys[at - 1]) > order(one.id)) at--;
    this.list.insertBefore(made, this.#events.get(this.#keys[at]) ?? null);
    this.#keys.splice(at, 0, one.id);
    if (one.event === "request") this.#requests.set(one.id, one);
    this.#markDay(at);
    this.#markDay(at + 1);
    if (this.isAtEnd && this.#keys.length > MOST) {
      // a page that is open for days does not grow
      const old = this.#keys.shift(),
        node = this.#events.get(old),
        turn = node.querySelector("[data-turn]")?.dataset.turn;
      node.remove();
      this.#top = -Infinity; // the browser scrolls up by its height
      this.#events.delete(old);
      this.#kin.delete(turn);
      this.#markDay(0);
      this.#earlier++;
      this.#showEarlier();
    }
  }
  // A day is named above its first event.
  #markDay(at) {
    const node = this.#events.get(this.#keys[at]),
      before = this.#events.get(this.#keys[at - 1]);
    if (node) node.querySelector(".day").hidden = !node.dataset.day || node.dataset.day === before?.dataset.day;
  }
  follow(id, one) {
    if (id !== this.id) return;
    if (this.#later) {
      this.#later++;
      this.#showEarlier();
      return;
    }
    if (!one.id) one.id = `${Math.floor(Number(this.#keys.at(-1) ?? 0))}.5`; // not in the loom: after what is
    this.add(one);
    this.#follow();
  }
  #follow() {
    if (this.isAtEnd && !this.#turn)
      requestAnimationFrame(() => {
        this.body.scrollTop = this.body.scrollHeight;
      });
  }
  #turnNode() {
    return this.list.querySelector(`[data-sequence="${Number(this.#turn)}"]`);
  }
  #toTurn() {
    if (!this.#turn) return;
    const node = this.#turnNode();
    node?.focus({ preventScroll: true });
    node?.scrollIntoView({ block: "center" });
  }
  /** @param {{ id?: string, event: string, data: any }} event */
  #make({ event, data }) {
    const line = (shape, tone, text, more, at) =>
      h(
        "li",
        { class: `step ${tone}` },
        h("span", { class: "knot" }, sign(shape)),
        h("div", { class: "line" }, h("p", { class: "say" }, text, at ? time(Date.parse(at)) : ""), more ?? ""),
      );
    const by = (who, how) => {
      const sender = this.model.entities.get(who);
      return sender
        ? h("a", { class: "by", href: linkTo(who), dir: "auto" }, title(sender))
        : h("span", { class: "by", title: how }, who ? plain(who.replace(/^token:/, "")) : "its caller");
    };
    switch (event) {
      case "entity":
      case "intent":
        return h(
          "li",
          { class: "step said" },
          h("span", { class: "knot" }, sign("star")),
          h(
            "div",
            { class: "card said" },
            h(
              "p",
              { class: "say" },
              data.parent ? "intent of its parent" : ["intent of ", by(data.by)],
              time(Date.parse(data.began ?? data.at)),
            ),
            past(data.history),
            prose(String(data.intent ?? "")),
            (data.images ?? []).map(picture),
            data.context === undefined ? "" : details("result", "Context", code(asText(data.context))),
          ),
        );
      case "steer":
        return line(
          "bolt",
          "ask",
          ["steered by ", by(data.by)],
          [prose(data.text), (data.images ?? []).map(picture)],
          data.at,
        );
      case "request":
        return this.#request(data, line);
      case "decision":
        return line(
          data.decision === "deny" ? "cross" : "check",
          data.decision === "deny" ? "bad" : "good",
          [
            h(
              "b",
              null,
              { allow: "approved", deny: "denied", answer: "answered", error: "reported as failed" }[data.decision] ??
                plain(data.decision),
            ),
            " by ",
            by(data.by, data.decider),
          ],
          data.note ? write(h("p", { class: "note", dir: "auto" }), data.note) : "",
          data.at,
        );
      case "fold":
        return h(
          "li",
          { class: "step dim" },
          h("span", { class: "knot" }, sign("fold")),
          h(
            "details",
            { class: "line fold" },
            h(
              "summary",
              { class: "say" },
              `turns ${data.first} to ${data.last} are folded for the crystal`,
              time(Date.parse(data.at)),
            ),
            prose(data.marker),
          ),
        );
      case "adopt":
        return line(
          "again",
          "now",
          ["works from here on with cantrip ", write(h("code"), data.cantrip ?? data.cantrip_id)],
          "",
          data.at,
        );
      case "forget":
        return line(
          "ring",
          "dim",
          ["forgotten by ", by(data.by)],
          data.why ? write(h("p", { class: "note", dir: "auto" }), data.why) : "",
          data.at,
        );
      case "undo":
        return this.#undo(data, line, by);
      case "reward":
        return this.#reward(data, line, by);
      case "resume":
        return line("again", "now", ["resumed by ", by(data.by)], "", data.at);
      case "episode":
      case "end":
        return this.#end(event, data);
      default:
        return this.#turnCard(data);
    }
  }
  // A request that is open can be decided here, too; afterwards its arguments stay.
  #request(data, line) {
    const gate = () => write(h("code", null), data.gate),
      isQuestion = data.kind === "question";
    const heading = data.is_utterance
      ? `says to ${data.to ? plain(data.to) : "a person"}`
      : isQuestion
        ? "asks a person"
        : data.kind === "deferred"
          ? ["waits for the result of ", gate()]
          : ["asks before ", gate()];
    if (!this.model.requests.has(data.id))
      return line(
        "hand",
        "ask",
        heading,
        [data.text ? write(h("p", { class: "dim", dir: "auto" }), data.text) : "", isQuestion ? "" : values(data.args)],
        data.asked_at,
      );
    const card = h(
      "article",
      { class: "card ask", tabindex: "-1", "aria-label": nameOf(data) },
      h(
        "p",
        { class: "say" },
        data.kind === "approval" ? "asks a person first" : heading,
        time(Date.parse(data.asked_at)),
      ),
    );
    askPerson(card, data, this);
    return h(
      "li",
      { class: "step ask open", "data-request": data.id },
      h("span", { class: "knot" }, sign("hand")),
      card,
    );
  }
  #settle() {
    // requests that were decided, or came to be known as open, since their event was shown
    for (const [id, { data }] of this.#requests) {
      const node = this.#events.get(id);
      if (!node) this.#requests.delete(id);
      else if (node.classList.contains("open") !== this.model.requests.has(data.id)) {
        const hadFocus = node.contains(document.activeElement),
          next = this.#make({ id, event: "request", data });
        next.dataset.day = node.dataset.day;
        next.prepend(node.querySelector(".day"));
        node.replaceWith(next);
        this.#events.set(id, next);
        if (hadFocus) this.node.focus();
      }
    }
  }
  #undo(data, line, by) {
    this.#undone.push(data);
    for (const card of this.list.querySelectorAll("[data-sequence]"))
      if (this.#isUndone(Number(card.dataset.sequence))) {
        card.classList.add("undone");
        setText(card.querySelector(".flag-undone"), "undone");
      }
    const turns =
      data.last < data.first
        ? "an intent"
        : data.last === data.first
          ? `turn ${data.first}`
          : `turns ${data.first} to ${data.last}`;
    return line("again", "warn", [`${turns} undone by `, by(data.by)], "", data.at);
  }
  #isUndone(sequence) {
    return this.#undone.some((range) => sequence >= range.first && sequence <= range.last);
  }
  #reward(data, line, by) {
    const card = this.list.querySelector(`[data-turn="${CSS.escape(data.turn_id)}"]`);
    if (card) setText(card.querySelector(".reward"), `★ ${data.reward}`);
    return line(
      "star",
      "good",
      [
        "rewarded ",
        card
          ? h("a", { href: card.querySelector(".no").getAttribute("href") }, `turn ${card.dataset.sequence}`)
          : "a turn",
        " with ",
        h("b", null, String(data.reward)),
        " by ",
        by(data.by),
      ],
      "",
      data.at,
    );
  }
  #end(event, data) {
    const [shape, word, tone] = standing(data.state),
      isText = typeof data.result === "string";
    const isRepeated =
      isText && this.list.querySelector(`[data-turn="${CSS.escape(data.last_turn ?? "")}"]`)?.said === data.result;
    const what = data.error ?? data.summary ?? (data.ward ? `ward: ${data.ward}` : "");
    return h(
      "li",
      { class: `step ${tone} ending` },
      h("span", { class: "knot" }, sign(shape)),
      h(
        "div",
        { class: "line" },
        h(
          "p",
          { class: "say" },
          h("b", null, event === "end" ? `Ended: ${word}` : `Episode: ${word}`),
          data.by ? [" by ", h("span", { class: "by" }, plain(data.by.replace(/^token:/, "")))] : "",
          h("span", { class: "dim" }, ` ${number(data.usage.total_tokens)} tokens ${money(data.usage.cost)}`),
          data.at ? time(Date.parse(data.at)) : "",
        ),
        what ? write(h("p", { class: "note", dir: "auto" }), String(what)) : "",
        data.result !== null && data.result !== undefined && data.state === "terminated"
          ? h(
              "details",
              { class: `result${isRepeated ? " repeated" : ""}`, open: !isRepeated },
              h("summary", null, "Result"),
              isText ? prose(data.result) : code(asText(data.result)),
            )
          : "",
      ),
    );
  }
  #turnCard(turn) {
    this.model.own(turn.id, turn.entity_id);
    const served = (turn.server_calls ?? []).map((one) => ({
        ...one,
        gate: one.name || one.tool,
        hint: "run by the provider",
      })),
      open = (turn.open_calls ?? []).map((one) => ({ ...one, hint: "no result" }));
    const calls = [...served, ...turn.gate_calls.filter((one) => one.gate !== "done" || one.is_error), ...open],
      failed = turn.gate_calls.some((one) => one.is_error);
    const program = turn.code ? calls.find((one) => one.tool_call_id === null) : null;
    const {
        tokens_prompt: read,
        tokens_completion: written,
        tokens_cached: cached,
        duration_ms: lasted,
        cost,
        timestamp,
      } = turn.metadata,
      goesOn = turn.continues;
    const undone = this.#isUndone(turn.sequence); // an earlier page of the story comes after the undo
    const kin = h("div", { class: "kinbox" });
    this.#kin.set(turn.id, kin);
    this.#hang(turn.id, kin);
    const quiet = (shape, word, work) =>
      button(
        { class: "quiet", "aria-label": word, onclick: () => work(turn) },
        sign(shape),
        h("span", { class: "word" }, word),
      );
    const card = h(
      "article",
      {
        class: `card turn${failed ? " failed" : ""}${undone ? " undone" : ""}`,
        tabindex: "-1",
        "data-sequence": String(turn.sequence),
        "data-turn": turn.id,
        "aria-label": `Turn ${turn.sequence}`,
      },
      h(
        "p",
        { class: "say" },
        h("a", { class: "no", href: linkTo(turn.entity_id, turn.sequence) }, `Turn ${turn.sequence}`),
        goesOn ? h("span", { class: "dim" }, `answers of turn ${turn.sequence - 1}`) : "",
        turn.truncated ? pill(standing("truncated")) : "",
        h("span", { class: "flag-undone dim" }, undone ? "undone" : ""),
        h(
          "span",
          { class: "reward good" },
          turn.reward === null || turn.reward === undefined ? "" : `★ ${turn.reward}`,
        ),
        h("span", { class: "grow" }),
        h(
          "span",
          {
            class: "used dim",
            title: `${number(read)} tokens in, ${number(cached ?? 0)} of them cached, ${number(written)} out`,
          },
          [
            read + written ? `${number(read + written)} tok` : "",
            money(cost),
            lasted === null ? "" : span(lasted / 1000),
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        timestamp ? time(Date.parse(timestamp)) : "",
        this.can("reward") ? quiet("star", "Reward", this.act.reward) : "",
        this.can("cast") ? quiet("fork", "Fork", this.act.fork) : "",
      ),
      turn.thinking && !goesOn ? details("thinks", "Thinking", prose(turn.thinking)) : "",
      turn.content && !goesOn ? prose(turn.content) : "",
      turn.code && !program ? code(turn.code) : "",
      calls.map((one) => this.#call(one, one === program ? turn.code : null)),
      (turn.images ?? []).map(picture),
      kin,
    );
    card.said = turn.content;
    if (this.can("inputs") && !goesOn) card.append(this.#input(turn));
    return h(
      "li",
      { class: `step turn ${failed ? "bad" : ""}` },
      h("span", { class: "knot" }, sign(failed ? "cross" : "dot")),
      card,
    );
  }
  // What the model was given: read when a person opens it, since it may be long.
  #input(turn) {
    const box = h("div", null, h("p", { class: "dim" }, "reading …"));
    const node = details("thinks input", "Input of the model", box);
    node.addEventListener("toggle", async () => {
      if (!node.open || node.dataset.read) return;
      node.dataset.read = "yes";
      try {
        box.replaceChildren(...this.#renderInput(await this.source.input(turn.id)));
      } catch (error) {
        delete node.dataset.read;
        box.replaceChildren(h("p", { class: "error" }, plain(error.message)));
      }
    });
    return node;
  }
  #renderInput(input) {
    const folded = input.folded_turns.length;
    return [
      input.is_exact
        ? ""
        : h(
            "p",
            { class: "dim" },
            "This process does not know the cantrip of that turn: ",
            "descriptions of functions, and bounds on long results, may be missing.",
          ),
      folded
        ? h(
            "p",
            { class: "dim" },
            `${plural(folded, "earlier turn was", "earlier turns were")} folded: the marker below stands for them.`,
          )
        : "",
      ...input.messages.map((one) => message(one)),
      details(
        "thinks",
        `${plural(input.tools.length, "gate")} and the settings`,
        ...code(asText({ crystal: input.crystal, settings: input.settings, gates: input.tools })),
      ),
    ].filter(Boolean);
  }
  #call(one, program) {
    const result = one.result === null || one.result === undefined ? "" : asText(one.result);
    const took = [
      one.hint,
      one.attempts ? `${one.attempts} attempts` : "",
      one.ephemeral ? "ephemeral" : "",
      one.duration_ms ? span(one.duration_ms / 1000) : "",
    ]
      .filter(Boolean)
      .join(" · ");
    const brief = program
      ? plain(program).slice(0, 90)
      : plain(
          Object.entries(one.args ?? {})
            .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
            .join(", "),
        ).slice(0, 90);
    return h(
      "details",
      { class: `call${one.is_error ? " bad" : ""}`, open: one.is_error },
      h(
        "summary",
        null,
        sign("twist"),
        write(h("code", { class: "gate" }), one.gate),
        h("span", { class: "brief", dir: "auto" }, brief),
        one.is_error
          ? h("span", { class: "flag" }, "error")
          : h(
              "span",
              { class: "brief to", dir: "auto" },
              result ? `→ ${plain(result).slice(0, 60)}` : (one.hint ?? ""),
            ),
      ),
      took ? h("p", { class: "dim took" }, took) : "",
      program
        ? [h("h4", null, "Program"), ...code(program)]
        : Object.keys(one.args ?? {}).length
          ? [h("h4", null, "Arguments"), ...values(one.args)]
          : "",
      result ? [h("h4", null, one.is_error ? "Error" : "Result"), ...code(result)] : "",
      (one.images ?? []).map(picture),
    );
  }
  #hang(turnId, box) {
    const found = (this.model.below.get(this.id) ?? [])
      .map((id) => this.model.entities.get(id))
      .filter((one) => one?.parent_turn === turnId);
    const told = found.map((one) => `${one.id}${one.state}${one.over}`).join();
    if (box.dataset.told === told) return;
    box.dataset.told = told;
    box.replaceChildren(
      ...found.map((one) => {
        const [shape, word, tone] = standingOf(one);
        return h(
          "a",
          { class: `kin ${tone}`, href: linkTo(one.id) },
          sign(one.forked ? "fork" : "child"),
          h("b", { dir: "auto" }, title(one)),
          h("span", { class: "intent", dir: "auto" }, plain(one.intent ?? "").slice(0, 80)),
          h("span", { class: `pill ${tone}` }, sign(shape), word),
        );
      }),
    );
  }

  // -------------------------------------------------------------------------------------------------- the running turn

  showLive() {
    const items = this.model.live.get(this.id);
    this.liveBox.hidden = !items?.size || this.#later > 0;
    for (const [key, node] of this.#liveNodes)
      if (!items?.has(key)) {
        node.remove();
        this.#liveNodes.delete(key);
      }
    for (const [key, one] of items ?? []) {
      let node = this.#liveNodes.get(key);
      if (!node) {
        node = h(
          "div",
          { class: `item ${one.type}` },
          h(
            "p",
            { class: "say" },
            sign(one.type === "tool_call" ? "bolt" : one.type === "thinking" ? "ring" : "star"),
            h("span", { class: "label" }),
          ),
          h("div", { class: "text", dir: "auto" }),
        );
        this.#liveNodes.set(key, node);
        this.liveBox.append(node);
      }
      const said =
        one.type === "tool_call"
          ? [Object.keys(one.toolArguments ?? {}).length ? asText(one.toolArguments) : "", one.toolOutput ?? ""]
              .filter(Boolean)
              .join("\n→ ")
          : String(one.content ?? one.label ?? "");
      setText(
        node.querySelector(".label"),
        one.type === "tool_call" ? plain(one.toolName) : one.type === "thinking" ? "thinks" : "says",
      );
      const text = node.querySelector(".text");
      if (text.said !== said) {
        text.said = said;
        text.replaceChildren();
        write(text, said.slice(-8000));
      }
    }
    this.#follow();
  }
  show(model) {
    if (!this.id) return;
    const entity = model.entities.get(this.id);
    this.#settle();
    if (model.dirty.has(this.id)) {
      this.#head();
      this.#compose();
      this.showLive();
    }
    const below = (model.below.get(this.id) ?? []).filter((id) => model.dirty.has(id) || model.dirty.has(this.id));
    for (const turn of new Set(below.map((id) => model.entities.get(id)?.parent_turn)))
      if (this.#kin.has(turn)) this.#hang(turn, this.#kin.get(turn));
    if (entity) setText(this.ageNode ?? h("span"), entity.over ? "" : ago(entity.at));
  }

  // ------------------------------------------------------------------------------------------------------------ header

  #head() {
    const one = this.model.entities.get(this.id);
    if (!one) return;
    const can = this.can,
      stands = standingOf(one),
      running = !one.interrupted && (one.state === "active" || one.state === "waiting");
    this.#drawFacts(one);
    const told = [one.id, stands[1], one.over, one.above].join();
    if (this.facts === told) return; // buttons stay under a pointer while turns come
    this.facts = told;
    // an unknown parent is read when a person follows the link
    const path = one.above && !this.model.entities.has(one.above) ? [{ id: one.above, name: short(one.above) }] : [];
    for (let up = this.model.entities.get(one.above); up && path.length < 6; up = this.model.entities.get(up.above))
      path.unshift(up);
    /** @type {any} */
    const active = document.activeElement;
    const focused = this.header.contains(active) ? active.dataset.do : null;
    const action = (name, word, shape, work, tone = "") =>
      button({ class: tone, "data-do": name, onclick: work }, sign(shape), word);
    this.header.replaceChildren(
      path.length
        ? h(
            "nav",
            { class: "crumbs", "aria-label": "Above" },
            path.map((up) => [
              h("a", { href: linkTo(up.id), dir: "auto" }, title(up)),
              h(
                "span",
                { "aria-hidden": "true" },
                one.forked && up.id === one.above ? [" ", sign("fork"), " "] : " / ",
              ),
            ]),
          )
        : "",
      h(
        "div",
        { class: "titles" },
        h("h1", { dir: "auto" }, title(one)),
        pill(stands),
        h(
          "span",
          { class: "acts" },
          button(
            {
              class: "plain",
              "data-do": "chat",
              "aria-pressed": String(this.node.dataset.view === "chat"),
              onclick: () => this.toggleChat(),
            },
            sign("chat"),
            "Chat",
          ),
          this.act.spending && action("spending", "Spending", "bars", () => this.act.spending(one), "plain"),
          can("steer") &&
            running &&
            !one.over &&
            action("interrupt", "Interrupt", "pause", () => this.act.interrupt(one)),
          can("stop") && one.interrupted && action("resume", "Resume", "again", () => this.act.resume(one), "main"),
          can("stop") &&
            one.interrupted &&
            action("abandon", "Abandon", "cross", () => this.act.abandon(one), "danger"),
          can("stop") &&
            !one.over &&
            !one.interrupted &&
            action("stop", "Stop", "stop", () => this.act.stop(one), "danger"),
        ),
      ),
      this.factList,
      one.about ? about(one.about) : "",
    );
    if (focused) this.header.querySelector(`[data-do="${focused}"]`)?.focus();
  }
  #drawFacts(one) {
    const told = [one.id, one.over, one.turns, one.tokens, one.cost].join();
    if (this.factList.dataset.told === told) return;
    this.factList.dataset.told = told;
    this.ageNode = h("dd", null, ago(one.at));
    this.factList.replaceChildren(
      ...[
        fact("cantrip", plain(one.cantrip ?? "")),
        fact("crystal", plain(one.crystal ?? "")),
        fact("turns", one.turns ? number(one.turns) : ""),
        fact("tokens", one.tokens ? number(one.tokens) : ""),
        fact("cost", money(one.cost)),
        fact("began", time(one.at)),
        one.over ? "" : h("div", null, h("dt", null, "age"), this.ageNode),
        fact("id", short(one.id)),
      ].filter(Boolean),
    );
  }
  #compose() {
    const one = this.model.entities.get(this.id),
      can = this.can;
    if (!one) return;
    const running = one.state === "active" && !one.over && !one.interrupted;
    const modes = [
      one.lasting && !one.over && can("send") && ["send", running ? "Send next" : "Send", "Say something to it"],
      running && can("steer") && ["steer", "Steer", "Put a message before its next query"],
    ].filter(Boolean);
    const told = modes.map(([, word]) => word).join() + one.id;
    if (this.composer.dataset.told === told) return;
    this.composer.dataset.told = told;
    const kept = this.box?.isConnected && this.boxOf === one.id ? this.box.value : "",
      hadFocus = this.composer.contains(document.activeElement);
    this.composer.replaceChildren();
    if (!modes.length) {
      if (hadFocus) this.node.focus();
      return;
    }
    this.boxOf = one.id;
    this.box = h("textarea", {
      rows: "1",
      "aria-label": "Message",
      placeholder: modes.map(([, , hint]) => hint).at(-1),
    });
    this.box.value = kept;
    const error = h("p", { class: "error", role: "alert", hidden: true }),
      chosen = modes[0][0] === "send" ? attachButton() : null;
    const send = async (mode) => {
      const text = this.box.value.trim();
      if (!text) {
        this.box.focus();
        return;
      }
      try {
        await this.act[mode](one, text, mode === "send" ? chosen?.files() : undefined);
        error.hidden = true;
        this.box.value = "";
        if (mode === "send") chosen?.clear();
      } catch (problem) {
        error.hidden = false;
        setText(error, problem.message);
      }
    };
    const first = modes.at(-1)[0];
    onEnter(this.box, () => send(first));
    this.composer.append(
      h(
        "div",
        { class: "bar" },
        this.box,
        chosen?.node,
        modes.map(([mode, word]) => button({ class: mode === first ? "main" : "", onclick: () => send(mode) }, word)),
      ),
      error,
    );
    if (hadFocus) this.box.focus();
  }
  focusComposer() {
    this.box?.isConnected ? this.box.focus() : this.node.focus();
  }
  turnNodes() {
    return [...this.list.querySelectorAll("article.turn")];
  }
}

// A message of the context that a model got: as it was sent, or as a person reads it.
const message = (one, show = code) =>
  h(
    "section",
    { class: "given", "aria-label": one.role },
    h("h4", null, one.gate ? `result of ${plain(one.gate)}` : one.role, one.is_error ? " (error)" : ""),
    one.thinking ? prose(one.thinking) : "",
    one.content ? show(one.content) : "",
    (one.images ?? []).map(picture),
    (one.tool_calls ?? []).map((call) => [
      h("h4", null, "calls ", write(h("code"), call.gate)),
      ...(typeof call.args === "string" ? code(call.args) : values(call.args)),
    ]),
  );
// The messages before an intent: the newest few, and the others after a click.
const past = (history) => {
  if (!history?.length) return "";
  const read = (one) => message(one, one.role === "tool" ? code : prose);
  const box = h("div", null, history.slice(-FEW).map(read)),
    rest = history.slice(0, -FEW);
  const word = plural(history.length, "message");
  return details(
    "history",
    `${word} before it`,
    rest.length ? more(`Show all ${word}`, () => box.prepend(...rest.map(read))) : "",
    box,
  );
};
// What an entity was made with, in a file that has it.
const about = ({ system, circle }) =>
  details(
    "history",
    "Call, gates and wards",
    system ? [h("h4", null, "System prompt"), ...code(system)] : "",
    h("h4", null, "Circle and settings"),
    code(asText(circle)),
  );
