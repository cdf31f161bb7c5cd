// The page of a loom. Everything it shows is in the page itself, as JSON in <script> elements that no browser runs: one
// for each entity, read when it is shown, and an index at the end. Whatever entities said goes into text nodes and
// nowhere else: there is no innerHTML here, and the page's policy forbids scripts and requests besides.
(() => {
const $ = (id) => document.getElementById(id);
const index = JSON.parse($("index").textContent);
const entities = index.entities;
const byId = new Map(entities.map((one) => [one.id, one]));
const owner = new Map(); // turn id -> entity
for (const one of entities) for (const id of one.turns) owner.set(id, one);
const kin = new Map(); // turn id -> entities that hang from it
const below = new Map(); // entity id -> entities that hang from it or from one of its turns
const roots = [];
const push = (map, key, one) => (map.has(key) ? map.get(key).push(one) : map.set(key, [one]));
for (const one of entities) {
  const from = one.forked ? owner.get(one.turn) : byId.get(one.parent) ?? owner.get(one.turn);
  if (one.turn !== null) push(kin, one.turn, one);
  from && from !== one ? push(below, from.id, one) : roots.push(one);
}

const MANY = 200; // entities of one list that are shown at once
const CHUNK = 40; // items of a timeline that are made at once
const OPEN = 40; // turns up to which an entity is shown with its turns open
const LONG = 3000; // characters after which a text is cut
const TALL = 30; // lines, likewise

// ------------------------------------------------------------------------------------------------------- small things

const number = (n) => n.toLocaleString("en");
const money = (n) => (n ? `$${n < 0.01 ? n.toPrecision(2) : n.toFixed(2)}` : "");
const duration = (ms) => {
  if (ms === null) return "";
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.round((ms % 60e3) / 1000)} s`;
  return `${(ms / 3600e3).toFixed(1)} h`;
};
const short = (id) => id.slice(-8);
const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : (many ?? one + "s")}`;
const time = (at) => at.replace("T", " ").replace(/\.\d+/, "").replace("Z", " UTC");
const entityLink = (one) => `#e=${encodeURIComponent(one.id)}`;
const turnLink = (id) => `#t=${encodeURIComponent(id)}`;
const STATES = { terminated: "good", idle: "good", active: "now", waiting: "now", truncated: "warn", interrupted: "warn", cancelled: "warn" };
const state = (word) => h("span", { class: `state ${STATES[word] ?? "bad"}` }, word);
const title = (one) => one.name ? `${one.name}: ${one.intent}` : one.intent || `entity ${short(one.id)}`;

// JSON on several lines. It works on the text, so that a number of thirty digits stays what it is.
const pretty = (text) => {
  if (text.length < 90 || text.length > 200000 || !/^\s*[[{]/.test(text)) return text;
  try { JSON.parse(text); } catch { return text; }
  let out = "", deep = 0;
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g) ?? []) {
    if (token === "{" || token === "[") out += token + "\n" + "  ".repeat(++deep);
    else if (token === "}" || token === "]") out = out.trimEnd().endsWith(token === "}" ? "{" : "[")
      ? out.trimEnd() + token : out + "\n" + "  ".repeat(deep - 1) + token, deep--;
    else if (token === ",") out += ",\n" + "  ".repeat(deep);
    else out += token === ":" ? ": " : token;
  }
  return out;
};

const block = (text, kind) => {
  const pre = h("pre", { class: kind, dir: "auto" });
  const shown = kind === "prose" ? text : pretty(text);
  let cut = shown.length > LONG ? LONG : shown.length, at = -1;
  for (let line = 0; line < TALL && (at = shown.indexOf("\n", at + 1)) >= 0; line++) if (line === TALL - 1) cut = Math.min(cut, at);
  write(pre, shown.slice(0, cut));
  if (cut === shown.length) return [pre];
  const all = h("button", { type: "button", class: "all", onclick: () => {
    pre.replaceChildren(); write(pre, shown); all.remove(); mark();
  } }, `Show all ${number(shown.length)} characters`);
  return [pre, all];
};

const pictures = (images) => (images ?? []).map((one) => one.src
  ? h("figure", null, h("img", { src: one.src, alt: plain(one.label), loading: "lazy" }), h("figcaption", null, plain(one.label)))
  : h("figure", null, h("figcaption", null, plain(one.label))));

const read = (one) => {
  if (one.data) return one.data;
  one.data = JSON.parse($(`e-${one.n}`).textContent);
  let before = null;
  for (const item of one.data.items) if (item.kind === "turn") {
    if (item.goes && before) before.more = item;
    before = item;
  }
  return one.data;
};
// Whether a call of a turn has its answer in a turn that goes on with the same utterance.
const later = (item, id) => {
  for (let next = item.more; next; next = next.more) if (next.seen.some((seen) => seen.id === id)) return true;
  return false;
};

// ------------------------------------------------------------------------------------------------------------ turns

let everything = null; // whether turns are open: null as each entity has it, true, false

const turnCard = (one, item) => {
  const failed = item.seen.some((seen) => seen.err);
  const card = h("article", { class: `turn${failed ? " failed" : ""}`, "data-turn": item.id });
  const gates = item.seen.length ? item.seen : item.calls;
  const head = h("button", { type: "button", class: "head", "aria-expanded": "false" },
    h("span", { class: "no" }, String(item.no)),
    h("span", { class: "what" },
      ...gates.slice(0, 6).map((seen) => h("span", { class: `gate${seen.err ? " bad" : ""}` }, plain(seen.gate))),
      gates.length > 6 ? `+${gates.length - 6}` : null,
      h("span", { class: "snip" }, plain((item.goes ? "goes on" : item.say || item.code || item.seen[0]?.text || "").slice(0, 200)))),
    item.ends ? state(item.ends) : null,
    item.reward === null ? null : h("span", { class: "reward", title: "reward" }, `★ ${item.reward}`),
    h("span", { class: "meta wide" }, item.tokens[0] + item.tokens[1] ? `${number(item.tokens[0])} → ${number(item.tokens[1])} tokens` : ""),
    h("span", { class: "meta" }, duration(item.ms)));
  let body = null;
  card.toggle = (open) => {
    open ??= head.getAttribute("aria-expanded") !== "true";
    head.setAttribute("aria-expanded", String(open));
    if (open && !body) card.insertBefore((body = turnBody(item)), head.nextSibling);
    if (body) body.hidden = !open;
    if (open) mark();
  };
  head.addEventListener("click", () => card.toggle());
  card.append(head);
  if (everything ?? one.turns.length <= OPEN) card.toggle(true);
  for (const child of kin.get(item.id) ?? []) card.append(nested(child));
  return card;
};

const turnBody = (item) => {
  const body = h("div", { class: "body" });
  const part = (kind, label, text, look, images) => text && body.append(
    h("div", { class: `part ${kind}` }, h("div", { class: "label" }, ...label), ...block(text, look), ...pictures(images)));
  if (item.goes) body.append(h("div", { class: "ids" }, "Goes on with the utterance before, after what it had asked for came back."));
  part("thinking", ["thinks"], item.think, "prose");
  part("says", ["says"], item.say, "prose", item.images);
  part("code", ["code"], item.code, "mono");
  const answers = new Map(item.seen.map((seen) => [seen.id, seen]));
  for (const call of item.calls) {
    const seen = answers.get(call.id);
    answers.delete(call.id);
    part("call", ["calls ", h("span", { class: "gate" }, plain(call.gate)), seen ? "" : later(item, call.id) ? " answered in the next turn" : " not run"], call.args, "mono");
    if (seen) result(part, seen);
  }
  for (const seen of item.seen) if (answers.has(seen.id) || seen.id === null) {
    if (seen.args) part("call", ["calls ", h("span", { class: "gate" }, plain(seen.gate))], seen.args, "mono");
    result(part, seen);
  }
  for (const line of item.who ?? []) part("call", ["decided"], line, "prose");
  for (const line of item.resumed ?? []) part("call", ["resumed"], line, "prose");
  const costs = item.tokens[0] + item.tokens[1]
    ? `${plural(item.tokens[0], "token")} in (${number(item.tokens[2])} cached), ${number(item.tokens[1])} out${item.cost ? `, ${money(item.cost)}` : ""} · ` : "";
  const before = item.rewards.length > 1 ? ` · rewards ${item.rewards.join(", ")}` : "";
  body.append(h("div", { class: "ids" }, `${costs}${duration(item.ms)} · ${time(item.at)}${before} · turn `,
    h("a", { href: turnLink(item.id), class: "mono" }, item.id)));
  return body;
};

const result = (part, seen) => part(seen.err ? "bad" : "result",
  [seen.err ? "failed " : "answers ", h("span", { class: `gate${seen.err ? " bad" : ""}` }, plain(seen.gate)),
    ` ${[duration(seen.ms), seen.eph ? "ephemeral" : ""].filter(Boolean).join(" · ")}`],
  seen.text || "(nothing)", "mono", seen.images);

const nested = (one) => {
  const inside = h("div", { class: "inside", hidden: true });
  const button = h("button", { type: "button", "aria-expanded": "false" },
    h("span", { "aria-hidden": "true", class: "sign" }, "▸"),
    h("span", { class: "kin-kind" }, one.forked ? "fork" : "child"),
    h("span", { class: "kin-name" }, plain(title(one))));
  const toggle = (open) => {
    open ??= button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.querySelector(".sign").textContent = open ? "▾" : "▸";
    if (open && !inside.firstChild) inside.append(timeline(one));
    inside.hidden = !open;
  };
  button.addEventListener("click", () => toggle());
  const box = h("section", { class: `kin${one.forked ? " fork" : ""}`, "data-entity": one.id },
    h("div", { class: "kin-head" }, button, state(one.state),
      h("span", { class: "meta" }, plural(one.turns.length, "turn")), h("a", { href: entityLink(one) }, "open")), inside);
  box.toggle = toggle;
  if (everything) toggle(true);
  return box;
};

const past = (message) => [h("div", { class: "who" }, `before it · ${plain(message.who)}`), ...block(message.text, "prose"),
  ...message.calls.flatMap((call) => block(`${call.gate}(${call.args})`, "mono")), ...pictures(message.images)];

const shownItem = (one, item) => {
  switch (item.kind) {
    case "turn": return turnCard(one, item);
    case "intent": case "steer": return h("div", { class: `said ${item.kind}` },
      h("div", { class: "who" }, `${item.kind === "intent" ? "intent" : "a message from outside"} · ${time(item.at)}`),
      ...(item.history ?? []).flatMap(past), ...block(item.text, "prose"), ...pictures(item.images),
      ...(item.context ? [h("div", { class: "who" }, "with data"), ...block(item.context, "mono")] : []));
    case "fold": return h("div", { class: "fold-mark", title: "The loom keeps what was folded; the crystal sees this instead" },
      `from here on the crystal sees ${plain(item.marker)}`);
    case "undo": return h("div", { class: "said" }, h("div", { class: "who" }, `${plain(item.text)} · ${time(item.at)}`));
    case "moved": return h("div", { class: "said" }, h("div", { class: "who" }, `from here on it works with cantrip ${plain(item.cantrip)}`), ...block(item.text, "prose"));
    case "cut": return h("div", { class: "said" }, h("div", { class: "who" }, "said, and not yet a turn"), ...block(item.text, "prose"));
    default: return h("div", { class: "ended" }, state(item.state), " ", h("span", { class: "dim" }, time(item.at)), ...(item.detail ? block(item.detail, "prose") : []));
  }
};

// A timeline is made in chunks, each when it comes near the screen: ten thousand turns are no more than one screenful.
const near = new IntersectionObserver((seen) => {
  for (const one of seen) if (one.isIntersecting) one.target.make?.();
}, { rootMargin: "1200px 0px" });

const timeline = (one) => {
  const items = read(one).items;
  const line = h("div", { class: "line" });
  for (let at = 0; at < items.length; at += CHUNK) {
    const part = items.slice(at, at + CHUNK);
    const chunk = h("div", { class: "chunk" });
    chunk.style.minHeight = `${part.length * 46}px`;
    chunk.items = part;
    chunk.make = () => {
      chunk.make = null;
      near.unobserve(chunk);
      chunk.style.minHeight = "";
      chunk.append(...part.map((item) => shownItem(one, item)));
    };
    items.length <= CHUNK ? chunk.make() : near.observe(chunk);
    line.append(chunk);
  }
  return line;
};

// ------------------------------------------------------------------------------------------------------------- views

const totals = (...pairs) => h("p", { class: "facts" }, ...pairs.filter(([value]) => value !== "" && value !== null)
  .map(([value, label]) => h("span", null, h("b", null, String(value)), ` ${label}`)));

const entityView = (one) => {
  const data = read(one);
  const crumbs = [];
  const from = owner.get(one.turn);
  if (one.turn !== null) {
    const word = one.forked ? "Forked from" : "Child of";
    crumbs.push(h("p", { class: "crumbs" }, `${word} `, ...(from
      ? [h("a", { href: turnLink(one.turn) }, `turn ${from.turns.indexOf(one.turn) + 1}`), " of ", h("a", { href: entityLink(from) }, plain(title(from)))]
      : [h("span", { class: "mono" }, `turn ${short(one.turn)}`), ", which is not in this page"])));
  }
  return [
    ...crumbs,
    h("h1", { dir: "auto" }, plain(title(one)), " ", state(one.state)),
    totals([number(one.turns.length), one.turns.length === 1 ? "turn" : "turns"], [number(one.tokens[0]), "tokens in"], [number(one.tokens[1]), "out"],
      [money(one.cost), one.cost ? "" : ""], [duration(one.ms), "in turns"], [one.errors || "", one.errors === 1 ? "failed call" : "failed calls"],
      [one.below || "", one.below === 1 ? "entity below" : "entities below"], [plain(one.crystal), ""]),
    h("details", { class: "about" }, h("summary", null, "Call, gates and wards"),
      ...(data.system ? [h("div", { class: "label dim" }, "system prompt"), ...block(data.system, "prose")] : []),
      h("p", null, ...data.gates.flatMap((gate) => [h("span", { class: "gate" }, plain(gate)), " "])),
      ...block(data.circle, "mono"),
      h("p", { class: "ids" }, `began ${time(one.at)} · cantrip ${one.cantrip} · entity `, h("a", { class: "mono", href: entityLink(one) }, one.id))),
    timeline(one),
  ];
};

const overview = () => {
  const all = index.totals;
  const rows = (some) => some.map((one) => h("tr", null,
    h("td", null, h("a", { href: entityLink(one) }, plain(title(one)))), h("td", null, state(one.state)), h("td", { class: "n" }, number(one.turns.length)),
    h("td", { class: "n" }, number(one.tokens[0] + one.tokens[1])), h("td", { class: "n" }, money(one.cost)),
    h("td", { class: "n" }, one.errors ? number(one.errors) : ""), h("td", { class: "n" }, time(one.at).slice(0, 16))));
  const table = h("tbody", null, ...rows(roots.slice(0, MANY)));
  const rest = roots.length > MANY ? [h("button", { type: "button", class: "more", onclick: (event) => {
    table.append(...rows(roots.slice(table.rows.length, table.rows.length + MANY)));
    if (table.rows.length >= roots.length) event.target.remove();
  } }, "Show more")] : [];
  const gates = Object.entries(all.gates);
  return [
    h("h1", null, plain(index.title)),
    totals([number(all.entities), all.entities === 1 ? "entity" : "entities"], [number(all.turns), "turns"], [number(all.tokens_prompt), "tokens in"],
      [number(all.tokens_completion), "out"], [money(all.cost), ""], [number(all.gate_calls), "gate calls"], [number(all.errors), "failed"],
      [all.mean_reward === null ? "" : all.mean_reward.toFixed(2), `mean of ${plural(all.rewarded, "reward")}`]),
    h("h2", null, "Entities"),
    h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, h("th", null, "Intent"), h("th", null, "State"), h("th", { class: "n" }, "Turns"),
      h("th", { class: "n" }, "Tokens"), h("th", { class: "n" }, "Cost"), h("th", { class: "n" }, "Failed"), h("th", { class: "n" }, "Began"))), table)), ...rest,
    ...(gates.length ? [h("h2", null, "Gates"), h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, h("th", null, "Gate"),
      h("th", { class: "n" }, "Calls"), h("th", { class: "n" }, "Failed"), h("th", { class: "n" }, "Mean"), h("th", { class: "n" }, "95 %"))),
    h("tbody", null, ...gates.map(([name, one]) => h("tr", null, h("td", null, h("span", { class: "gate" }, plain(name))), h("td", { class: "n" }, number(one.calls)),
      h("td", { class: "n" }, one.errors ? `${number(one.errors)} (${Math.round(one.error_rate * 100)} %)` : ""),
      h("td", { class: "n" }, duration(one.durations.mean_ms)), h("td", { class: "n" }, duration(one.durations.p95_ms)))))))] : []),
  ];
};

