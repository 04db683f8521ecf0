// Run by test_page_sampling.py, which writes what the Python sampler says of the same rows into $CASES.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const { Sampler, ranked, uniform } = await import(process.env.SAMPLING);
const { rows, uniforms } = JSON.parse(readFileSync(process.env.CASES, "utf8"));

test("tokens, probabilities and draws are those of the Python sampler", () => {
  for (const { logits, cases } of rows) {
    const sampler = new Sampler(new Float32Array(logits.map((x) => x ?? -Infinity)));
    for (const { params, ids, probabilities, draws } of cases) {
      sampler.apply(params);
      assert.equal(sampler.kept, ids.length, JSON.stringify(params));
      assert.deepEqual([...sampler.order.subarray(0, sampler.kept)], ids);
      probabilities.forEach((p, rank) => assert.ok(Math.abs(sampler.probability(rank) - p) < 1e-12));
      assert.equal(sampler.probability(sampler.kept), 0);
      for (const [u, token] of draws) assert.equal(sampler.order[sampler.draw(u)], token, JSON.stringify(params));
    }
  }
});

test("each filter says how much it left", () => {
  const sampler = new Sampler(new Float32Array([0.5, 0.2, 0.15, 0.1, 0.05].map(Math.log)));
  sampler.apply({ temperature: 1, topK: 4, topP: 0.8, minP: 0.35 });
  assert.deepEqual(sampler.cuts.map((cut) => cut.count), [5, 4, 3, 2]);
  [1, 0.95, 0.85, 0.7].forEach((mass, i) => assert.ok(Math.abs(sampler.cuts[i].mass - mass) < 1e-6));
  assert.ok(Math.abs(sampler.plain.reduce((a, b) => a + b) - 1) < 1e-12);
});

test("settings leave no trace: the same params give the same numbers again", () => {
  const sampler = new Sampler(new Float32Array(rows[0].logits.map((x) => x ?? -Infinity)));
  const all = { temperature: 1, topK: null, topP: null, minP: null };
  const before = [...sampler.apply(all).weight];
  sampler.apply({ temperature: 0, topK: 3, topP: 0.5, minP: 0.5 });
  assert.deepEqual([...sampler.apply(all).weight], before);
  assert.equal(sampler.kept, rows[0].logits.filter((x) => x !== null).length);
});

test("equal logits are ranked by id, and -0 equals 0", () => {
  assert.deepEqual([...ranked(new Float32Array([0, 2, -0, 2, -1, -Infinity, 7e-42]))], [1, 3, 6, 0, 2, 4, 5]);
});

test("random numbers are numpy's", () => {
  for (const { seed, values } of uniforms) {
    values.forEach((value, step) => assert.equal(uniform(BigInt(seed), step), value));
  }
});
