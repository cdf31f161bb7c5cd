// A tree of any size as an ARIA tree: it makes nodes for the rows in sight only, keeps them, and updates those that changed.
// Arrows, Home, End and pages move; Enter or a click selects. The focused row stays in the page, also out of sight.

import { h, setAttr, sign } from "./dom.js";

const SPARE = 8; // rows above and below those in sight

export class Tree {
  rows = []; // {id, depth, hasChildren, isOpen, posinset, setsize}
  #at = new Map();
  #nodes = new Map();
  #current = null; // the row that Tab reaches
  #scroll = 0;
  selected = null;

  constructor({ label, rowHeight, make, update, onSelect, onToggle, name, empty }) {
    Object.assign(this, { rowHeight, make, update, onSelect, onToggle, name });
    this.canvas = h("div", { class: "canvas", role: "presentation" });
    this.node = h("div", { class: "tree", role: "tree", "aria-label": label }, this.canvas);
    this.empty = h("p", { class: "empty" }, empty);
    this.box = h("div", { class: "treebox" }, this.node, this.empty);
    this.node.addEventListener("scroll", () => { this.#scroll ||= requestAnimationFrame(() => { this.#scroll = 0; this.draw(); }); });
    this.node.addEventListener("keydown", (event) => this.#key(event));
    this.node.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  setRows(rows) { // what a reader scrolled to stays where it is when rows come above it
    const top = this.node.scrollTop, anchor = top ? this.rows[Math.floor(top / this.rowHeight)]?.id : null, was = this.#at.get(anchor);
    this.rows = rows;
    this.#at = new Map(rows.map((row, at) => [row.id, at]));
    if (!this.#at.has(this.#current)) this.#current = this.#at.has(this.selected) ? this.selected : rows[0]?.id ?? null;
    this.canvas.style.height = `${rows.length * this.rowHeight}px`;
    this.empty.hidden = rows.length > 0;
    this.node.hidden = !rows.length;
    if (this.#at.has(anchor)) this.node.scrollTop = top + (this.#at.get(anchor) - was) * this.rowHeight;
    this.draw();
  }
  has(id) { return this.#at.has(id); }
  select(id, isShown = true) {
    this.selected = id;
    if (this.#at.has(id)) { this.#current = id; if (isShown) this.#reveal(id); }
    this.draw();
  }
  focus() { this.#focus(this.#current); }

  // Draw rows that came into sight, and those of `dirty`; all of them without it.
  draw(dirty) {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.rowHeight) - SPARE);
    const last = Math.min(this.rows.length, first + Math.ceil((this.node.clientHeight || 600) / this.rowHeight) + 2 * SPARE);
    const wanted = new Set();
    for (let at = first; at < last; at++) wanted.add(this.rows[at].id);
    const focused = this.canvas.contains(document.activeElement) ? document.activeElement.dataset.id : null;
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
        node = h("div", { class: "row", role: "treeitem", "data-id": id }, h("span", { class: "twist" }, sign("twist")));
        node.style.height = `${this.rowHeight}px`;
        this.make(node, id);
        this.#nodes.set(id, node);
        this.canvas.insertBefore(node, this.#after(this.#at.get(id)));
      }
      this.#draw(node, id);
    }
  }
  #after(at) { // the node of the next row that has one: screen readers read in the order of nodes
    let best = null, next = Infinity;
    for (const [id, node] of this.#nodes) {
      const there = this.#at.get(id);
      if (there > at && there < next && node.parentNode) { next = there; best = node; }
    }
    return best;
  }
  #draw(node, id) {
    const at = this.#at.get(id), row = this.rows[at];
    const top = `translateY(${at * this.rowHeight}px)`;
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
    const top = this.#at.get(id) * this.rowHeight, height = this.node.clientHeight;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
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
    const at = this.#at.get(this.#current) ?? 0, row = this.rows[at];
    if (!row) return;
    const go = (to) => this.#focus(this.rows[Math.max(0, Math.min(this.rows.length - 1, to))].id);
    const above = () => { for (let up = at; up >= 0; up--) if (this.rows[up].depth < row.depth) return up; return at; };
    const moves = {
      ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), Home: () => go(0), End: () => go(this.rows.length - 1),
      PageDown: () => go(at + Math.floor(this.node.clientHeight / this.rowHeight)),
      PageUp: () => go(at - Math.floor(this.node.clientHeight / this.rowHeight)),
      ArrowRight: () => (row.hasChildren && !row.isOpen ? this.onToggle(row.id) : row.hasChildren && go(at + 1)),
      ArrowLeft: () => (row.hasChildren && row.isOpen ? this.onToggle(row.id) : go(above())),
      Enter: () => this.onSelect(row.id), " ": () => this.onSelect(row.id),
    };
    if (moves[event.key]) moves[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
