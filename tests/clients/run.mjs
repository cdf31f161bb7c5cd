// Try the clients of JavaScript. Runs with the packages of .clients/node_modules, in that folder.
//
// Each trial is one feature of one client, and fails with an error. A line of JSON says how each went.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import {
  AbstractChat,
  DefaultChatTransport,
  generateObject,
  generateText,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  Output,
  stepCountIs,
  streamObject,
  streamText,
  tool,
} from "ai";
import { HttpAgent } from "@ag-ui/client";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { z } from "zod";

const { SERVICE_URL: url, SERVICE_TOKEN: token } = process.env;
const v1 = `${url}/v1`;
const trials = [];
const trial = (client, feature, work) => trials.push({ client, feature, work });
const hello = [{ role: "user", content: "hello" }];
const picture =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
const bill = { total: 3, items: ["tea"] };
const Invoice = z.object({ total: z.number().int(), items: z.array(z.string()) });
const Rhyme = z.object({ lines: z.array(z.string()) });
const rose = { lines: ["A rose", "is a rose"] };
const City = z.object({ city: z.string() });

/** Decide, as a person, the request that the text of an answer names. */
const allow = async text => {
  const [, request] = /`cantrip requests (\S+)`/.exec(text);
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const answer = await fetch(`${url}/api/v1/requests/${request}`, { method: "POST", headers, body: '{"decision": "allow"}' });
  assert.ok(answer.ok);
};

// openai

const openai = new OpenAI({ baseURL: v1, apiKey: token, maxRetries: 0 });
const format = schema => ({ type: "json_schema", json_schema: { name: "x", strict: true, schema: z.toJSONSchema(schema) } });

trial("openai (JS)", "answer", async () => {
  const chat = await openai.chat.completions.create({ model: "assistant", messages: hello });
  assert.equal(chat.choices[0].message.content, "you said: hello");
  const response = await openai.responses.create({ model: "assistant", input: "hello" });
  assert.equal(response.output_text, "you said: hello");
});

trial("openai (JS)", "stream", async () => {
  const stream = openai.chat.completions.stream({ model: "assistant", messages: hello });
  assert.equal(await stream.finalContent(), "you said: hello");
  const response = await openai.responses.stream({ model: "assistant", input: "hello" }).finalResponse();
  assert.equal(response.output_text, "you said: hello");
});

trial("openai (JS)", "conversation", async () => {
  const first = await openai.responses.create({ model: "assistant", input: "one" });
  const next = { model: "assistant", input: "recall", previous_response_id: first.id };
  assert.match((await openai.responses.create(next)).output_text, /you said: one/);
});

trial("openai (JS)", "people", async () => {
  const waits = await openai.responses.stream({ model: "assistant", input: "pay 3" }).finalResponse();
  await allow(waits.output_text);
  const input = [{ role: "user", content: "pay 3" }, ...waits.output, { role: "user", content: "continue" }];
  assert.equal((await openai.responses.create({ model: "assistant", input })).output_text, "It said: paid 3");
});

trial("openai (JS)", "pictures", async () => {
  const content = [{ type: "text", text: "look" }, { type: "image_url", image_url: { url: picture } }];
  const chat = await openai.chat.completions.create({ model: "assistant", messages: [{ role: "user", content }] });
  assert.equal(chat.choices[0].message.content, "I see 1 picture.");
});

trial("openai (JS)", "own form", async () => {
  const asked = { model: "invoice", messages: hello, response_format: format(Invoice) };
  const chat = await openai.chat.completions.parse(asked);
  assert.deepEqual(JSON.parse(chat.choices[0].message.content), bill);
});

trial("openai (JS)", "any form", async () => {
  const asked = { model: "assistant", messages: hello, response_format: format(Rhyme) };
  assert.deepEqual(JSON.parse((await openai.chat.completions.create(asked)).choices[0].message.content), rose);
  assert.deepEqual(JSON.parse(await openai.chat.completions.stream(asked).finalContent()), rose);
});

