// @ts-check
// The exported page: the loom and its entities, from data in the file itself. There is a block for each entity,
// which is read when the entity is shown or searched, and an index.

import { $, fact, h, money, number, plain, plural, span, table } from "./dom.js";
import { Frame, isNarrow } from "./frame.js";
import { Model } from "./model.js";
import { order } from "./timeline.js";

const HITS = 300;
const BREATH = 40; // milliseconds of a search after which the page may do other things

for (const id of ["needs", "actors", "line", "lost", "totals", "news"]) $(id).remove();
document.body.classList.add("file");

const model = new Model(),
  blocks = new Map();
const parse = (id) => JSON.parse($(id).textContent);
const index = parse("index"),
  numbers = new Map(index.entities.map((one) => [one.id, one.n]));

function readBlock(id) {
  if (!blocks.has(id)) blocks.set(id, parse(`e-${numbers.get(id)}`));
  return blocks.get(id);
}

// The texts in a value, without ids and addresses.
const SILENT = new Set([
  "id",
  "entity_id",
  "turn_id",
  "parent",
  "parent_id",
  "parent_turn",
  "cantrip_id",
  "tool_call_id",
  "continues",
  "last_turn",
  "url",
  "digest",
  "media_type",
  "timestamp",
  "at",
  "began",
]);
function* textsOf(value, name) {
  if (typeof value === "string") {
    if (!SILENT.has(name)) yield value;
  } else if (value && typeof value === "object")
    for (const [key, part] of Object.entries(value)) yield* textsOf(part, Array.isArray(value) ? name : key);
}
const excerpt = (text, at, length) => {
  const start = Math.max(0, at - 30),
    end = at + length + 60;
  return `${start ? "…" : ""}${text.slice(start, end)}${end < text.length ? "…" : ""}`;
};
function findHit({ q, errors }, { data }) {
  const failed = data.gate_calls?.find((one) => one.is_error);
  if (errors && !failed) return null;
  if (!q) return String(failed.result);
  for (const text of textsOf(data)) {
    const at = text.toLowerCase().indexOf(q);
    if (at >= 0) return excerpt(text, at, q.length);
  }
  return null;
}

const source = {
  entity: () => {
    throw new Error("This file holds a part of a loom, and this entity is not in it.");
  },
  story: (id, { limit, before, after, turn }) => {
    const { items, live } = readBlock(id),
      find = (test) => {
        const at = items.findIndex(test);
        return at < 0 ? items.length : at;
      };
    for (const one of live) model.upsert(one);
    let end = items.length;
    if (turn !== undefined)
      end = Math.min(end, find((one) => one.event === "turn" && one.data.sequence >= turn) + Math.floor(limit / 2) + 1);
    else if (after !== undefined) end = Math.min(end, find((one) => order(one.id) > order(after)) + limit);
    else if (before !== undefined) end = find((one) => order(one.id) >= order(before));
    const start = Math.max(0, end - limit);
    return { items: items.slice(start, end), earlier: start, later: items.length - end };
  },
  search: async (query) => {
    const hits = [];
    let since = performance.now();
    for (const { id } of index.entities)
      for (const item of readBlock(id).items) {
        const found = findHit(query, item);
        if (found !== null)
          hits.push({ entity_id: id, sequence: item.data.sequence ?? 0, place: item.event, excerpt: found });
        if (hits.length === HITS) return hits;
        if (performance.now() - since > BREATH) {
          await new Promise((go) => {
            setTimeout(go);
          });
          since = performance.now();
        }
      }
    return hits;
  },
};

function welcome() {
  const { totals, title } = index,
    gates = Object.entries(totals.gates);
  const facts = [
    ["entities", number(totals.entities)],
    ["turns", number(totals.turns)],
    ["tokens in", number(totals.tokens_prompt)],
    ["out", number(totals.tokens_completion)],
    ["cost", money(totals.cost)],
    ["gate calls", number(totals.gate_calls)],
    ["failed", totals.errors ? number(totals.errors) : ""],
    [`mean of ${plural(totals.rewarded, "reward")}`, totals.rewarded ? Number(totals.mean_reward).toFixed(2) : ""],
  ];
  const row = ([name, one]) => [
    h("code", { class: "gate" }, plain(name)),
    number(one.calls),
    one.errors ? `${number(one.errors)} (${Math.round(one.error_rate * 100)} %)` : "",
    span(one.durations.mean_ms / 1000),
    span(one.durations.p95_ms / 1000),
  ];
  return h(
    "div",
    { class: "body overview" },
    h("h1", { dir: "auto" }, plain(title)),
    h("dl", { class: "facts" }, ...facts.map(([name, value]) => fact(name, value))),
    gates.length ? table("Gates", ["Gate", "Calls", "Failed", "Mean", "95 %"], gates.map(row)) : "",
  );
}

for (const one of index.entities) model.add(one);
const frame = new Frame(model, source, {
  can: () => false,
  act: {},
  tabs: [
    ["loom", "Loom"],
    ["main", "Entity"],
  ],
  welcome,
  name: index.title,
});
if (location.hash.length < 3 && model.roots.length === 1)
  history.replaceState(null, "", `#/e/${encodeURIComponent(model.roots[0])}`);
frame.showTab(isNarrow() && location.hash.length < 3 ? "loom" : "main");
frame.route();
