// @ts-check
// A request to a person: what it is about, and the form that decides it. The pane of requests and the timeline
// both show it.

import { attachButton, attached } from "./attach.js";
import { asText, button, form, h, onEnter, plain, setText, values, write } from "./dom.js";

export const nameOf = (one) =>
  one.is_utterance
    ? "Reply"
    : one.kind === "question"
      ? "Question"
      : one.kind === "deferred"
        ? `Result of ${plain(one.gate)}`
        : `Approve ${plain(one.gate)}?`;

// Append a request to its card. `can` says what the token allows, `act.decide` sends the decision.
export function askPerson(card, one, { can, act }) {
  const may = can("approve");
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const fail = (text) => {
    error.hidden = false;
    setText(error, text);
  };
  const send = (body) => act.decide(one, body).catch((problem) => fail(problem.message));
  if (one.kind === "question")
    card.append(write(h("p", { class: "what", dir: "auto" }), one.text ?? ""), may ? answerForm(one, send) : "", error);
  else if (one.kind === "deferred")
    card.append(
      h("p", { class: "what" }, "waits for the result of ", write(h("code", { class: "gate" }), one.gate)),
      ...values(one.args),
      may ? resultForm(send) : "",
      error,
    );
  else
    card.append(
      one.text ? write(h("p", { class: "why", dir: "auto" }), one.text) : "",
      h("p", { class: "what" }, write(h("code", { class: "gate" }), one.gate)),
      ...approval(card, one, may, send, fail),
      error,
    );
}

function answerForm(one, send) {
  const word = one.is_utterance ? "reply" : "answer",
    files = one.is_utterance ? attachButton() : null;
  const answer = h("textarea", { rows: "2", "aria-label": `Your ${word}`, placeholder: `Your ${word}` });
  const made = form(
    async () => send({ answer: parsed(answer.value, one.schema), ...(files ? await attached(files.files()) : {}) }),
    answer,
    h(
      "div",
      { class: "row2" },
      files ? files.node : "",
      h("button", { class: "main" }, one.is_utterance ? "Reply" : "Answer"),
      button({ onclick: () => send({ decision: "deny" }) }, "Decline"),
    ),
  );
  if (one.is_utterance) onEnter(answer, () => made.requestSubmit());
  return made;
}

function resultForm(send) {
  const result = h("textarea", { rows: "2", "aria-label": "Its result", placeholder: "Its result: text or JSON" });
  return form(
    () => send({ result: parsed(result.value, { type: "any" }) }),
    result,
    h(
      "div",
      { class: "row2" },
      h("button", { class: "main" }, "Deliver"),
      button({ onclick: () => send({ error: result.value || "no result can be had" }) }, "It failed"),
    ),
  );
}

function approval(card, one, may, send, fail) {
  const args = asText(one.args),
    shown = h("div", null, values(one.args));
  if (!may) return [shown];
  const note = h("input", {
    type: "text",
    "aria-label": "Note",
    placeholder: "Note, for the entity and the loom",
    autocomplete: "off",
  });
  const always = h("input", { type: "checkbox" });
  const edit = h("textarea", {
    rows: String(Math.min(12, args.split("\n").length + 1)),
    "aria-label": "Arguments as JSON",
    spellcheck: "false",
    hidden: true,
  });
  const change = button(
    {
      class: "link",
      onclick: () => {
        edit.hidden = !edit.hidden;
        shown.hidden = !edit.hidden;
        edit.value = args;
        setText(change, edit.hidden ? "Edit arguments" : "Keep arguments");
        if (!edit.hidden) edit.focus();
      },
    },
    "Edit arguments",
  );
  card.allow = () => {
    let changed;
    try {
      changed = edit.hidden ? undefined : JSON.parse(edit.value);
    } catch (problem) {
      fail(`The arguments are no JSON: ${problem.message}`);
      return;
    }
    send({
      decision: "allow",
      note: note.value,
      ...(changed ? { args: changed } : {}),
      ...(always.checked ? { remember: "entity" } : {}),
    });
  };
  card.deny = () => note.focus();
  const deny = () => send({ decision: "deny", note: note.value });
  onEnter(note, deny);
  return [
    shown,
    edit,
    h(
      "div",
      { class: "form" },
      h("div", { class: "between" }, change, h("label", { class: "tick" }, always, "always, for this entity")),
      note,
      h(
        "div",
        { class: "row2" },
        button({ class: "main", onclick: card.allow }, "Approve"),
        button({ class: "danger", onclick: deny }, "Deny"),
      ),
    ),
  ];
}

// An answer as its schema wants it: text stays text, everything else is JSON.
function parsed(text, schema) {
  if (!schema?.type || schema.type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