trial("openai (JS)", "client tools", async () => {
  const call = {
    type: "function",
    function: { name: "temperature", parameters: z.toJSONSchema(City), parse: JSON.parse, function: () => "3" },
  };
  const messages = [{ role: "user", content: "call temperature Oslo" }];
  const runner = openai.chat.completions.runTools({ model: "assistant", messages, tools: [call] });
  assert.equal(await runner.finalContent(), "It said: 3");
  const streaming = openai.chat.completions.runTools({ model: "assistant", messages, tools: [call], stream: true });
  assert.equal(await streaming.finalContent(), "It said: 3");
});

trial("openai (JS)", "models", async () => {
  const ids = [];
  for await (const model of openai.models.list()) ids.push(model.id);
  assert(ids.includes("assistant"));
});

trial("openai (JS)", "errors", async () => {
  await assert.rejects(openai.chat.completions.create({ model: "nobody", messages: hello }), OpenAI.NotFoundError);
});

// @anthropic-ai/sdk, with the token and the betas as Claude Code sends them

const anthropic = new Anthropic({ baseURL: url, apiKey: null, authToken: token, maxRetries: 0 });
const betas = ["claude-code-20250219", "interleaved-thinking-2025-05-14"];
const prompt = { model: "assistant", max_tokens: 100, messages: hello };
const system = [{ type: "text", text: "You are a coder.", cache_control: { type: "ephemeral" } }];

trial("anthropic (JS)", "answer", async () => {
  const { content } = await anthropic.messages.create(prompt);
  assert.deepEqual(content.map(block => block.text), ["you said: hello"]);
});

trial("anthropic (JS)", "stream", async () => {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const asked = { ...prompt, system, thinking, betas, metadata: { user_id: "anna" } };
  const message = await anthropic.beta.messages.stream(asked).finalMessage();
  assert.match(message.content.at(-1).text, /^you said: /);
  assert.equal(message.usage.output_tokens, 3);
});

trial("anthropic (JS)", "people", async () => {
  const messages = [{ role: "user", content: "pay 3" }];
  const waits = await anthropic.messages.create({ ...prompt, messages });
  await allow(waits.content.at(-1).text);
  messages.push({ role: "assistant", content: waits.content }, { role: "user", content: "continue" });
  assert.equal((await anthropic.messages.create({ ...prompt, messages })).content[0].text, "It said: paid 3");
});

trial("anthropic (JS)", "own form", async () => {
  const asked = { ...prompt, model: "invoice", output_config: { format: { type: "json_schema", schema: z.toJSONSchema(Invoice) } } };
  assert.deepEqual(JSON.parse((await anthropic.messages.create(asked)).content[0].text), bill);
});

trial("anthropic (JS)", "client tools", async () => {
  const tools = [{ name: "temperature", input_schema: z.toJSONSchema(City) }];
  const messages = [{ role: "user", content: "call temperature Oslo" }];
  const message = await anthropic.messages.create({ ...prompt, messages, tools });
  assert.equal(message.stop_reason, "tool_use");
  const content = [{ type: "tool_result", tool_use_id: message.content.at(-1).id, content: [{ type: "text", text: "3" }] }];
  messages.push({ role: "assistant", content: message.content }, { role: "user", content });
  const { content: answer } = await anthropic.messages.stream({ ...prompt, messages, tools }).finalMessage();
  assert.equal(answer[0].text, "It said: 3");
});

trial("anthropic (JS)", "models", async () => {
  const ids = [];
  for await (const model of anthropic.beta.models.list({ limit: 100 })) ids.push(model.id);
  assert(ids.includes("assistant"));
});

trial("anthropic (JS)", "tokens", async () => {
  const { input_tokens } = await anthropic.beta.messages.countTokens({ model: "assistant", messages: hello, system, betas });
  assert(input_tokens > 5);
});

trial("anthropic (JS)", "errors", async () => {
  await assert.rejects(anthropic.messages.create({ ...prompt, model: "nobody" }), Anthropic.NotFoundError);
});

// Vercel's AI SDK, as a client of OpenAI's API

const vercel = createOpenAI({ baseURL: v1, apiKey: token });
const both = name => [vercel.chat(name), vercel.responses(name)];

trial("AI SDK", "answer", async () => {
  for (const model of both("assistant"))
    assert.equal((await generateText({ model, prompt: "hello", maxRetries: 0 })).text, "you said: hello");
});

trial("AI SDK", "stream", async () => {
  for (const model of both("assistant"))
    assert.equal(await streamText({ model, prompt: "hello", maxRetries: 0 }).text, "you said: hello");
});