let here = null; // the entity on show

const reach = (id) => { // the card of a turn on show, made if it was not yet
  const one = owner.get(id);
  const path = [];
  for (let up = one; up && up !== here; up = owner.get(up.turn)) path.unshift(up);
  let within = $("main");
  for (const step of [...path.map((entity) => entity.turn), id]) {
    for (const chunk of within.querySelectorAll(".chunk")) if (chunk.make && chunk.items.some((item) => item.id === step)) { chunk.make(); break; }
    const card = within.querySelector(`[data-turn="${CSS.escape(step)}"]`);
    if (!card) return null;
    if (step === id) return card;
    const box = card.querySelector(`[data-entity="${CSS.escape(path[0].id)}"]`);
    path.shift();
    box.toggle(true);
    within = box;
  }
  return null;
};

const show = () => {
  const asked = new URLSearchParams(location.hash.slice(1));
  const turn = asked.get("t"), entity = asked.get("e");
  const wanted = turn ? owner.get(turn) : entity ? byId.get(entity) : null;
  const missing = (turn || entity) && !wanted;
  const first = !turn && !entity && roots.length === 1 && location.hash === "" ? roots[0] : null;
  const next = wanted ?? first;
  const again = turn && next && (next === here || reach(turn));
  if (!again) {
    here = next;
    near.disconnect();
    $("main").replaceChildren(...(missing ? [h("h1", null, "Not in this page"), h("p", null, "This page holds a part of a loom, and what the link leads to is not in it.")]
      : here ? entityView(here) : overview()));
    document.title = here ? `${plain(title(here)).slice(0, 80)} · ${index.title}` : index.title;
    scrollTo(0, 0);
  }
  for (const old of document.querySelectorAll(".turn.target")) old.classList.remove("target");
  if (turn && next) {
    const card = reach(turn);
    if (card) {
      card.classList.add("target");
      card.toggle(true);
      card.scrollIntoView({ block: "start" });
      card.querySelector(".head").focus({ preventScroll: true });
    }
  }
  $("side").classList.remove("shown");
  $("menu").setAttribute("aria-expanded", "false");
  markTree();
  mark();
};

