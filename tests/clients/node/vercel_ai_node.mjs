// Vercel's AI SDK with its provider for OpenAI-compatible servers.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

import { API_KEY, MODEL, QUESTION, URL, assert, check, run } from "./checks.mjs";

const provider = createOpenAICompatible({
  name: "spotwise",
  baseURL: `${URL}/v1`,
  apiKey: API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const short = { model: provider(MODEL), prompt: QUESTION, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const Capital = z.object({ name: z.enum(["Paris", "Rome"]), is_large: z.boolean() });

const weather = tool({
  description: "Look up the weather of a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  execute: async ({ city }) => ({ city, degrees: 21 }),
});
const oneCall = { providerOptions: { spotwise: { parallel_tool_calls: false } } };
const withTools = { ...short, ...oneCall, prompt: "Is it warm in Paris?", tools: { weather } };
// The first step calls, the second answers.
const twoSteps = {
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
};

check("generateText", async () => {
  const result = await generateText({ ...short, system: "Be brief." });
  assert.ok(result.text);
  assert.equal(result.finishReason, "stop");
  assert.ok(result.usage.outputTokens > 0);
  assert.deepEqual(result.warnings, []);
});

check("streamText", async () => {
  const result = streamText(short);
  const parts = [];
  for await (const part of result.textStream) parts.push(part);
  assert.ok(parts.length > 3);
  assert.match(parts.join(""), /Paris/);
  assert.equal(await result.finishReason, "stop");
  assert.ok((await result.usage).outputTokens > 3);
});

check("generateObject", async () => {
  const result = await generateObject({ ...short, schema: Capital });
  assert.ok(Capital.safeParse(result.object).success);
  assert.deepEqual(result.warnings, []);
});

check("streamObject", async () => {
  const result = streamObject({ ...short, schema: Capital });
  let partials = 0;
  for await (const _ of result.partialObjectStream) partials += 1;
  assert.ok(partials > 1);
  assert.ok(Capital.safeParse(await result.object).success);
});

check("Output.object", async () => {
  const result = await generateText({ ...short, output: Output.object({ schema: Capital }) });
  assert.ok(Capital.safeParse(result.output).success);
});

check("tools", async () => {
  const result = await generateText({ ...withTools, toolChoice: { type: "tool", toolName: "weather" } });
  assert.equal(result.toolCalls[0].toolName, "weather");
  assert.equal(result.toolResults[0].output.degrees, 21);
  assert.equal(result.toolResults[0].toolCallId, result.toolCalls[0].toolCallId);
});

check("tools_in_steps", async () => {
  const result = await generateText({ ...withTools, ...twoSteps });
  assert.deepEqual(result.steps.map((step) => step.toolCalls.length), [1, 0]);
  assert.ok(result.text);
});

check("tools_in_a_stream", async () => {
  const result = streamText({ ...withTools, ...twoSteps });
  const kinds = [];
  for await (const part of result.fullStream) kinds.push(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result", "text-delta"])
    assert.ok(kinds.includes(kind), kind);
  assert.equal(kinds.filter((kind) => kind === "finish-step").length, 2);
});

check("exceptions", async () => {
  await assert.rejects(generateText({ ...short, temperature: 9 }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /temperature/);
    assert.equal(error.isRetryable, false);
    return true;
  });
});

check("abortSignal", async () => {
  const abortSignal = AbortSignal.timeout(300);
  const long = { ...short, maxOutputTokens: 4000, providerOptions: { spotwise: { ignore_eos: true } } };
  await assert.rejects(generateText({ ...long, abortSignal }), { name: "TimeoutError" });
});

await run("ai", "@ai-sdk/openai-compatible");
