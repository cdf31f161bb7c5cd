// @ts-check
// Nodes, numbers and texts of the page. Whatever entities say becomes text nodes, and attributes of a fixed list: no
// markup is ever parsed.

const ATTRIBUTES = new Set([
  "accept",
  "alt",
  "autocomplete",
  "checked",
  "class",
  "colspan",
  "cols",
  "d",
  "datetime",
  "dir",
  "disabled",
  "fill",
  "for",
  "height",
  "hidden",
  "href",
  "id",
  "loading",
  "maxlength",
  "name",
  "open",
  "placeholder",
  "points",
  "rel",
  "required",
  "role",
  "rows",
  "multiple",
  "selected",
  "spellcheck",
  "src",
  "start",
  "step",
  "tabindex",
  "target",
  "title",
  "type",
  "value",
  "viewBox",
  "width",
]);

export const fill = (made, options, inside) => {
  for (const [name, value] of Object.entries(options ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (ATTRIBUTES.has(name) || /^(aria|data)-/.test(name)) made.setAttribute(name, value === true ? "" : value);
    else throw new Error(`the page sets no attribute ${name}`);
  }
  made.append(...inside.flat(3).filter((one) => one !== null && one !== undefined && one !== "" && one !== false));
  return made;
};
export const h = (tag, options, ...inside) => fill(document.createElement(tag), options, inside);

// Signs that move, hide or turn round what stands beside them, and those of terminals, are shown as what they are.
const ODD = new RegExp(
  String.raw`[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f` +
    String.raw`\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]|\r(?!\n)`,
  "gu",
);
// In values: letters that look like Latin ones, in a word with Latin letters; that of an escape such as \n is none.
// The look at a word is bounded, so this is linear.
const ALIKE = String.raw`[\u0370-\u058f\u13a0-\u13ff\u1c80-\u1c8f\u1d00-\u1dbf\u1f00-\u1fff\u2c80-\u2cff\ua4d0-\ua4ff` +
  String.raw`\ua640-\ua69f\uab30-\uabbf\uff21-\uff5a\u{1d400}-\u{1d7ff}]`;
const ODD_IN_VALUES = new RegExp(
  String.raw`${ODD.source}|(?<=(?<!\\)[A-Za-z]\p{L}{0,8})${ALIKE}|${ALIKE}(?=\p{L}{0,8}[A-Za-z])`,
  "gu",
);
export const plain = (text) =>
  String(text ?? "")
    .slice(0, 500)
    .replace(ODD, "\ufffd")
    .replace(/\s+/g, " ")
    .trim();
export const write = (into, text, odd = ODD) => {
  let done = 0;
  for (const match of text.matchAll(odd)) {
    const code = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    into.append(text.slice(done, match.index), h("span", { class: "odd", title: code }, code));
    done = match.index + match[0].length;
  }
  into.append(text.slice(done));
  return into;
};

export const button = (options, ...inside) => h("button", { type: "button", ...options }, ...inside);
export const linkTo = (id, turn) => `#/e/${encodeURIComponent(id)}${turn ? `/t/${turn}` : ""}`;
/** @returns {any} */
export const $ = (id) => document.getElementById(id);

// Do something at Enter in a field; Shift+Enter, and Enter that ends a composed character, are for the field.
export const onEnter = (node, work) =>
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      work();
    }
  });
export const form = (work, ...inside) =>
  h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        work();
      },
    },
    ...inside,
  );
// A button that shows the rest of something, and goes.
export const more = (word, show, tone = "more") => {
  const node = button(
    {
      class: tone,
      onclick: () => {
        node.remove();
        show();
      },
    },
    word,
  );
  return node;
};
export const details = (tone, word, ...inside) => h("details", { class: tone }, h("summary", null, word), ...inside);
export const fact = (name, value) =>
  value ? h("div", null, h("dt", null, name), h("dd", { dir: "auto" }, value)) : "";
// A table whose first column names what the numbers of a row are about.
export const table = (label, [first, ...others], rows, sum) => {
  const line = ([name, ...cells], tag = "td") =>
    h("tr", null, h("th", null, name), ...cells.map((cell) => h(tag, { class: "right" }, cell)));
  return h(
    "div",
    { class: "tablebox", tabindex: "0", role: "group", "aria-label": label },
    h(
      "table",
      null,
      h("thead", null, line([first, ...others], "th")),
      h("tbody", null, ...rows.map((row) => line(row))),
      sum ? h("tfoot", null, line(sum)) : "",
    ),
  );
};

// Set what has changed only: a node that stays as it is costs no layout.
export const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};
export const setAttr = (node, name, value) => {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
};

// --------------------------------------------------------------------------------------------------------------- signs

