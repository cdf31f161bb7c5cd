// Try the clients of JavaScript. Runs with the packages of .clients/node_modules, in that folder.
//
// Each trial is one feature of one client, and fails with an error. A line of JSON says how each went.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
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
const City = z.object({ city: z.string() });

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
  assert(JSON.parse((await openai.chat.completions.create(asked)).choices[0].message.content).lines);
});

trial("openai (JS)", "client tools", async () => {
  const call = {
    type: "function",
    function: { name: "temperature", parameters: z.toJSONSchema(City), parse: JSON.parse, function: () => "3" },
  };
  const messages = [{ role: "user", content: "call temperature Oslo" }];
  const runner = openai.chat.completions.runTools({ model: "assistant", messages, tools: [call] });
  assert.equal(await runner.finalContent(), "It said: 3");
});

trial("openai (JS)", "models", async () => {
  const ids = [];
  for await (const model of openai.models.list()) ids.push(model.id);
  assert(ids.includes("assistant"));
});

trial("openai (JS)", "errors", async () => {
  await assert.rejects(openai.chat.completions.create({ model: "nobody", messages: hello }), OpenAI.NotFoundError);
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
  const [model] = both("assistant");
  const { output } = await generateText({ model, prompt: "hi", output: Output.object({ schema: Rhyme }), maxRetries: 0 });
  assert(output.lines);
});

trial("AI SDK", "client tools", async () => {
  const temperature = tool({ description: "The temperature", inputSchema: City, execute: () => 3 });
  for (const model of both("assistant")) {
    const asked = { model, prompt: "call temperature Oslo", tools: { temperature }, stopWhen: stepCountIs(3), maxRetries: 0 };
    assert.equal((await generateText(asked)).text, "It said: 3");
  }
});

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
