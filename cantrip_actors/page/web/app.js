// @ts-check
// The live page: it signs in, follows one event stream, and lets people act. Each action is a request; the page shows
// it when the stream reports it, and not before.

import { ActorsPane } from "./actors.js";
import { api, signIn } from "./api.js";
import { attached, fileField, parseContext } from "./attach.js";
import { Connection } from "./connection.js";
import { area, ask, field } from "./dialog.js";
import {
  $,
  button,
  form,
  h,
  linkTo,
  moment,
  money,
  number,
  plain,
  plural,
  setAttr,
  setText,
  sign,
  sparkline,
  table,
  values,
  write,
} from "./dom.js";
import { Frame, isNarrow } from "./frame.js";
import { Model, title } from "./model.js";
import { NeedsPane } from "./needs.js";

const model = new Model();
const where = (one, more = "") => `entities/${encodeURIComponent(one.id)}${more}`;
const post = (one, more, body = {}) => api("POST", where(one, more), body);
let session = { scopes: [] };
const can = (scope) => session.scopes.includes(scope);
const go = (id, turn) => {
  location.hash = linkTo(id, turn);
};

// ------------------------------------------------------------------------------------------------------------- dialogs

const KEYS = [
  ["a", "to the oldest request; again: approve"],
  ["d", "deny: write a note, then Enter"],
  ["s", "send or steer"],
  ["i", "interrupt"],
  ["f", "fork from this turn"],
  ["w", "reward this turn"],
  ["x", "stop or abandon (asks again)"],
  ["r", "to an interrupted entity; again: resume"],
  ["A D", "approve or deny all that the filter shows"],
  ["R X", "resume or abandon all that it shows"],
  ["n", "cast"],
];

const eachOf = (all, word, tone, text, work) =>
  ask({
    heading: `${word} ${plural(all.length, "entity", "entities")}?`,
    text,
    action: word,
    tone,
    work: async () => {
      for (const one of all) await work(one);
    },
  });