// -------------------------------------------------------------------------------------------------------------- tree

const list = (some, into) => {
  let at = 0;
  const more = h("li", null, h("button", { type: "button", class: "more", onclick: () => add() }, "Show more"));
  const add = () => {
    more.remove();
    for (const one of some.slice(at, at + MANY)) into.append(node(one));
    at += MANY;
    if (at < some.length) into.append(more);
    markTree();
  };
  add();
};

const node = (one) => {
  const kids = below.get(one.id) ?? [];
  const item = h("li", { "data-node": one.id });
  const inner = h("ul", { hidden: true });
  const fold = kids.length ? h("button", { type: "button", class: "fold", "aria-expanded": "false", "aria-label": `${kids.length} below` }, "▸") : h("span");
  item.toggle = (open) => {
    if (!kids.length) return;
    open ??= inner.hidden;
    if (open && !inner.firstChild) list(kids, inner);
    inner.hidden = !open;
    fold.setAttribute("aria-expanded", String(open));
    fold.textContent = open ? "▾" : "▸";
  };
  fold.addEventListener("click", () => item.toggle());
  item.append(h("div", { class: "node" }, fold, h("a", { href: entityLink(one) },
    h("span", { class: "name", dir: "auto" }, plain(title(one))),
    h("small", null, [one.forked ? "fork" : one.turn !== null ? "child" : "", one.state, plural(one.turns.length, "turn"),
      one.errors ? `${one.errors} failed` : ""].filter(Boolean).join(" · ")))), inner);
  if (kids.length && kids.length <= 12 && entities.length <= 100) item.toggle(true);
  return item;
};