trial("AI SDK", "conversation", async () => {
  const messages = [{ role: "user", content: "one" }, { role: "assistant", content: "two" }, { role: "user", content: "recall" }];
  for (const model of both("assistant")) assert.match((await generateText({ model, messages, maxRetries: 0 })).text, /two/);
});

trial("AI SDK", "pictures", async () => {
  const content = [{ type: "text", text: "look" }, { type: "image", image: picture }];
  for (const model of both("assistant")) {
    const { text } = await generateText({ model, messages: [{ role: "user", content }], maxRetries: 0 });
    assert.equal(text, "I see 1 picture.");
  }
});

trial("AI SDK", "own form", async () => {
  for (const model of both("invoice")) {
    const { output } = await generateText({ model, prompt: "bill", output: Output.object({ schema: Invoice }), maxRetries: 0 });
    assert.deepEqual(output, bill);
  }
});

trial("AI SDK", "any form", async () => {
  for (const model of both("assistant")) {
    const asked = { model, prompt: "hi", maxRetries: 0 };
    assert.deepEqual((await generateText({ ...asked, output: Output.object({ schema: Rhyme }) })).output, rose);
    assert.deepEqual((await generateObject({ ...asked, schema: Rhyme })).object, rose);
    const parts = [];
    for await (const part of streamObject({ ...asked, schema: Rhyme }).partialObjectStream) parts.push(part);
    assert.deepEqual(parts.at(-1), rose);
  }
});

trial("AI SDK", "client tools", async () => {
  const temperature = tool({ description: "The temperature", inputSchema: City, execute: () => 3 });
  for (const model of both("assistant")) {
    const asked = { model, prompt: "call temperature Oslo", tools: { temperature }, stopWhen: stepCountIs(3), maxRetries: 0 };
    const parallel = { ...asked, prompt: "call temperature Oslo Rome" };
    assert.equal((await generateText(asked)).text, "It said: 3");
    assert.equal((await generateText(parallel)).text, "It said: 3");
    assert.equal((await streamText(parallel).steps).at(-1).text, "It said: 3");
    const typed = { ...asked, output: Output.object({ schema: Rhyme }) };
    assert.deepEqual((await generateText(typed)).output, rose);
  }
});

trial("AI SDK", "people", async () => {
  for (const model of both("assistant")) {
    for (const say of [generateText, streamText]) {
      const asked = [{ role: "user", content: "pay 3" }];
      const waits = await say({ model, messages: asked, maxRetries: 0 });
      await allow(await waits.text);
      const messages = [...asked, ...(await waits.response).messages, { role: "user", content: "continue" }];
      assert.equal((await generateText({ model, messages, maxRetries: 0 })).text, "It said: paid 3");
    }
  }
});

// useChat: `AbstractChat` is what every `useChat` is made of

const headers = { authorization: `Bearer ${token}` };
const finished = messages =>
  lastAssistantMessageIsCompleteWithApprovalResponses(messages) || lastAssistantMessageIsCompleteWithToolCalls(messages);

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = message => (this.messages = [...this.messages, message]);
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => (this.messages = this.messages.map((old, n) => (n === at ? message : old)));
  snapshot = value => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(name, id = crypto.randomUUID()) {
    const transport = new DefaultChatTransport({ api: `${url}/api/v1/chat/${name}`, headers });
    super({ id, transport, state: new State(), sendAutomaticallyWhen: finished });
  }
  get text() {
    return this.parts("text").map(part => part.text).join("|");
  }
  parts(type) {
    return this.lastMessage.parts.filter(part => part.type === type);
  }
  async say(text, files) {
    await this.sendMessage({ text, files });
    assert.equal(this.error, undefined);
  }
  async settle() {
    for (let n = 0; n < 500 && (n < 5 || this.status !== "ready"); n++) await new Promise(done => setTimeout(done, 20));
    assert.equal(this.error, undefined);
  }
}

trial("useChat", "stream", async () => {
  const chat = new Chat("assistant");
  await chat.say("hello");
  assert.equal(chat.text, "you said: hello");
});

