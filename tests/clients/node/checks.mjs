// What the programs share: named checks, which run one after the other.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export { assert };
// Base of the served API, without `/v1`, and the name of its model.
export const URL = process.env.CLIENTS_URL;
export const MODEL = process.env.CLIENTS_MODEL;
export const API_KEY = "none";
// Of one request; a busy machine takes its time.
export const TIMEOUT_MS = 300_000;
export const QUESTION = "What is the capital of France?";

const checks = [];

// Register a check; its name says what of the client it uses.
export function check(name, body) {
  checks.push([name, body]);
}

// Run the program's checks, or those named as arguments, print what became of each, and exit with 1 if one failed.
export async function run(...packages) {
  const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;
  console.log(packages.map((name) => `${name} ${version(name)}`).join(", "));
  const chosen = process.argv.slice(2);
  let failed = 0;
  for (const [name, body] of checks) {
    if (chosen.length && !chosen.includes(name)) continue;
    const began = performance.now();
    try {
      await body();
      console.log(`  ok ${name} (${((performance.now() - began) / 1000).toFixed(2)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`  FAILED ${name}`, error);
    }
  }
  process.exit(failed ? 1 : 0);
}
