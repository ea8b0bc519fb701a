// OpenAI's client for Node: the calls and the helpers of its documentation.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import { API_KEY, MODEL, QUESTION, TIMEOUT_MS, URL, assert, check, run } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: API_KEY, maxRetries: 0, timeout: TIMEOUT_MS });
const short = { model: MODEL, messages: [{ role: "user", content: QUESTION }], temperature: 0, max_tokens: 200 };

const Weather = z.object({
  city: z.enum(["Paris", "Rome"]),
  is_cold: z.boolean(),
  days: z.array(z.object({ name: z.enum(["Monday", "Tuesday"]), degrees: z.int().min(-40).max(60) })).min(1).max(2),
});

const City = z.object({ city: z.enum(["Paris", "Rome"]) });
const withTools = {
  ...short,
  messages: [{ role: "user", content: "Is it warm in Paris?" }],
  tools: [zodFunction({ name: "get_weather", description: "Look up the weather of a city.", parameters: City })],
  tool_choice: { type: "function", function: { name: "get_weather" } },
  parallel_tool_calls: false,
};

check("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes(MODEL));
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
});

check("chat", async () => {
  const { data: answer, request_id } = await client.chat.completions.create(short).withResponse();
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.equal(request_id, answer.id);
});

check("stream", async () => {
  const whole = await client.chat.completions.create(short);
  const stream = await client.chat.completions.create({ ...short, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

check("stream_helper", async () => {
  const deltas = [];
  const stream = client.chat.completions.stream(short).on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas.join(""), final.choices[0].message.content);
  assert.ok(deltas.length > 3);
});

check("parse", async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const answer = await client.chat.completions.parse({ ...short, response_format });
  assert.ok(Weather.safeParse(answer.choices[0].message.parsed).success);
});

check("parse_in_a_stream", async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const final = await client.chat.completions.stream({ ...short, response_format }).finalChatCompletion();
  assert.ok(Weather.safeParse(final.choices[0].message.parsed).success);
});

check("choices_and_logprobs", async () => {
  const answer = await client.chat.completions.create({ ...short, max_tokens: 16, temperature: 1, n: 2, seed: 7, logprobs: true, top_logprobs: 2 });
  assert.equal(answer.choices.length, 2);
  const scored = answer.choices.flatMap((choice) => choice.logprobs.content);
  assert.equal(scored.length, answer.usage.completion_tokens);
});

check("completions", async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "One, two, three,", max_tokens: 4, temperature: 0 });
  assert.match(answer.choices[0].text, /four/);
  assert.equal(answer.choices[0].finish_reason, "length");
});

check("tools", async () => {
  const answer = await client.chat.completions.create(withTools);
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
  const result = { role: "tool", tool_call_id: call.id, content: "21 degrees" };
  const messages = [...withTools.messages, answer.choices[0].message, result];
  const last = await client.chat.completions.create({ ...withTools, messages, tool_choice: "none" });
  assert.ok(last.choices[0].message.content);
});

check("tools_in_a_stream", async () => {
  const deltas = [];
  const stream = client.chat.completions.stream(withTools).on("tool_calls.function.arguments.delta", (event) => deltas.push(event));
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(deltas.map((event) => event.arguments_delta).join(""), call.function.arguments);
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
});

check("runTools", async () => {
  const asked = [];
  const run = (input) => {
    asked.push(input.city);
    return "21 degrees";
  };
  const tool = zodFunction({ name: "get_weather", parameters: City, function: run });
  const runner = client.chat.completions.runTools({ ...withTools, tools: [tool] });
  await runner.done();
  assert.equal(asked.length, 1);
  assert.equal(runner.messages.at(-1).content, "21 degrees");
});

check("exceptions", async () => {
  await assert.rejects(client.chat.completions.create({ ...short, model: "nothing" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...short, temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.param, error.type], ["temperature", "invalid_request_error"]);
    assert.ok(error.requestID);
    return true;
  });
});

check("timeout", async () => {
  const long = { ...short, max_tokens: 1000, ignore_eos: true };
  await assert.rejects(client.chat.completions.create(long, { timeout: 300 }), OpenAI.APIConnectionTimeoutError);
});

check("aborted_stream", async () => {
  const stream = await client.chat.completions.create({ ...short, max_tokens: 1000, ignore_eos: true, stream: true });
  let id;
  for await (const chunk of stream) {
    id = chunk.id;
    break; // the client aborts the request
  }
  const deadline = Date.now() + 10_000;
  for (;;) {
    const { state } = await client.get(`/requests/${id}`);
    if (state === "cancelled") break;
    assert.ok(Date.now() < deadline, state);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
});

await run("openai");
