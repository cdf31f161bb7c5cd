"use strict";
// What the live page and the exported page share. Whatever entities say becomes text nodes, and attributes of a fixed list:
// no markup is ever parsed. The exported page has this text before its own program, without the word "export".

const ATTRIBUTES = new Set(["accept", "alt", "autocomplete", "checked", "class", "colspan", "cols", "d", "datetime", "dir", "disabled", "fill", "for",
  "height", "hidden", "href", "id", "loading", "maxlength", "name", "open", "placeholder", "points", "rel", "required", "role", "rows",
  "multiple", "selected", "spellcheck", "src", "start", "step", "tabindex", "target", "title", "type", "value", "viewBox", "width"]);

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
const ODD = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]|\r(?!\n)/gu;
export const plain = (text) => String(text ?? "").slice(0, 500).replace(ODD, "\ufffd").replace(/\s+/g, " ").trim();
export const write = (into, text) => {
  let done = 0;
  for (const match of text.matchAll(ODD)) {
    const code = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    into.append(text.slice(done, match.index), h("span", { class: "odd", title: code }, code));
    done = match.index + match[0].length;
  }
  into.append(text.slice(done));
  return into;
};
