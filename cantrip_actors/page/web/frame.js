// @ts-check
// What the live page and the exported page have in common around an entity: the panes and their tabs, the address,
// light and dark, and the keys that move. The data comes from a `source`: the service, or the file itself.

import { ask } from "./dialog.js";
import { $, button, h, linkTo, setAttr, sign } from "./dom.js";
import { LoomPane } from "./loom.js";
import { markFound } from "./marks.js";
import { title } from "./model.js";
import { Timeline } from "./timeline.js";

const MOVES = [
  ["↑ ↓ ← →", "move in a tree; Enter selects"],
  ["F6", "next pane"],
  ["/", "search entities and their texts"],
  ["j k", "next and previous turn"],
  ["e", "open all calls, or close them"],
  ["c", "chat, or all of its turns"],
  ["p", "print the whole entity"],
];
const REST = [
  ["?", "this list"],
  ["Esc", "back to the loom"],
];

const narrow = matchMedia("(max-width: 760px)");
export const isNarrow = () => narrow.matches;

const root = document.documentElement;
const paint = (theme) => {
  if (theme) root.dataset.theme = theme;
};
const remember = (theme) => {
  try {
    localStorage.setItem("theme", theme);
  } catch {
    /* without storage the page forgets it */
  }
};
const recall = () => {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
};
paint(recall());
$("mark").append(sign("star"));

export class Frame {
  model;
  tabs;
  welcome;
  name;
  actions;
  keys;
  onShow;

  /**
   * @param {any} model
   * @param {any} source
   * @param {{ can: any, act: any, actions?: any, keys?: any[], tabs: any[], welcome: any, name: string, onShow?: any,
   *   onOlder?: any, onFilter?: any }} settings
   */
  constructor(
    model,
    source,
    { can, act, actions = () => ({}), keys = [], tabs, welcome, name, onShow = () => {}, onOlder, onFilter = () => {} },
  ) {
    Object.assign(this, { model, tabs, welcome, name, actions, keys, onShow });
    const go = (id, turn) => {
      location.hash = linkTo(id, turn);
    };
    this.loom = new LoomPane($("loom"), model, source, { onSelect: go, onOlder, onFilter });
    this.timeline = new Timeline($("main"), model, source, { can, act });
    model.changed.push(
      (now) => this.loom.show(now),
      (now) => this.timeline.show(now),
    );
    $("tools").append(
      button(
        {
          class: "plain",
          "aria-label": "Dark or light",
          title: "Dark or light",
          onclick: () => {
            const isDark =
              (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
              "dark";
            paint(isDark ? "light" : "dark");
            remember(isDark ? "light" : "dark");
          },
        },
        sign("theme"),
      ),
      button(
        { class: "plain", "aria-label": "Keys", title: "Keys", onclick: () => this.showKeys() },
        h("kbd", null, "?"),
      ),
    );
    $("tabs").append(...tabs.map(([id, word]) => button({ "data-tab": id, onclick: () => this.showTab(id) }, word)));
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("beforeprint", () => {
      for (const one of $("main").querySelectorAll("details")) one.open = true;
    });
    markFound($("main"), this.loom.search);
  }
  // On a narrow window there is one pane, on a medium one the entity and one beside it.
  showTab(id) {
    const panes = $("panes").dataset;
    panes.tab = id;
    if (id !== "main") panes.beside = id;
    for (const tab of $("tabs").children) {
      setAttr(tab, "aria-current", tab.dataset.tab === id ? "page" : null);
      tab.classList.toggle("beside", tab.dataset.tab === panes.beside);
    }
  }
  async route() {
    const [, entity, turn] = /^#\/e\/([^/]+)(?:\/t\/(\d+))?$/.exec(location.hash) ?? [];
    const id = entity ? decodeURIComponent(entity) : null;
    this.loom.reveal(id);
    this.loom.tree.select(id);
    this.onShow(id);
    document.title = this.name;
    if (!id) {
      this.timeline.id = null;
      $("main").replaceChildren(this.welcome());
      return;
    }
    this.showTab("main");
    await this.timeline.open(id, turn);
    const shown = this.model.entities.get(id);
    if (shown && this.timeline.id === id) document.title = `${title(shown).slice(0, 80)} · ${this.name}`;
  }
  showKeys() {
    const form = ask({ heading: "Keys" });
    form.insertBefore(
      h(
        "dl",
        { class: "keys" },
        [...MOVES, ...this.keys, ...REST].map(([key, what]) =>
          h(
            "div",
            null,
            h(
              "dt",
              null,
              key.split(" ").map((one) => h("kbd", null, one)),
            ),
            h("dd", null, what),
          ),
        ),
      ),
      form.lastElementChild,
    );
  }
  #onKey(event) {
    if (event.key === "F6") {
      event.preventDefault();
      this.#nextPane(event.shiftKey ? -1 : 1);
      return;
    }
    const inText = event.target.closest?.("input, textarea, select, [contenteditable]"),
      { timeline } = this;
    if (event.key === "Escape" && inText && !$("dialog").open) {
      event.preventDefault();
      inText.blur();
      return;
    } // a search field would empty itself unheard
    if (event.ctrlKey || event.metaKey || event.altKey || inText || $("dialog").open) return;
    const entity = this.model.entities.get(timeline.id),
      turns = timeline.turnNodes(),
      turn = document.activeElement?.closest?.("article.turn") ?? null;
    const step = (by) => {
      const at = turns.indexOf(turn),
        next = turns[at < 0 ? (by > 0 ? 0 : turns.length - 1) : Math.max(0, Math.min(turns.length - 1, at + by))];
      next?.focus();
      next?.scrollIntoView({ block: "nearest" });
    };
    const work = {
      "/": () => {
        this.showTab("loom");
        this.loom.search.focus();
      },
      "?": () => this.showKeys(),
      j: () => step(1),
      k: () => step(-1),
      c: () => entity && timeline.toggleChat(),
      e: () => entity && timeline.toggleCalls(),
      p: () => entity && timeline.print(),
      Escape: () => {
        if (location.hash.length > 2) location.hash = "#/";
        this.loom.tree.focus();
      },
      ...this.actions({ entity, turns, turn }),
    }[event.key];
    if (!work) return;
    event.preventDefault();
    work();
  }
  #nextPane(by) {
    const ids = ["loom", "actors", "main", "needs"].filter($),
      at = ids.findIndex((id) => $(id).contains(document.activeElement));
    const id = ids[(at + by + ids.length) % ids.length],
      tree = $(id).querySelector(".tree .row[tabindex='0']");
    this.showTab(id);
    (tree || (id === "needs" && $("needs").querySelector(".card")) || $(id)).focus();
  }
}