const SHAPES = {
  dot: "M8 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8z",
  ring: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3zm0 2a3 3 0 1 1 0 6 3 3 0 0 1 0-6z",
  hand: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 2v4h3.4v1.6H6.4V4z",
  check: "M13.3 4.7 6.6 11.6 2.9 8l1.2-1.2 2.4 2.3 5.6-5.7z",
  cross: "M4.1 2.9 8 6.8l3.9-3.9 1.2 1.2L9.2 8l3.9 3.9-1.2 1.2L8 9.2l-3.9 3.9-1.2-1.2L6.8 8 2.9 4.1z",
  cut: "M2 7.2h8.6V4L14 8l-3.4 4V8.8H2z",
  stop: "M4 4h8v8H4z",
  pause: "M4 3h3v10H4zm5 0h3v10H9z",
  twist: "M5.5 3.5 11 8l-5.5 4.5z",
  fork:
    "M4 1.8a1.9 1.9 0 0 0-.8 3.6v5.2a1.9 1.9 0 1 0 1.6 0V8.9c.6.4 1.4.6 2.2.6h2.2c1.5 0 2.4-.9 2.4-2.4v-1" +
    ".7a1.9 1.9 0 1 0-1.6 0v1.7c0 .6-.2.8-.8.8H7c-1.3 0-2.2-.7-2.2-2V5.400a1.9 1.9 0 0 0-.8-3.6z",
  child:
    "M3.2 2h1.6v6.200c0 .9.4 1.300 1.300 1.300h4V6.700L14 10.300l-3.900 3.500v-2.700h-4c-1.800 0-2.900-1." +
    "100-2.900-2.900z",
  again: "M8 3a5 5 0 0 1 4.300 2.500V3.200h1.500v5H8.900V6.700h2.300A3.500 3.500 0 1 0 11.400 9h1.550A5 5 0 1 1 8 3z",
  mail: "M2 3.500h12v9H2zm1.600 1.400v.4L8 8.500l4.400-3.200v-.4zm8.800 6.200V7L8 10.200 3.600 7v4.100z",
  plus: "M7.200 3h1.600v4.200H13v1.600H8.800V13H7.200V8.800H3V7.200h4.200z",
  theme: "M6.200 1.800A6.300 6.300 0 1 0 14.200 9.800 5.400 5.400 0 0 1 6.200 1.800z",
  star: "M8 0l1.700 6.300L16 8l-6.300 1.700L8 16l-1.700-6.300L0 8l6.300-1.700z",
  fold: "M2 3h12v1.600H2zm3 4.200h6v1.600H5zM2 11.400h12V13H2z",
  clip:
    "M8 1.200a3.300 3.300 0 0 0-3.300 3.300v6a2 2 0 0 0 4 0V5H7.200v5.500a.5.5 0 0 1-1 0v-6a1.800 1.800 0" +
    " 0 1 3.600 0v6.200a3.100 3.100 0 0 1-6.200 0V5H2.100v5.700a4.600 4.600 0 0 0 9.200 0V4.500A3.300 3.3" +
    "00 0 0 0 8 1.200z",
  bars: "M2 9h3v5H2zm4.500-4h3v9h-3zM11 2h3v12h-3z",
  chat: "M2 2.500h12v8.500H7.500L4 14v-3H2zm2.500 2.300v1.400h7V4.800zm0 2.700v1.400h5V7.500z",
  bolt: "M9.200 1 3.500 9h3.700l-.5 6 5.800-8.200H8.700z",
};
const SVG = "http://www.w3.org/2000/svg";
export const svg = (tag, options, ...inside) => fill(document.createElementNS(SVG, tag), options, inside);
export const sign = (name) =>
  svg(
    "svg",
    { class: `sign ${name}`, viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" },
    svg("path", { d: SHAPES[name] }),
  );

// How things stand, as a sign, a word and a colour: never by colour alone.
const STANDING = {
  active: ["dot", "running", "now"],
  waiting: ["hand", "needs you", "ask"],
  terminated: ["check", "done", "good"],
  truncated: ["cut", "truncated", "warn"],
  cancelled: ["stop", "stopped", "dim"],
  interrupted: ["pause", "interrupted", "warn"],
  quarantined: ["pause", "quarantined", "bad"],
  idle: ["ring", "idle", "dim"],
  failed: ["cross", "failed", "bad"],
  crashed: ["cross", "crashed", "bad"],
  forgotten: ["ring", "forgotten", "dim"],
  up: ["dot", "up", "good"],
  starting: ["ring", "starting", "now"],
  ending: ["stop", "ending", "dim"],
  restarting: ["again", "restarting", "warn"],
  stopped: ["stop", "stopped", "dim"],
};
export const standing = (state) => STANDING[state] ?? ["cross", plain(String(state).replaceAll("_", " ")), "bad"];
export const standingOf = (entity) =>
  standing(entity.interrupted ? (entity.quarantine ? "quarantined" : "interrupted") : entity.state);
export const pill = ([shape, word, tone]) => h("span", { class: `pill ${tone}` }, sign(shape), word);

// ------------------------------------------------------------------------------------------------------------- numbers

export const number = (n) =>
  n < 1e4 ? Math.round(n).toLocaleString("en") : n < 1e6 ? `${(n / 1e3).toFixed(1)}k` : `${(n / 1e6).toFixed(2)}M`;
export const money = (n) => (n && Number.isFinite(n) ? `$${n < 0.01 ? n.toPrecision(1) : n.toFixed(2)}` : "");
export const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;
export const span = (s) => {
  if (s < 1) return `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
};
export const ago = (at) => {
  const s = (Date.now() - at) / 1000;
  return s < 1 ? "now" : s < 60 ? `${Math.floor(s)} s` : span(s);
};
// Each format is made once: making one takes longer than a row of a list may.
const format = (options) => new Intl.DateTimeFormat("en-GB", options);
const CLOCK = format({ timeStyle: "medium" }),
  SHORT_CLOCK = format({ timeStyle: "short" }),
  WHOLE = format({ dateStyle: "full", timeStyle: "medium" });
const DAY = { weekday: "long", day: "numeric", month: "long" },
  DATE = { day: "numeric", month: "short" };
const DAYS = [format({ ...DAY, year: "numeric" }), format(DAY)],
  DATES = [format({ ...DATE, year: "numeric" }), format(DATE)];
/** @param {Intl.DateTimeFormat[]} formats the one for other years, and the one for this year */
const inYear = ([other, same], date) => (date.getFullYear() === new Date().getFullYear() ? same : other).format(date);
const midnight = (daysAgo) => {
  const now = new Date();
  return new Date(now.getFullYear(), now.getMonth(), now.getDate() - daysAgo).getTime();
};
const isToday = (at) => at >= midnight(0) && at < midnight(-1);
export const clock = (at) => CLOCK.format(at);
// The day of a moment: "Today", "Yesterday", "Thursday 26 November".
export const day = (at) =>
  isToday(at) ? "Today" : at >= midnight(1) && at < midnight(0) ? "Yesterday" : inYear(DAYS, new Date(at));
// A moment: the time of a moment of today, with its date if it was on another day.
export const moment = (at) => (isToday(at) ? clock(at) : `${inYear(DATES, new Date(at))}, ${SHORT_CLOCK.format(at)}`);
export const time = (at) =>
  h("time", { class: "dim", datetime: new Date(at).toISOString(), title: WHOLE.format(at) }, moment(at));
export const short = (id) => String(id).slice(-8);

// --------------------------------------------------------------------------------------------------------------- texts

const LONG = 4000;
// A long text is cut, and a click shows the rest.
export const cut = (text, show, most = LONG) => {
  const made = show(text.slice(0, most));
  if (text.length <= most) return [made];
  return [made, more(`Show all ${number(text.length)} characters`, () => made.replaceWith(show(text)))];
};
export const code = (text) => cut(text, (part) => write(h("pre", { dir: "auto", tabindex: "0" }), part));
// Arguments: a row for each, its value as JSON, so that a text cannot look like another argument; a long one
// is cut by itself.
const SHORT = 300,
  MANY = 60;
export const values = (args, most = MANY) => {
  const pairs = Object.entries(args ?? {});
  const row = ([name, value]) => {
    const text = JSON.stringify(value) ?? "";
    const show = (part) => write(h("pre", { dir: "auto", tabindex: "0" }), part, ODD_IN_VALUES);
    const shown =
      text.length <= SHORT
        ? write(h("dd", { dir: "auto" }), text, ODD_IN_VALUES)
        : h("dd", null, cut(typeof value === "object" ? asText(value) : text, show, SHORT));
    return h("div", null, h("dt", { dir: "auto" }, plain(name)), shown);
  };
  const list = h("dl", { class: "values" }, pairs.slice(0, most).map(row));
  if (pairs.length <= most) return pairs.length ? [list] : [h("p", { class: "dim" }, "without arguments")];
  return [list, more(`Show all ${number(pairs.length)} arguments`, () => list.append(...pairs.slice(most).map(row)))];
};
export const asText = (value) => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? ""));

// Only pictures that are in the page's own data, and only after a click.
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
export const picture = (image) => {
  const label = plain(image.filename ?? image.media_type ?? "file");
  if (/^https?:/.test(image.url ?? "")) return h("p", { class: "dim" }, plain(image.url));
  if (!PICTURE.test(image.url ?? "")) return h("p", { class: "dim" }, `${label}, ${number(image.size ?? 0)} bytes`);
  const show = button(
    { class: "more picture", onclick: () => show.replaceWith(h("img", { src: image.url, alt: label })) },
    `Show the image (${label})`,
  );
  return show;
};

// ----------------------------------------------------------------------------------------------------------- sparkline

export const sparkline = (series, label) => {
  const top = Math.max(...series, 1);
  const points = series.map(
    (value, at) => `${(at * 60) / Math.max(1, series.length - 1)},${(15 - (value / top) * 13).toFixed(1)}`,
  );
  return svg(
    "svg",
    {
      class: series.some(Boolean) ? "spark" : "spark flat",
      viewBox: "0 0 60 16",
      width: 60,
      height: 16,
      role: "img",
      "aria-label": label,
    },
    svg("polyline", { points: points.join(" "), fill: "none" }),
  );
};
