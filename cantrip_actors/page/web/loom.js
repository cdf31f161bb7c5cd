// @ts-check
// The loom: entities as a tree, with children and forks below what they came from.

import { button, day, h, moment, money, number, plain, setAttr, setText, sign, standingOf } from "./dom.js";
import { title } from "./model.js";
import { Tree } from "./tree.js";

/** @type {[string, string, (entity: any) => boolean][]} */
const FILTERS = [
  ["all", "All", () => true],
  ["live", "At work", (one) => one.state === "active" && !one.over],
  ["waiting", "Need you", (one) => one.state === "waiting"],
  ["errors", "Errors", (one) => one.errors > 0],
  ["troubled", "Troubled", (one) => one.interrupted || (one.over && one.state !== "terminated")],
];

export class LoomPane {
  model;
  source;
  onFilter;
  #closed = new Set();
  #shape = 0;
  #filter = "all";
  #query = "";
  #gate = "";

  // entity id -> the turns and texts in which the search found the query, the first in the row of the entity
  #hits = new Map();
  #rowHits = new Map(); // id of a row -> its hit, which is one of several of its entity
  #asked = 0;
  #timer = 0;

  constructor(node, model, source, { onSelect, onOlder, onFilter }) {
    Object.assign(this, { model, source, onFilter });
    this.tree = new Tree({
      label: "Entities",
      rowHeight: 66,
      empty: "Nothing has been cast yet.",
      make: (row) => this.#make(row),
      update: (row, id) => this.#update(row, id),
      onSelect: (id) => {
        const hit = this.#rowHits.get(id) ?? this.#hits.get(id)?.[0];
        onSelect(hit?.entity_id ?? id, hit?.sequence || null);
      },
      onToggle: (id) => {
        this.#closed.has(id) ? this.#closed.delete(id) : this.#closed.add(id);
        this.rebuild();
      },
    });
    this.search = h("input", {
      type: "search",
      placeholder: "Search all texts",
      "aria-label": "Search entities and their texts",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => {
        this.#query = this.search.value.trim().toLowerCase();
        this.#refilter();
      },
      onkeydown: (event) => {
        if (event.key === "Enter") this.tree.focus();
      },
    });
    this.gates = h(
      "select",
      {
        "aria-label": "Entities that called a gate",
        hidden: true,
        onchange: () => {
          this.#gate = this.gates.value;
          this.#refilter();
        },
      },
      h("option", { value: "" }, "any gate"),
    );
    this.count = h("span", { class: "count" });
    this.problem = h("p", { class: "error", role: "status" });
    this.chips = h(
      "div",
      { class: "chips", role: "group", "aria-label": "Which entities" },
      FILTERS.map(([key, word]) =>
        button(
          { class: "chip", "data-filter": key, "aria-pressed": String(key === "all"), onclick: () => this.filter(key) },
          word,
        ),
      ),
    );
    this.older = button({ class: "more", hidden: true, onclick: onOlder }, "Show older entities");
    node.append(
      h("div", { class: "head" }, h("h2", { id: "loom-title" }, "Loom"), this.count),
      h("div", { class: "finder" }, this.search, this.gates, this.chips, this.problem),
      this.tree.box,
      this.older,
    );
  }
  // What is known here is filtered at once; the texts of all turns are searched when a person pauses, and so are calls
  // that failed.
  #searchLater() {
    clearTimeout(this.#timer);
    this.#asked++;
    this.#hits.clear();
    const query = {
      ...(this.#query.length > 2 ? { q: this.#query } : {}),
      ...(this.#filter === "errors" ? { errors: true } : {}),
    };
    if (query.q || query.errors) this.#timer = setTimeout(() => this.#search(query, this.#asked), 250);
    setText(this.problem, "");
  }
  async #search(query, asked) {
    try {
      const hits = await this.source.search(query);
      for (const hit of hits)
        if (asked === this.#asked && !this.model.entities.has(hit.entity_id))
          this.model.add(await this.source.entity(hit.entity_id));
      if (asked !== this.#asked) return;
      for (const hit of hits)
        this.#hits.has(hit.entity_id) ? this.#hits.get(hit.entity_id).push(hit) : this.#hits.set(hit.entity_id, [hit]);
      this.#redraw();
    } catch (error) {
      if (asked === this.#asked) setText(this.problem, `The texts could not be searched: ${plain(error.message)}`);
    }
  }
  filter(key) {
    this.#filter = key;
    for (const chip of this.chips.querySelectorAll("[data-filter]"))
      setAttr(chip, "aria-pressed", String(chip.dataset.filter === key));
    this.#refilter();
  }
  #refilter() {
    this.#searchLater();
    this.#redraw();
  }
  #redraw() {
    this.tree.node.scrollTop = 0;
    this.rebuild();
    this.onFilter();
  }
  // What the filter shows, for actions on many.
  matches(entity) {
    const [, , test] = FILTERS.find(([key]) => key === this.#filter);
    if (!test(entity) || (this.#gate && !entity.gates?.has(this.#gate))) return false;
    if (!this.#query || this.#hits.has(entity.id)) return true;
    const [, word] = standingOf(entity);
    return `${entity.name ?? ""} ${entity.cantrip ?? ""} ${entity.intent ?? ""} ${entity.id} ${word}`
      .toLowerCase()
      .includes(this.#query);
  }
  get isFiltered() {
    return this.#filter !== "all" || this.#query !== "" || this.#gate !== "";
  }
  rebuild() {
    const { model } = this,
      rows = [];
    const isFiltered = this.isFiltered;
    let shown = null,
      last = null,
      count = 0;
    this.#rowHits.clear();
    if (isFiltered) {
      // those that match, and what they hang from
      shown = new Set();
      for (const one of model.entities.values())
        if (this.matches(one)) {
          for (let id = one.id; id && !shown.has(id); id = model.entities.get(id)?.above) shown.add(id);
        }
    }
    const walk = (ids, depth) => {
      const list = shown ? ids.filter((id) => shown.has(id)) : ids.filter((id) => model.entities.has(id));
      list.forEach((id, at) => {
        const children = model.below.get(id) ?? [],
          isOpen = !this.#closed.has(id);
        const date = depth ? null : day(model.entities.get(id).at);
        rows.push({
          id,
          depth,
          hasChildren: children.length > 0,
          isOpen,
          posinset: at + 1,
          setsize: list.length,
          heading: date && date !== last ? date : null,
        });
        last = date ?? last;
        count++;
        const more = shown ? (this.#hits.get(id) ?? []).slice(1) : [];
        more.forEach((hit, n) => {
          const row = { id: `${id} ${n}`, depth: depth + 1, posinset: n + 1, setsize: more.length };
          this.#rowHits.set(row.id, hit);
          rows.push(row);
        });
        if (children.length && isOpen) walk(children, depth + 1);
      });
    };
    walk(model.roots, 0);
    this.#shape = model.shape;
    this.tree.setRows(rows);
    setText(
      this.count,
      isFiltered ? `${number(count)} of ${number(model.entities.size)}` : number(model.entities.size),
    );
  }
  show(model) {
    const { gates } = this;
    if (gates.length !== model.gates.size + 1) {
      // kept in order, so that a choice stays
      const known = new Set([...gates.options].map((one) => one.value));
      for (const gate of [...model.gates].filter((one) => !known.has(one)))
        gates.add(new Option(plain(gate), gate), [...gates.options].slice(1).find((one) => one.value > gate) ?? null);
      gates.hidden = !model.gates.size;
    }
    const isFiltered = this.isFiltered;
    if (this.#shape !== model.shape || (isFiltered && model.dirty.size)) this.rebuild();
    else if (model.dirty.size) this.tree.draw(model.dirty);
  }
  reveal(id) {
    // open what hides it
    let isHidden = false;
    for (let up = this.model.entities.get(id)?.above; up; up = this.model.entities.get(up)?.above)
      isHidden = this.#closed.delete(up) || isHidden;
    if (isHidden) this.rebuild();
  }
  #make(row) {
    row.parts = {
      sign: h("span", { class: "stand" }),
      kind: h("span", { class: "kin" }),
      intent: h("span", { class: "intent", dir: "auto" }),
      title: h("b", { class: "name", dir: "auto" }),
      line: h("span", { class: "state" }),
    };
    const { parts } = row;
    row.append(
      parts.sign,
      h(
        "span",
        { class: "what" },
        h("span", { class: "over" }, parts.kind, parts.intent),
        h("span", { class: "under" }, parts.title, parts.line),
      ),
    );
  }
  #update(row, id) {
    const hit = this.#rowHits.get(id) ?? this.#hits.get(id)?.[0],
      isMore = this.#rowHits.has(id);
    const one = this.model.entities.get(hit?.entity_id ?? id),
      { parts } = row;
    if (!one) return;
    if (isMore) {
      setText(parts.intent, plain(hit.excerpt));
      setText(parts.line, hit.sequence ? `turn ${hit.sequence}` : plain(hit.place));
      return;
    }
    const [shape, word, tone] = standingOf(one);
    if (row.shape !== shape + tone) {
      parts.sign.replaceChildren(sign(shape));
      parts.sign.className = `stand ${tone}`;
      row.shape = shape + tone;
    }
    const kin = one.forked ? "fork" : one.parent ? "child" : "";
    if (parts.kind.dataset.kind !== kin) {
      parts.kind.dataset.kind = kin;
      parts.kind.replaceChildren(...(kin === "fork" ? [sign("fork"), h("span", { class: "unseen" }, "fork")] : []));
    }
    const name = title(one),
      intent = plain(one.intent ?? "");
    setText(parts.intent, intent || name);
    setText(parts.title, intent ? name : "");
    const facts = [
      word,
      one.turns && `${number(one.turns)} ${one.turns === 1 ? "turn" : "turns"}`,
      one.tokens && `${number(one.tokens)} tok`,
      money(one.cost),
      moment(one.at),
    ].filter(Boolean);
    setText(
      parts.line,
      hit
        ? `${hit.sequence ? `turn ${hit.sequence}: ` : ""}${plain(hit.excerpt)}`
        : one.say && word === "running"
          ? `${word} · ${plain(one.say)}`
          : facts.join(" · "),
    );
  }
}
