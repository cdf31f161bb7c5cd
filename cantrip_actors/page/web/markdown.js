// @ts-check
// Markdown as nodes. markdown-it reads it into tokens, and never writes markup: each token becomes a node of a fixed
// list, and all else is text. Definitions of links are not read, since they would hide what they say.

import "./vendor/markdown-it.js";
import { code, cut, h, plain, write } from "./dom.js";

const DEEPEST = 40; // levels of lists and quotes: what is deeper, the parser leaves out
const LONGEST = 40000; // characters: some texts take a time that grows with the square of their length

const parser = globalThis.markdownit({ html: false, linkify: true, maxNesting: DEEPEST }).disable("reference");
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

const TAGS = new Set([
  "blockquote",
  "em",
  "li",
  "ol",
  "p",
  "s",
  "strong",
  "table",
  "tbody",
  "td",
  "th",
  "thead",
  "tr",
  "ul",
]);

const webAddress = (text) => {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return url.protocol === "http:" || url.protocol === "https:" ? url : null;
};
// A link shows its host, unless its text is its address; any other scheme stays text.
const link = (token, isBare) => {
  const address = token.attrGet("href"),
    url = webAddress(address);
  if (!url) return h("span", { title: plain(address) });
  return h("a", {
    href: url.href,
    rel: "noopener noreferrer nofollow",
    target: "_blank",
    title: plain(token.attrGet("title") ?? "") || null,
    "data-host": isBare ? null : url.host,
  });
};
const endLink = (node) => {
  if (node.localName === "span") node.append(h("span", { class: "host" }, ` ${node.title}`));
  else if (node.dataset.host) node.append(h("span", { class: "host" }, ` ${node.dataset.host}`));
};
const open = (token) => {
  if (token.tag === "ol") return h("ol", { start: token.attrGet("start") ?? "1" });
  if (/^h[1-6]$/.test(token.tag)) return h("p", { class: "head", "data-level": token.tag.slice(1) });
  if (token.tag === "a") return link(token, token.info === "auto");
  if (TAGS.has(token.tag)) {
    const side = /text-align:(left|center|right)/.exec(token.attrGet("style") ?? "");
    return h(token.tag, side ? { class: side[1] } : null);
  }
  return h("span");
};

const build = (root, tokens) => {
  const stack = [root];
  for (const token of tokens) {
    const into = stack.at(-1);
    if (token.nesting === 1) {
      const node = token.hidden ? h("span") : open(token); // a tight list has no paragraphs
      into.append(
        token.tag === "table"
          ? h("div", { class: "tablebox", tabindex: "0", role: "group", "aria-label": "Table" }, node)
          : node,
      );
      stack.push(node);
    } else if (token.nesting === -1) {
      const node = stack.pop();
      if (token.type === "link_close") endLink(node);
    } else if (token.type === "inline") build(into, token.children);
    else if (token.type === "softbreak" || token.type === "hardbreak") into.append("\n");
    else if (token.type === "code_inline") into.append(write(h("code"), token.content));
    else if (token.type === "fence" || token.type === "code_block")
      into.append(...code(token.content.replace(/\n$/, "")));
    else if (token.type === "hr") into.append(h("hr"));
    else if (token.type === "image") write(into, `${token.content || "image"} (${token.attrGet("src")})`);
    else write(into, token.content);
  }
  return root;
};

const markdown = (text) => {
  const root = h("div", { class: "prose", dir: "auto" });
  if (text.length > LONGEST) return write(h("pre", { dir: "auto", tabindex: "0" }), text);
  const tokens = parser.parse(text, {});
  if (tokens.some((token) => token.level >= DEEPEST - 1)) return write(h("pre", { dir: "auto", tabindex: "0" }), text);
  return build(root, tokens);
};

// Return the nodes of a text that a model or a person wrote; a long one is cut, and a click shows the rest.
export const prose = (text) => cut(text, markdown);