const markTree = () => {
  for (const old of document.querySelectorAll(".node.here")) { old.classList.remove("here"); old.querySelector("a").removeAttribute("aria-current"); }
  if (!here) return;
  const path = [];
  const up = (one) => one.forked ? owner.get(one.turn) : byId.get(one.parent) ?? owner.get(one.turn);
  for (let one = here; one; one = up(one)) path.unshift(one);
  for (const one of path.slice(0, -1)) {
    const item = $("tree").querySelector(`[data-node="${CSS.escape(one.id)}"]`);
    if (item && item.lastChild.hidden) item.toggle(true);
  }
  const item = $("tree").querySelector(`[data-node="${CSS.escape(here.id)}"] > .node`);
  if (item) { item.classList.add("here"); item.querySelector("a").setAttribute("aria-current", "page"); item.scrollIntoView({ block: "nearest" }); }
};

// ------------------------------------------------------------------------------------------------------------ search

let run = 0;
const HITS = 300;

const textsOf = (item) => item.kind === "turn"
  ? [item.say, item.think, item.code, ...item.calls.map((call) => `${call.gate} ${call.args}`), ...item.seen.map((seen) => `${seen.gate} ${seen.args ?? ""} ${seen.text}`)]
  : [item.text, item.context, item.detail, item.marker, ...(item.history ?? []).map((message) => message.text)];

