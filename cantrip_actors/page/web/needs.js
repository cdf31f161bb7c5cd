// @ts-check
// What needs a person: open requests, the oldest first; interrupted entities; limits nearly reached; crystals that
// pause; the newest crashes.

import {
  ago,
  button,
  details,
  h,
  linkTo,
  moment,
  money,
  number,
  pill,
  plain,
  setText,
  sign,
  span,
  standingOf,
  time,
} from "./dom.js";
import { crashReport, entityOf } from "./actors.js";
import { title } from "./model.js";
import { askPerson, nameOf } from "./request.js";

const retry = ({ until }) => (until ? `It is tried again at ${moment(1000 * until)}.` : "");

export class NeedsPane {
  model;
  can;
  act;
  onSelect;
  matches;
  #cards = new Map();
  #crashes = 0;

  constructor(node, model, { can, act, onSelect, matches }) {
    Object.assign(this, { model, can, act, onSelect, matches });
    this.count = h("span", { class: "count" });
    this.manyRequests = h("div", { class: "many", hidden: true });
    this.manyBroken = h("div", { class: "many", hidden: true });
    this.list = h("div", { class: "cards" });
    this.broken = h("div", { class: "cards" });
    this.near = h("div", { class: "cards" });
    this.held = h("div", { class: "cards" });
    this.log = h("ol", { class: "crashes" });
    this.logCount = h("span", { class: "count" });
    this.logBox = details("log", ["Crashes ", this.logCount], this.log);
    this.logBox.hidden = true;
    this.calm = h(
      "div",
      { class: "calm" },
      sign("check"),
      h("p", null, "Nothing needs you."),
      h("p", { class: "dim" }, "Approvals, questions and interrupted entities come here."),
    );
    node.append(
      h("div", { class: "head" }, h("h2", { id: "needs-title" }, "Needs you"), this.count),
      h("div", { class: "scroll" }, this.list, this.broken, this.held, this.near, this.calm, this.logBox),
      this.manyRequests,
      this.manyBroken,
    ); // below what scrolls, so that nothing moves under a pointer when they come
  }
  get open() {
    return [...this.model.requests.values()].sort((a, b) => (a.asked_at < b.asked_at ? -1 : 1));
  }
  get interrupted() {
    return [...this.model.entities.values()].filter((one) => one.interrupted);
  }
  // Those among them that the filter of the loom shows: actions on many are about these.
  get shownRequests() {
    return this.open.filter(
      (one) => one.kind === "approval" && this.matches(this.model.entities.get(one.entity) ?? one),
    );
  }
  get shownBroken() {
    return this.interrupted.filter((one) => this.matches(one));
  }
  #offerMany(box, items, actions) {
    box.hidden = items.length < 2;
    if (box.hidden || box.dataset.n === String(items.length)) return;
    box.dataset.n = String(items.length);
    box.replaceChildren(
      ...actions.map(([word, work]) =>
        button(
          { onclick: () => work(box === this.manyRequests ? this.shownRequests : this.shownBroken) },
          `${word} all ${items.length}`,
        ),
      ),
    );
  }
  show() {
    const open = this.open,
      broken = this.interrupted,
      { crystals } = this.model;
    const near = [...this.model.entities.values()].filter((one) => this.model.nearLimit(one)),
      sum = open.length + broken.length;
    setText(this.count, sum ? number(sum) : "");
    this.calm.hidden = sum + near.length + crystals.length > 0;
    this.#keep(
      this.held,
      crystals,
      (one) => `c:${one.name}:${one.breaker}:${one.until}`,
      (one) => this.#held(one),
    );
    this.#keep(
      this.near,
      near.slice(0, 20),
      (one) => `n:${one.id}`,
      (one) => this.#near(one),
    );
    for (const one of near.slice(0, 20)) this.#cards.get(`n:${one.id}`).tell(one);
    this.#keep(this.list, open, keyOf, (one) => this.#request(one));
    this.#keep(
      this.broken,
      broken,
      (one) => `i:${one.id}`,
      (one) => this.#broken(one),
    );
    for (const node of this.list.querySelectorAll("[data-at]")) setText(node, ago(Number(node.dataset.at)));
    this.#offerMany(this.manyRequests, this.can("approve") ? this.shownRequests : [], [
      ["Approve", (all) => this.act.decideAll(all, "allow")],
      ["Deny", (all) => this.act.decideAll(all, "deny")],
    ]);
    this.#offerMany(this.manyBroken, this.can("stop") ? this.shownBroken : [], [
      ["Resume", this.act.resumeAll],
      ["Abandon", this.act.abandonAll],
    ]);
    const { crashes } = this.model,
      last = crashes.at(-1)?.at ?? 0;
    if (this.#crashes !== last) {
      this.#crashes = last;
      this.logBox.hidden = !crashes.length;
      setText(this.logCount, number(crashes.length));
      this.log.replaceChildren(
        ...crashes
          .slice(-30)
          .reverse()
          .map((one) => this.#crash(one)),
      );
    }
  }
  #keep(into, items, key, make) {
    // nodes are kept, so that what somebody types in them stays
    const wanted = new Set(items.map(key));
    for (const node of [...into.children])
      if (!wanted.has(node.dataset.key)) {
        const hadFocus = node.contains(document.activeElement);
        const next = node.nextElementSibling ?? node.previousElementSibling;
        this.#cards.delete(node.dataset.key);
        node.remove();
        if (hadFocus) (next ?? into.closest(".pane")).focus();
      }
    for (const one of items)
      if (!this.#cards.has(key(one))) {
        const node = make(one);
        node.dataset.key = key(one);
        this.#cards.set(key(one), node);
        into.append(node);
      }
  }
  #who(id) {
    const entity = this.model.entities.get(id);
    return entity ? h("a", { href: linkTo(id), dir: "auto" }, title(entity)) : h("span", null, "a dispatch");
  }
  #request(one) {
    const card = h("article", { class: "card ask", tabindex: "-1", "aria-label": nameOf(one) });
    card.append(
      h(
        "p",
        { class: "top" },
        sign("hand"),
        this.#who(one.entity),
        h("span", { class: "dim", "data-at": String(Date.parse(one.asked_at)) }, ago(Date.parse(one.asked_at))),
      ),
    );
    askPerson(card, one, this);
    return card;
  }
  #broken(one) {
    const may = this.can("stop");
    return h(
      "article",
      { class: "card broken", tabindex: "-1", "aria-label": "Interrupted entity", "data-entity": one.id },
      h("p", { class: "top" }, pill(standingOf(one)), this.#who(one.id)),
      h(
        "p",
        { class: "dim" },
        one.quarantine
          ? `It does not run: ${plain(one.quarantine.why)}. ${retry(one.quarantine)} Resume it to try now, or end it.`
          : "A crash interrupted it. Resume it from its last record, or end it.",
      ),
      may &&
        h(
          "div",
          { class: "row2" },
          button({ class: "main", onclick: () => this.act.resume(one) }, "Resume"),
          button({ class: "danger", onclick: () => this.act.abandon(one) }, "Abandon"),
        ),
    );
  }
  #near(one) {
    const meter = h("progress", { "aria-label": "Used" }),
      text = h("p", { class: "dim" });
    const node = h(
      "article",
      { class: "card", "aria-label": "Near a limit" },
      h("p", { class: "top" }, pill(["cut", "near its limit", "warn"]), this.#who(one.id)),
      meter,
      text,
    );
    node.tell = (now) => {
      const [what, used, most] = this.model.nearLimit(now),
        show = { cost: money, timeout: span }[what] ?? number;
      meter.max = most;
      meter.value = used;
      setText(text, `${show(used)} of ${show(most)} ${{ cost: "", timeout: "of time" }[what] ?? what}`);
    };
    return node;
  }
  #held(one) {
    const why = one.breaker === "closed" ? "paused" : `breaker ${one.breaker.replaceAll("_", " ")}`;
    return h(
      "article",
      { class: "card", "aria-label": "Crystal that pauses" },
      h("p", { class: "top" }, pill(["pause", why, "warn"]), h("b", { dir: "auto" }, plain(one.name))),
      h(
        "p",
        { class: "dim" },
        `Tried again at ${moment(one.until * 1000)}; `,
        `${number(one.waiting)} ${one.waiting === 1 ? "query waits" : "queries wait"}.`,
      ),
    );
  }
  #crash(one) {
    const entity = entityOf(one.path, this.model);
    const where = entity ? this.#who(entity) : h("span", null, plain(one.path.split("/").slice(-2).join("/")));
    const reason = plain(one.reason ?? "").replace(/^crash: /, "");
    const summary = [
      time(one.at * 1000),
      " ",
      h("b", null, plain(one.path.split("/").at(-1))),
      ` ${one.what} `,
      h("span", { class: "dim brief", dir: "auto" }, reason.slice(0, 90)),
    ];
    return h("li", null, details(null, summary, h("p", null, where), crashReport(one)));
  }
}

// A dispatch waits several times under one id: a card that shows an earlier time must not decide a later one.
const keyOf = (one) => (one.kind === "dispatch" ? `${one.id} ${one.asked_at}` : one.id);
