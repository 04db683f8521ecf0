// Generation, token by token: the engine draws as generate/sampling/sampler.py does, with the same numbers for a seed.
import { uniform } from "../next/sampling.js";
import { shown } from "./formats/bytes.js";
import { fillCache } from "./model/trace.js";
import { UserError } from "./model/wasm.js";

/** @typedef {import("./model/model.js").Model} Model */
/** @typedef {{temperature?: number, top_k?: number | null, top_p?: number | null, min_p?: number | null, seed?: number | null, max_new_tokens?: number}} Settings */

const FILTERS = 3; // typical-p, top-p, min-p: in the order of FILTERS in generate/sampling/params.py
const LAST = 1;
const BURST = 4; // tokens whose probabilities are computed together: each then takes half the time

/** Each setting with its range, both ends included, and what it is by default. @type {[string, number, number, number | null, boolean][]} */
const RANGES = [
  ["temperature", 0, 100, 0.8, false],
  ["top_k", 1, 2 ** 31 - 1, null, true],
  ["top_p", Number.MIN_VALUE, 1, null, false],
  ["min_p", 0, 1, null, false],
  ["seed", 0, 2 ** 64, null, true],
  ["max_new_tokens", 1, 1024, 40, true],
];

/** @param {any} body @returns {Required<Settings> & {temperature: number, max_new_tokens: number}} */
function checkedSettings(body) {
  if (body.edits?.length) throw new UserError("A site generates without edits. Remove them, or use the server: glassgpt explore", 422, "edits");
  return /** @type {any} */ (Object.fromEntries(RANGES.map(([name, least, most, usual, whole]) => {
    const value = body[name] ?? usual;
    if (value !== null && (typeof value !== "number" || !(value >= least && value <= most) || (whole && !Number.isInteger(value)))) {
      throw new UserError(`${name}: ${shown(value)} is out of range.`, 422, name);
    }
    return [name, value];
  })));
}

/**
 * Tokens as events, then one that says how it ended. As on the server, tokens are drawn from logits that were rounded
 * for speed, and their probabilities are those of a trace: computed for a few tokens at a time.
 * @param {Model} model @param {number[]} prompt @param {any} body of the request
 */
export async function* generate(model, prompt, body) {
  const settings = checkedSettings(body);
  const seed = settings.seed ?? Math.floor(Math.random() * 2 ** 53);
  const positions = Math.min(prompt.length + settings.max_new_tokens, model.config.n_positions);
  const fast = model.newCache(positions, true);
  let reason = "length";
  try {
    const ids = prompt.slice();
    for (let step = 0, burst = 1; reason === "length" && step < settings.max_new_tokens && ids.length <= positions; burst = BURST) {
      const start = ids.length;
      for (let i = 0; i < burst && step < settings.max_new_tokens && ids.length <= positions; i++, step++) {
        const token = drawNext(model, fast, ids, settings, uniform(seed, step));
        if (endsText(model, token)) {
          reason = "stop";
          break;
        }
        ids.push(token);
      }
      yield* probabilities(model, ids, start, positions);
    }
  } finally {
    model.deleteCache(fast);
  }
  yield { done: true, finish_reason: reason, seed: settings.temperature === 0 ? null : seed };
}

/** @param {Model} model @param {number} token */
function endsText({ config, tokenizer }, token) {
  return config.eos_token_ids.includes(token) || token === tokenizer?.eot;
}

/** The tokens from `start` on, with their exact probabilities. @param {Model} model @param {number[]} ids @param {number} start @param {number} positions */
function* probabilities(model, ids, start, positions) {
  if (start === ids.length) return;
  const cache = fillCache(model, ids.slice(0, start - 1), positions);
  const read = ids.slice(start - 1, -1);
  const x = model.hidden(cache, start - 1, read);
  cache.ids = ids.slice(0, -1);
  const { losses } = model.readings(x, 1, ids.slice(start));
  for (let i = start; i < ids.length; i++) yield { token: ids[i], text: model.text(ids[i]), p: Math.exp(/** @type {Float64Array} */ (losses)[3 * (i - start)]) };
}

/** @param {Model} model @param {import("./model/model.js").KVCache} cache @param {number[]} ids @param {ReturnType<typeof checkedSettings>} settings @param {number} random in [0, 1) */
function drawNext(model, cache, ids, settings, random) {
  const { wasm, handle, padded, size } = model;
  const start = cache.ids.length;
  const read = ids.slice(start);
  const isGreedy = settings.temperature === 0;
  return wasm.with([16 + 4 * read.length, 4 * padded, 128, 16, 64], (numbers, logits, doubles, filters, report) => {
    wasm.ints(numbers, 3 + read.length).set([0, start, read.length, ...read]); // row, start, count, tokens
    wasm.call("forward", handle, cache.cache, 1, numbers, numbers + 4, numbers + 8, numbers + 12, LAST, logits, BigInt(padded));
    cache.ids = ids.slice();
    const topK = isGreedy ? 1 : Math.min(settings.top_k ?? size, size);
    wasm.doubles(doubles, 5).set([random, isGreedy ? 1 : settings.temperature, Infinity, settings.top_p ?? Infinity, settings.min_p ?? 0]);
    new BigInt64Array(wasm.memory.buffer, doubles + 40, 1)[0] = BigInt(topK);
    const isOn = [false, !isGreedy && settings.top_p !== null, !isGreedy && settings.min_p !== null];
    wasm.ints(filters, FILTERS).set(isOn.map((on, i) => (on ? doubles + 16 + 8 * i : 0)));
    wasm.call("draw", handle, 1, size, logits, BigInt(padded), doubles, doubles + 8, doubles + 40, FILTERS, filters, 0, 0, 0, 0, 0, 0n, -1, doubles + 48, report);
    const [token] = wasm.doubles(report, 1);
    if (token < 0) throw new UserError("No token can be drawn: the model's numbers are not finite. Get its file again.");
    return token;
  });
}
