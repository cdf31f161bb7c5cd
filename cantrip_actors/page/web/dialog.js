// @ts-check
// Dialogs: a heading, fields, and an action that closes the dialog once it is done.

import { $, button, form, h, onEnter, setText } from "./dom.js";

/**
 * @param {{ heading: string, text?: string, inside?: any[], fields?: any[], action?: string, tone?: string,
 *   work?: (values: any) => any }} settings
 */
export function ask({ heading, text, inside = [], fields = [], action, tone = "main", work }) {
  const dialog = $("dialog");
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const read = (node) =>
    node.type === "checkbox" ? node.checked : node.type === "file" ? [...node.files] : node.value;
  const submit = async () => {
    try {
      await work?.(Object.fromEntries(fields.map((one) => [one.name, read(one.node)])));
      dialog.close();
    } catch (problem) {
      error.hidden = false;
      setText(error, problem.message);
    }
  };
  const made = form(
    submit,
    h("h2", { id: "dialog-title" }, heading),
    text ? h("p", null, text) : "",
    inside.length ? h("div", { class: "calls" }, inside) : "",
    fields.map((one) =>
      h(
        "label",
        { class: one.node.type === "checkbox" ? "tick" : "field" },
        one.node.type === "checkbox" ? [one.node, one.label] : [one.label, one.node],
      ),
    ),
    error,
    h(
      "div",
      { class: "row2" },
      action ? h("button", { class: tone }, action) : "",
      button({ onclick: () => dialog.close() }, action ? "Cancel" : "Close"),
    ),
  );
  for (const { node } of fields) if (node.tagName === "TEXTAREA") onEnter(node, () => made.requestSubmit());
  dialog.replaceChildren(made);
  dialog.showModal();
  (fields[0]?.node ?? made.querySelector(`.row2 button:${tone === "danger" ? "last" : "first"}-child`)).focus();
  return made;
}
export const area = (hint) => h("textarea", { rows: "3", placeholder: hint });
export const field = (hint) =>
  h("input", { type: "text", placeholder: hint, autocomplete: "off", spellcheck: "false" });