const act = {
  decide: (request, body) => api("POST", `requests/${encodeURIComponent(request.id)}`, body),
  decideAll: (requests, decision) =>
    ask({
      heading: `${decision === "allow" ? "Approve" : "Deny"} ${plural(requests.length, "call")}?`,
      action: decision === "allow" ? "Approve" : "Deny",
      tone: decision === "allow" ? "main" : "danger",
      inside: requests.map((one) => [write(h("code", { class: "gate" }), one.gate), ...values(one.args)]),
      fields: [{ name: "note", label: "Note", node: field("for the entities and the loom") }],
      work: async ({ note }) => {
        for (const one of requests) await act.decide(one, { decision, note });
      },
    }),
  send: async (one, text, chosen = []) => post(one, "/send", { intent: text, ...(await attached(chosen)) }),
  spending: async (one) => {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone,
      box = h("div");
    const show = async (per) => {
      const { items } = await api("GET", where(one, `/spending?per=${per}&zone=${encodeURIComponent(zone)}`));
      const row = (name, { total_tokens: tokens, cost }) => [plain(name), number(tokens), money(cost)];
      const sum = items.reduce(
        (all, { usage }) => ({ total_tokens: all.total_tokens + usage.total_tokens, cost: all.cost + usage.cost }),
        { total_tokens: 0, cost: 0 },
      );
      box.replaceChildren(
        items.length
          ? table(
              "Usage of each period",
              [per, "tokens", "cost"],
              items.toReversed().map(({ period, usage }) => row(period, usage)),
              row("all", sum),
            )
          : h("p", null, "It has used nothing yet."),
      );
    };
    const per = h(
      "select",
      { onchange: () => show(per.value) },
      ["day", "month", "intent"].map((word) => h("option", { value: word }, word)),
    );
    const dialog = ask({
      heading: `Spending of ${title(one)}`,
      text: "What it and everything below it have used, the newest first.",
      fields: [{ name: "per", label: "By", node: per }],
    });
    dialog.insertBefore(box, dialog.lastElementChild);
    await show("day");
  },
  steer: (one, text) => post(one, "/steer", { text }),
  interrupt: (one) =>
    ask({
      heading: `Interrupt ${title(one)}?`,
      text: "Its present episode ends after what is under way.",
      action: "Interrupt",
      fields: [
        { name: "why", label: "Why", node: field("interrupted") },
        { name: "now", label: "now, also in the middle of a query or a gate", node: h("input", { type: "checkbox" }) },
      ],
      work: ({ why, now }) => post(one, "/interrupt", { now, ...(why ? { why } : {}) }),
    }),
  stop: (one) => {
    const below = model.unfinishedBelow(one.id);
    ask({
      heading: `Stop ${title(one)}?`,
      text: below
        ? `This ends it for good, and ${plural(below, "entity", "entities")} below it.`
        : "This ends it for good.",
      action: below ? `Stop ${number(below + 1)} entities` : "Stop it",
      tone: "danger",
      fields: [{ name: "reason", label: "Reason", node: field("stopped") }],
      work: ({ reason }) => api("DELETE", where(one, reason ? `?reason=${encodeURIComponent(reason)}` : "")),
    });
  },
  resume: (one) =>
    post(one, "/resume").catch((problem) => ask({ heading: "It was not resumed", text: problem.message })),
  resumeAll: (all) =>
    eachOf(all, "Resume", "main", "They continue from their last records.", (one) => post(one, "/resume")),
  abandonAll: (all) => {
    const text = "This ends them for good, with everything below them.";
    eachOf(all, "Abandon", "danger", text, (one) => post(one, "/abandon"));
  },
  reward: (turn) =>
    ask({
      heading: `Reward turn ${turn.sequence}`,
      text: "A number, for those who learn from the loom; the latest counts.",
      action: "Reward",
      fields: [
        {
          name: "reward",
          label: "Reward",
          node: h("input", { type: "number", step: "any", required: true, placeholder: "1" }),
        },
      ],
      work: ({ reward }) => api("POST", `turns/${encodeURIComponent(turn.id)}/rewards`, { reward: Number(reward) }),
    }),
  abandon: (one) =>
    ask({
      heading: `Abandon ${title(one)}?`,
      text: "This ends it for good, with everything below it.",
      action: "Abandon",
      tone: "danger",
      work: () => post(one, "/abandon"),
    }),
  fork: (turn) =>
    ask({
      heading: `Fork from turn ${turn.sequence}`,
      text: "A new entity continues from this turn, with what the sandbox held then. The old one stays as it is.",
      action: "Fork",
      fields: [
        { name: "intent", label: "Intent", node: area("What should it do instead?") },
        ...(can("admin") ? [{ name: "crystal", label: "Crystal", node: field("as before") }] : []),
      ],
      work: async ({ intent, crystal }) =>
        go(
          (await api("POST", `turns/${encodeURIComponent(turn.id)}/fork`, { intent, ...(crystal ? { crystal } : {}) }))
            .entity_id,
        ),
    }),
  cast: async () => {
    const { items } = await api("GET", "cantrips");
    const select = h(
      "select",
      null,
      items.map((one) => h("option", { value: one.name }, plain(one.name))),
    );
    ask({
      heading: "Cast",
      action: "Cast",
      fields: [
        { name: "cantrip", label: "Cantrip", node: select },
        { name: "intent", label: "Intent", node: area("What should it do?") },
        { name: "name", label: "Name", node: field("none: it ends with its answer") },
        { name: "chosen", label: "Files", node: fileField() },
        { name: "context", label: "Context", node: area("Data for the entity: JSON, or text") },
      ],
      work: async ({ cantrip, intent, name, chosen, context }) =>
        go(
          (
            await api("POST", name ? "entities" : "casts", {
              cantrip,
              intent,
              ...(name ? { name } : {}),
              ...(await attached(chosen)),
              ...parseContext(context),
            })
          ).entity_id,
        ),
    });
    $("dialog").querySelector("textarea").focus();
  },
};

// --------------------------------------------------------------------------------------------------------------- panes

let frame,
  actors,
  needs,
  connection,
  older = null;
const PANES = [
  ["needs", "Needs you"],
  ["loom", "Loom"],
  ["main", "Entity"],
  ["actors", "Supervision"],
];

function welcome() {
  return h(
    "div",
    { class: "welcome" },
    h("span", { class: "sigil", "aria-hidden": "true" }, sign("star")),
    h("h1", null, "See what your agents do"),
    h(
      "p",
      null,
      "Every entity is a supervised actor, and every turn is in the loom. Pick one on the left, or cast a new one.",
    ),
    h(
      "div",
      { class: "row2" },
      can("cast") ? button({ class: "main", onclick: act.cast }, sign("plus"), "Cast") : "",
      button({ onclick: () => frame.showKeys() }, "Keys ", h("kbd", null, "?")),
    ),
  );
}