trial("useChat", "conversation", async () => {
  const chat = new Chat("assistant");
  await chat.say("one");
  await chat.say("recall");
  assert.match(chat.text, /you said: one/);
  assert.equal(chat.messages.length, 4);
  await chat.regenerate();
  assert.match(chat.text, /you said: one/);
  assert.equal(chat.messages.length, 4);
});

trial("useChat", "pictures", async () => {
  const chat = new Chat("assistant");
  await chat.say("look", [{ type: "file", mediaType: "image/png", url: picture }]);
  assert.equal(chat.text, "I see 1 picture.");
});

trial("useChat", "gates", async () => {
  const chat = new Chat("assistant");
  await chat.say("weather Oslo");
  assert.equal(chat.parts("reasoning")[0].text, "Which city?");
  const [call] = chat.parts("tool-weather");
  assert.deepEqual([call.state, call.input, call.output], ["output-available", { city: "Oslo" }, "sunny in Oslo"]);
  assert.equal(chat.text, "Let me look.|It said: sunny in Oslo");
});

trial("useChat", "children", async () => {
  const chat = new Chat("assistant");
  const texts = [];
  const { replaceMessage } = chat.state;
  chat.state.replaceMessage = (at, message) => {
    const call = message.parts.find(part => part.type === "tool-call_agent");
    if (call?.preliminary) texts.push(call.output.parts.map(part => part.text).join("|"));
    replaceMessage(at, message);
  };
  await chat.say("delegate hello");
  assert.equal(texts.at(-1), "you said: hello");
  const [call] = chat.parts("tool-call_agent");
  assert.deepEqual([call.output, call.preliminary], ["you said: hello", undefined]);
  assert.equal(chat.text, "I delegate.|It said: you said: hello");
});

trial("useChat", "approvals", async () => {
  for (const approved of [true, false]) {
    const chat = new Chat("assistant");
    await chat.say("pay 3");
    const [asked] = chat.parts("tool-pay");
    assert.equal(asked.state, "approval-requested");
    await chat.addToolApprovalResponse({ id: asked.approval.id, approved, reason: "why not" });
    await chat.settle();
    const [call] = chat.parts("tool-pay");
    assert.equal(call.state, approved ? "output-available" : "output-denied");
    assert.match(chat.text, approved ? /^I pay.\|It said: paid 3$/ : /why not/);
    assert.equal(chat.messages.length, 2);
  }
});

trial("useChat", "questions", async () => {
  const chat = new Chat("assistant");
  await chat.say("ask");
  const [question] = chat.parts("data-question");
  assert.equal(question.data.text, "Which one?");
  await chat.addToolOutput({ tool: "question", toolCallId: question.data.toolCallId, output: "the red one" });
  await chat.settle();
  assert.match(chat.text, /the red one/);
});

trial("useChat", "client tools", async () => {
  const chat = new Chat("assistant");
  chat.onToolCall = ({ toolCall: { toolName: tool, toolCallId } }) =>
    void chat.addToolOutput({ tool, toolCallId, output: "Oslo" });
  await chat.say("where");
  await chat.settle();
  assert.equal(chat.text, "It said: Oslo");
  assert.equal(chat.parts("tool-locate")[0].output, "Oslo");
  assert.equal(chat.messages.length, 2);
});

trial("useChat", "errors", async () => {
  const chat = new Chat("assistant");
  await chat.sendMessage({ text: "break" });
  assert.match(`${chat.error}`, /it is broken/);
  const unknown = new Chat("nobody");
  await unknown.sendMessage({ text: "hello" });
  assert.match(`${unknown.error}`, /no cantrip of this name/);
});

trial("useChat", "resume", async () => {
  const chat = new Chat("assistant");
  const said = chat.sendMessage({ text: "slow" });
  for (let n = 0; n < 500 && chat.status !== "streaming"; n++) await new Promise(done => setTimeout(done, 10));
  await chat.stop();
  await said;
  const load = async () =>
    (await (await fetch(`${url}/api/v1/chat/assistant/${chat.id}`, { headers })).json()).messages;
  const other = new Chat("assistant", chat.id); // the page was loaded again
  other.messages = await load();
  assert.deepEqual(other.messages.map(message => message.id), [chat.messages[0].id]);
  await other.resumeStream();
  assert.equal(other.error, undefined);
  assert.match(other.text, /^Let me wait.\|It said: slept$/);
  await other.resumeStream(); // nothing runs now
  assert.equal(other.messages.length, 2);
  const kinds = messages => messages.map(({ id, parts }) => [id, ...parts.map(part => [part.type, part.state, part.text])]);
  assert.deepEqual(kinds(await load()).flat(2), kinds(other.messages).flat(2));
});