const around = (text, at, length) => {
  const start = Math.max(0, at - 30);
  return `${start ? "…" : ""}${plain(text.slice(start, at + length + 60))}${at + length + 60 < text.length ? "…" : ""}`;
};

const search = async () => {
  const mine = ++run;
  const wanted = $("query").value.trim().toLowerCase(), errors = $("only-errors").checked;
  $("found").hidden = !wanted && !errors;
  $("tree").hidden = !$("found").hidden;
  $("hits").replaceChildren();
  $("side").classList.toggle("shown", !$("found").hidden); // where there is no room beside the turns
  mark();
  if (!wanted && !errors) return;
  let hits = 0, since = performance.now();
  for (const one of entities) {
    for (const item of read(one).items) {
      if (errors && !(item.kind === "turn" && item.seen.some((seen) => seen.err))) continue;
      const text = wanted ? textsOf(item).find((text) => text && text.toLowerCase().includes(wanted)) : item.seen.find((seen) => seen.err).text;
      if (text === undefined) continue;
      if (++hits <= HITS) $("hits").append(h("li", null, h("a", { href: item.kind === "turn" ? turnLink(item.id) : entityLink(one) },
        around(text, wanted ? text.toLowerCase().indexOf(wanted) : 0, wanted.length),
        h("small", null, `${item.kind === "turn" ? `turn ${item.no}` : item.kind} · ${plain(title(one)).slice(0, 60)}`))));
    }
    if (performance.now() - since > 40) { // let the page breathe
      $("count").textContent = `${number(hits)} found so far…`;
      await new Promise((go) => setTimeout(go));
      if (mine !== run) return;
      since = performance.now();
    }
  }
  $("count").textContent = hits > HITS ? `${number(hits)} found, the first ${HITS} shown` : `${number(hits)} found`;
};