let told = "";
function totals() {
  let running = 0,
    waiting = 0;
  for (const one of model.entities.values())
    if (!one.over) {
      running += one.state === "active" ? 1 : 0;
      waiting += one.state === "waiting" ? 1 : 0;
    }
  const cost = model.costToday;
  const sum = (rate) => rate.reduce((a, b) => a + b, 0),
    turns = sum(model.turnRate),
    tokens = sum(model.tokenRate),
    restarts = sum(model.restartRate);
  const now = [running, waiting, turns, tokens, restarts, cost, model.requests.size, model.turnRate].join();
  if (now === told) return;
  told = now;
  const total = (name, value, line, tone = "") =>
    h("div", { class: tone }, h("dt", null, name), h("dd", null, value, line ?? ""));
  $("totals").replaceChildren(
    total("running", number(running), null, running ? "now" : ""),
    total("waiting", number(waiting), null, waiting ? "ask" : ""),
    total("turns/min", number(turns), sparkline(model.turnRate, "turns in the last minute")),
    total("tokens/min", number(tokens), sparkline(model.tokenRate, "tokens in the last minute")),
    total(
      "restarts/h",
      number(restarts),
      sparkline(model.restartRate, "restarts in the last hour, a minute each"),
      restarts ? "warn" : "",
    ),
    cost ? total("cost today", money(cost)) : "",
  );
  const tab = $("tabs").querySelector('[data-tab="needs"] .count');
  if (tab) setText(tab, model.requests.size ? number(model.requests.size) : "");
}

// --------------------------------------------------------------------------------------------------------- connection

let lostAt = 0;
function online() {
  lostAt = 0;
  $("lost").hidden = true;
  setText($("line"), "live");
  setAttr($("line"), "class", "on");
}
function lost() {
  if (!lostAt) {
    lostAt = Date.now();
    setText(
      $("lost"),
      `The connection was lost at ${moment(lostAt)}. What you see is from then; the page tries again.`,
    );
  }
  $("lost").hidden = false;
  setText($("line"), "not connected");
  setAttr($("line"), "class", "off");
}
async function onSnapshot(missing) {
  online();
  const since = model.heard;
  model.setRequests((await api("GET", "requests")).items, since);
  if (can("cast") && !model.limits.size) model.setLimits((await api("GET", "cantrips")).items);
  // null for a token of some cantrips
  const [overview] = await Promise.all([api("GET", "overview").catch(() => null), listEntities(null)]);
  if (overview) model.costToday = overview.totals.cost_today;
  for (const id of missing.filter((one) => !model.entities.get(one).over).slice(0, 50))
    await api("GET", where({ id }))
      .then((one) => model.add(one, since))
      .catch(() => model.set(id, { over: true }));
  if (frame.timeline.id) await frame.timeline.reload();
  else frame.route();
}
async function listEntities(cursor) {
  const since = model.heard,
    { items, next_cursor: next } = await api(
      "GET",
      `entities?limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`,
    );
  items.forEach((one) => model.add(one, since));
  if (cursor || !older) older = next;
  frame.loom.older.hidden = !older;
}

// News for screen readers: at most once a second, and never what streams.
let news = [];
const nameRequest = (one) => {
  if (one.is_utterance) return "A message";
  if (one.kind === "question") return "A question";
  return one.kind === "deferred" ? `A call of ${plain(one.gate)} without its result` : `Approval of ${plain(one.gate)}`;
};
model.onRequest = (one) => {
  news.push(`${nameRequest(one)} from ${title(model.entities.get(one.entity) ?? {})}`);
};
function announce() {
  if (!news.length) return;
  setText($("news"), news.length === 1 ? news[0] : `${news.length} new requests`);
  news = [];
}

// ---------------------------------------------------------------------------------------------------------------- keys