const runExample = async name => {
  const { log } = console;
  const lines = [];
  console.log = line => lines.push(line);
  await import(name).finally(() => (console.log = log));
  assert.deepEqual(lines, ["you said: How many?"]);
};

trial("useChat", "example", () => runExample("./chat.mjs"));

// AG-UI

const agent = name => new HttpAgent({ url: `${url}/api/v1/ag-ui/${name}`, headers, threadId: crypto.randomUUID() });
const say = (on, text) => {
  on.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
  return on.runAgent();
};
const content = ({ newMessages }, role) =>
  newMessages.filter(message => message.role === role).map(message => message.content).join("|");

trial("AG-UI", "stream", async () => {
  assert.equal(content(await say(agent("assistant"), "hello"), "assistant"), "you said: hello");
});

trial("AG-UI", "conversation", async () => {
  const on = agent("assistant");
  await say(on, "one");
  assert.match(content(await say(on, "recall"), "assistant"), /you said: one/);
});

trial("AG-UI", "gates", async () => {
  const run = await say(agent("assistant"), "weather Oslo");
  assert.equal(content(run, "tool"), "sunny in Oslo");
  assert.match(content(run, "assistant"), /It said: sunny in Oslo/);
  assert.equal(content(run, "reasoning"), "Which city?");
});

trial("AG-UI", "children", async () => {
  const on = agent("assistant");
  const events = [];
  on.subscribe({
    onSubagentStartedEvent: ({ event }) => void events.push(event.description),
    onTextMessageContentEvent: ({ event }) => void (event.subagentRunId && events.push(event.delta)),
    onSubagentFinishedEvent: ({ event }) => void events.push(event.type),
  });
  const run = await say(on, "delegate hello");
  assert.deepEqual([events[0], events.slice(1, -1).join(""), events.at(-1)], ["hello", "you said: hello", "SUBAGENT_FINISHED"]);
  assert.equal(content(run, "tool"), "you said: hello");
});

trial("AG-UI", "approvals", async () => {
  for (const approved of [true, false]) {
    const on = agent("assistant");
    await say(on, "pay 3");
    const [{ id, reason }] = on.pendingInterrupts;
    assert.equal(reason, "tool_call");
    const payload = { approved, reason: "why not" };
    const run = await on.runAgent({ resume: [{ interruptId: id, status: "resolved", payload }] });
    assert.match(content(run, "assistant"), approved ? /It said: paid 3/ : /why not/);
  }
});

trial("AG-UI", "questions", async () => {
  const on = agent("assistant");
  await say(on, "ask");
  const [{ id, message }] = on.pendingInterrupts;
  assert.equal(message, "Which one?");
  const run = await on.runAgent({ resume: [{ interruptId: id, status: "resolved", payload: "the red one" }] });
  assert.match(content(run, "assistant"), /the red one/);
});

trial("AG-UI", "client tools", async () => {
  const on = agent("assistant");
  const [{ toolCalls }] = (await say(on, "where")).newMessages;
  assert.equal(toolCalls[0].function.name, "locate");
  on.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: toolCalls[0].id, content: "Oslo" });
  assert.match(content(await on.runAgent(), "assistant"), /It said: Oslo/);
});

trial("AG-UI", "errors", async () => {
  const on = agent("assistant");
  const errors = [];
  on.subscribe({ onRunErrorEvent: ({ event }) => void errors.push(event.message) });
  await say(on, "break").catch(() => {});
  assert.match(errors.join(), /it is broken/);
  await assert.rejects(say(agent("nobody"), "hello"), /no cantrip of this name/);
});

trial("AG-UI", "example", () => runExample("./agent.mjs"));

for (const { client, feature, work } of trials) {
  let error = "";
  try {
    await work();
  } catch (failure) {
    error = `${failure}`.slice(0, 400) || "failed";
  }
  console.log(JSON.stringify({ client, feature, error }));
}
process.exit(0);