const mark = () => {
  if (!window.Highlight || !CSS.highlights) return;
  const wanted = $("query").value.trim().toLowerCase(), ranges = [];
  if (wanted.length > 1) {
    const walk = document.createTreeWalker($("main"), NodeFilter.SHOW_TEXT);
    for (let text = walk.nextNode(); text && ranges.length < 2000; text = walk.nextNode()) {
      const low = text.data.toLowerCase();
      if (low.length !== text.data.length) continue;
      for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(text, at);
        range.setEnd(text, at + wanted.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
};

// ------------------------------------------------------------------------------------------------------------- wiring

const all = (open) => {
  everything = open;
  for (const box of $("main").querySelectorAll(".kin")) box.toggle(open);
  for (const card of $("main").querySelectorAll(".turn")) card.toggle(open);
};
const step = (by) => {
  const heads = [...$("main").querySelectorAll(".turn > .head")].filter((head) => head.offsetParent);
  const at = heads.indexOf(document.activeElement);
  const next = heads[at < 0 ? (by > 0 ? 0 : heads.length - 1) : at + by];
  next?.focus();
};
const THEMES = ["Auto", "Light", "Dark"];
$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf($("theme").textContent) + 1) % THEMES.length];
  $("theme").textContent = next;
  next === "Auto" ? delete document.documentElement.dataset.theme : document.documentElement.dataset.theme = next.toLowerCase();
});
$("open-all").addEventListener("click", () => all(true));
$("close-all").addEventListener("click", () => all(false));
$("menu").addEventListener("click", () => $("menu").setAttribute("aria-expanded", String($("side").classList.toggle("shown"))));
$("home").addEventListener("click", (event) => { event.preventDefault(); location.hash = "all"; });
$("find").addEventListener("submit", (event) => { event.preventDefault(); $("hits").querySelector("a")?.focus(); });
let soon = 0;
$("query").addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(search, 150); });
$("only-errors").addEventListener("change", search);
$("clear").addEventListener("click", () => { $("query").value = ""; $("only-errors").checked = false; search(); $("query").focus(); });
$("side").addEventListener("keydown", (event) => {
  const links = [...$("side").querySelectorAll("a")].filter((link) => link.offsetParent);
  const at = links.indexOf(document.activeElement);
  if (at < 0) return;
  const item = document.activeElement.closest("li");
  if (event.key === "ArrowDown") links[at + 1]?.focus();
  else if (event.key === "ArrowUp") links[at - 1]?.focus();
  else if (event.key === "ArrowRight") item.toggle?.(true);
  else if (event.key === "ArrowLeft") item.toggle?.(false);
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input");
  if (event.key === "Escape" && typing) { $("clear").click(); event.target.blur(); return; }
  if (typing) return;
  if (event.key === "/") { event.preventDefault(); $("query").focus(); }
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "e") all(true);
  else if (event.key === "c") all(false);
});
addEventListener("hashchange", show);
addEventListener("beforeprint", () => { // paper does not scroll: what is on show is made whole, up to a book's length
  let left = 50;
  for (const chunk of $("main").querySelectorAll(".chunk")) if (chunk.make && left-- > 0) chunk.make();
  if (left > 0) for (const card of $("main").querySelectorAll(".turn")) card.toggle(true);
});

list(roots, $("tree"));
show();
document.documentElement.dataset.ready = "yes";
})();