const actions = ({ entity, turns, turn }) => {
  /** @type {any} */
  const card = document.activeElement?.closest?.(".card.ask") ?? null;
  const running = entity && !entity.over && !entity.interrupted && ["active", "waiting"].includes(entity.state);
  /** @type {HTMLElement | null | undefined} */
  const brokenCard = document.activeElement?.closest?.(".card.broken");
  const brokenHere = brokenCard ? model.entities.get(brokenCard.dataset.entity) : entity?.interrupted ? entity : null;
  const many = (scope, all, work) => can(scope) && all.length && work(all);
  const first = (kind = ".card.ask") => {
    const next = $("needs").querySelector(kind);
    if (next) {
      frame.showTab("needs");
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  };
  const ofTurn = (work) => {
    const node = entity && (turn ?? turns.at(-1));
    if (node) work({ id: node.dataset.turn, sequence: node.dataset.sequence });
  };
  return {
    n: () => can("cast") && act.cast(),
    a: () => (card?.allow && can("approve") ? card.allow() : first()),
    d: () => (card?.deny && can("approve") ? card.deny() : first()),
    s: () => entity && frame.timeline.focusComposer(),
    i: () => running && can("steer") && act.interrupt(entity),
    x: () => can("stop") && (brokenHere ? act.abandon(brokenHere) : entity && !entity.over && act.stop(entity)),
    r: () => (brokenHere ? can("stop") && act.resume(brokenHere) : first(".card.broken")),
    f: () => {
      if (can("cast")) ofTurn(act.fork);
    },
    w: () => {
      if (can("reward")) ofTurn(act.reward);
    },
    A: () => many("approve", needs.shownRequests, (all) => act.decideAll(all, "allow")),
    D: () => many("approve", needs.shownRequests, (all) => act.decideAll(all, "deny")),
    R: () => many("stop", needs.shownBroken, act.resumeAll),
    X: () => many("stop", needs.shownBroken, act.abandonAll),
  };
};

// --------------------------------------------------------------------------------------------------------------- start

const source = {
  entity: (id) => api("GET", where({ id })),
  story: (id, range) => api("GET", where({ id }, `/story?${new URLSearchParams(range)}`)),
  search: async (query) => (await api("GET", `loom/search?${new URLSearchParams({ limit: 200, ...query })}`)).items,
  input: (turn) => api("GET", `turns/${encodeURIComponent(turn)}/input`),
};

function build() {
  if (can("cast"))
    $("tools").append(button({ class: "main", onclick: act.cast }, sign("plus"), h("span", { class: "word" }, "Cast")));
  frame = new Frame(model, source, {
    can,
    act,
    actions,
    keys: KEYS,
    tabs: PANES,
    welcome,
    name: "cantrip",
    onShow: (id) => actors.mark(id),
    onOlder: () => listEntities(older),
    onFilter: () => needs.show(),
  });
  actors = new ActorsPane($("actors"), model, {
    onSelect: (id) => {
      if (id !== frame.timeline.id) go(id);
    },
  });
  needs = new NeedsPane($("needs"), model, { can, act, onSelect: go, matches: (one) => frame.loom.matches(one) });
  model.onStory = (id, one) => frame.timeline.follow(id, one);
  model.changed.push(
    (now) => actors.show(now),
    () => needs.show(),
    totals,
  );
  $("tabs")
    .querySelector('[data-tab="needs"]')
    .append(h("span", { class: "count" }));
  frame.showTab(isNarrow() && location.hash.length < 3 ? "needs" : "main");
  connection = new Connection(model, can("observe") && !session.tenant, {
    onSnapshot: (missing) => onSnapshot(missing).catch(lost),
    onLost: lost,
  });
  connection.open();
  setInterval(() => {
    model.tick();
    announce();
    if (!document.hidden) {
      frame.loom.tree.draw();
    }
  }, 1000);
  let hiddenSince = 0; // a hidden page gives its connection back after a minute
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenSince);
    if (document.hidden)
      hiddenSince = setTimeout(() => {
        connection.close();
        hiddenSince = -1;
      }, 60000);
    else if (hiddenSince === -1) connection.open();
  });
}

function signInForm(why) {
  const token = h("input", {
    type: "password",
    "aria-label": "Token",
    placeholder: "ct_…",
    autocomplete: "off",
    required: true,
  });
  const error = h("p", { class: "error", role: "alert" }, why ?? "");
  const submit = async () => {
    try {
      session = await signIn(token.value.trim());
      document.body.classList.remove("out");
      $("main").replaceChildren();
      build();
    } catch (problem) {
      setText(error, problem.message);
    }
  };
  document.body.classList.add("out");
  const made = form(
    submit,
    h("span", { class: "sigil", "aria-hidden": "true" }, sign("star")),
    h("h1", null, "Sign in"),
    h("p", null, "Open the link that ", h("code", null, "cantrip serve"), " prints, or paste a token."),
    h("div", { class: "row2" }, token, h("button", { class: "main" }, "Sign in")),
    error,
  );
  made.classList.add("welcome");
  $("main").replaceChildren(made);
  token.focus();
}

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) history.replaceState(null, "", location.pathname);
try {
  session = await signIn(given);
  build();
} catch (error) {
  signInForm(given ? error.message : "");
}
