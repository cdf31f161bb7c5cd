// @ts-check
// A tree of any size as an ARIA tree: it makes nodes for the rows in sight only, keeps them, and
// updates those that changed.
// Arrows, Home, End and pages move; Enter or a click selects. The focused row stays in the page, also out of sight.

import { h, setAttr, setText, sign } from "./dom.js";

const SPARE = 8; // rows above and below those in sight
const HEADING = 30; // height of a heading above a row

export class Tree {
  rowHeight;
  make;
  update;
  onSelect;
  onToggle;
  rows = []; // {id, depth, hasChildren, isOpen, posinset, setsize, heading: a text above the row}
  #at = new Map();
  #tops = [0]; // the position of each row, and of the end
  #nodes = new Map();
  #headings = new Map(); // row id -> node
  #current = null; // the row that Tab reaches
  #scroll = 0;
  selected = null;

  /**
   * @param {{ label: string, rowHeight: number, make: any, update: any, onSelect: any, onToggle: any,
   *   empty: string }} settings
   */
  constructor({ label, rowHeight, make, update, onSelect, onToggle, empty }) {
    Object.assign(this, { rowHeight, make, update, onSelect, onToggle });
    this.canvas = h("div", { class: "canvas", role: "presentation" });
    this.node = h("div", { class: "tree", role: "tree", "aria-label": label }, this.canvas);
    this.empty = h("p", { class: "empty" }, empty);
    this.box = h("div", { class: "treebox" }, this.node, this.empty);
    this.node.addEventListener("scroll", () => {
      this.#scroll ||= requestAnimationFrame(() => {
        this.#scroll = 0;
        this.draw();
      });
    });
    this.node.addEventListener("keydown", (event) => this.#key(event));
    this.node.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  setRows(rows) {
    // what a reader scrolled to stays where it is when rows come above it
    const top = this.node.scrollTop,
      first = this.#rowAt(top),
      anchor = top ? this.rows[first]?.id : null,
      was = this.#tops[first];
    this.rows = rows;
    this.#at = new Map(rows.map((row, at) => [row.id, at]));
    this.#tops = [0];
    for (const row of rows) this.#tops.push(this.#tops.at(-1) + this.rowHeight + (row.heading ? HEADING : 0));
    if (!this.#at.has(this.#current))
      this.#current = this.#at.has(this.selected) ? this.selected : (rows[0]?.id ?? null);
    this.canvas.style.height = `${this.#tops.at(-1)}px`;
    this.empty.hidden = rows.length > 0;
    this.node.hidden = !rows.length;
    if (this.#at.has(anchor)) this.node.scrollTop = top + this.#tops[this.#at.get(anchor)] - was;
    this.draw();
  }
  #rowAt(y) {
    // the row at a position
    let low = 0,
      high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  #topOf(at) {
    return this.#tops[at + 1] - this.rowHeight;
  }
  select(id) {
    this.selected = id;
    if (this.#at.has(id)) {
      this.#current = id;
      this.#reveal(id);
    }
    this.draw();
  }
  focus() {
    this.#focus(this.#current);
  }

  // Draw rows that came into sight, and those of `dirty`; all of them without it.
  draw(dirty) {
    const first = Math.max(0, this.#rowAt(this.node.scrollTop) - SPARE);
    const last = Math.min(
      this.rows.length,
      first + Math.ceil((this.node.clientHeight || 600) / this.rowHeight) + 2 * SPARE,
    );
    const wanted = new Set();
    for (let at = first; at < last; at++) wanted.add(this.rows[at].id);
    this.#drawHeadings(wanted);
    /** @type {any} */
    const active = document.activeElement;
    const focused = this.canvas.contains(active) ? active.dataset.id : null;
    if (focused !== null && this.#at.has(focused)) wanted.add(focused);
    if (this.#current !== null && this.#at.has(this.#current)) wanted.add(this.#current);
    for (const [id, node] of this.#nodes) {
      if (wanted.has(id)) continue;
      const hadFocus = node === document.activeElement;
      node.remove();
      this.#nodes.delete(id);
      if (hadFocus) this.#focus(this.#current);
    }
    for (const id of wanted) {
      let node = this.#nodes.get(id);
      if (node && dirty && !dirty.has(id)) continue;
      if (!node) {
        node = h(
          "div",
          { class: "row", role: "treeitem", "data-id": id },
          h("span", { class: "twist" }, sign("twist")),
        );
        node.style.height = `${this.rowHeight}px`;
        this.make(node, id);
        this.#nodes.set(id, node);
        this.canvas.insertBefore(node, this.#after(this.#at.get(id)));
      }
      this.#draw(node, id);
    }
  }
  #drawHeadings(wanted) {
    for (const [id, node] of this.#headings)
      if (!wanted.has(id) || !this.rows[this.#at.get(id)].heading) {
        node.remove();
        this.#headings.delete(id);
      }
    for (const id of wanted) {
      const at = this.#at.get(id),
        { heading } = this.rows[at];
      if (!heading) continue;
      let node = this.#headings.get(id);
      if (!node)
        this.#headings.set(id, (node = this.canvas.appendChild(h("p", { class: "day", "aria-hidden": "true" }))));
      setText(node, heading);
      const top = `translateY(${this.#tops[at]}px)`;
      if (node.style.transform !== top) node.style.transform = top;
    }
  }
  #after(at) {
    // the node of the next row that has one: screen readers read in the order of nodes
    let best = null,
      next = Infinity;
    for (const [id, node] of this.#nodes) {
      const there = this.#at.get(id);
      if (there > at && there < next && node.parentNode) {
        next = there;
        best = node;
      }
    }
    return best;
  }
  #draw(node, id) {
    const at = this.#at.get(id),
      row = this.rows[at];
    const top = `translateY(${this.#topOf(at)}px)`;
    if (node.style.transform !== top) node.style.transform = top;
    const indent = `${row.depth * 0.9 + 0.35}rem`;
    if (node.style.paddingLeft !== indent) node.style.paddingLeft = indent;
    setAttr(node, "aria-level", String(row.depth + 1));
    setAttr(node, "aria-posinset", String(row.posinset));
    setAttr(node, "aria-setsize", String(row.setsize));
    setAttr(node, "aria-expanded", row.hasChildren ? String(row.isOpen) : null);
    setAttr(node, "aria-selected", String(id === this.selected));
    setAttr(node, "tabindex", id === this.#current ? "0" : "-1");
    this.update(node, id);
  }
  #reveal(id) {
    const at = this.#at.get(id),
      top = this.#topOf(at),
      height = this.node.clientHeight;
    if (this.#tops[at] < this.node.scrollTop) this.node.scrollTop = this.#tops[at];
    else if (top + this.rowHeight > this.node.scrollTop + height) this.node.scrollTop = top + this.rowHeight - height;
  }
  #focus(id) {
    if (id === null || !this.#at.has(id)) return;
    this.#current = id;
    this.#reveal(id);
    this.draw();
    this.#nodes.get(id)?.focus({ preventScroll: true });
  }
  #click(event) {
    const node = event.target.closest(".row");
    if (!node) return;
    const id = node.dataset.id;
    this.#focus(id);
    if (event.target.closest(".twist") && node.hasAttribute("aria-expanded")) this.onToggle(id);
    else this.onSelect(id);
  }
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.#at.get(this.#current) ?? 0,
      row = this.rows[at];
    if (!row) return;
    const go = (to) => this.#focus(this.rows[Math.max(0, Math.min(this.rows.length - 1, to))].id);
    const above = () => {
      for (let up = at; up >= 0; up--) if (this.rows[up].depth < row.depth) return up;
      return at;
    };
    const moves = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(this.rows.length - 1),
      PageDown: () => go(at + Math.floor(this.node.clientHeight / this.rowHeight)),
      PageUp: () => go(at - Math.floor(this.node.clientHeight / this.rowHeight)),
      ArrowRight: () => (row.hasChildren && !row.isOpen ? this.onToggle(row.id) : row.hasChildren && go(at + 1)),
      ArrowLeft: () => (row.hasChildren && row.isOpen ? this.onToggle(row.id) : go(above())),
      Enter: () => this.onSelect(row.id),
      " ": () => this.onSelect(row.id),
    };
    if (moves[event.key]) moves[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
