// An exported page has no server. It carries answers, and for its one text the arrays from which the others follow.

/** @typedef {{shape: number[], data: Float32Array}} Floats */
/**
 * @typedef {object} Carried
 * @property {Record<string, unknown>} answers
 * @property {string} trace the id of the text that it carries whole
 * @property {number} n_head
 * @property {number[]} scales what scores are multiplied with, for each block
 * @property {Floats[]} streams between the blocks, (T, C) each
 * @property {Record<string, Floats>[]} layers the steps within each block
 */

/** @param {Floats} array @param {number} row @returns {number[]} a row of (T, C) */
function row({ shape, data }, row) {
  const width = shape[shape.length - 1];
  return Array.from(data.subarray(row * width, (row + 1) * width));
}

/** @param {Floats} array @param {number} head @returns {number[][]} the (T, D) of one head of (H, T, D) */
function ofHead({ shape, data }, head) {
  const [, tokens, width] = shape;
  const start = head * tokens * width;
  return Array.from({ length: tokens }, (_, t) => Array.from(data.subarray(start + t * width, start + (t + 1) * width)));
}

/** @param {number[]} a @param {number[]} b */
function dot(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}

/** @param {number[]} scores */
function softmax(scores) {
  const most = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - most));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

/** @param {Carried} carried @param {number} layer @param {number} head @param {number} token */
function headAnswer(carried, layer, head, token) {
  const steps = carried.layers[layer];
  const [q, k, v] = [steps.q, steps.k, steps.v].map((array) => ofHead(array, head));
  const scores = k.map((key) => dot(q[token], key));
  const scaled = scores.map((score) => score * carried.scales[layer]);
  const seen = softmax(scaled.slice(0, token + 1));
  const merged = row(steps.merged, token);
  const width = merged.length / carried.n_head;
  return {
    x: row(carried.streams[layer], token),
    ln_1: row(steps.ln_1, token),
    q: q[token],
    k,
    v,
    scores,
    scaled,
    masked: scaled.map((score, t) => (t > token ? null : score)),
    weights: scaled.map((_, t) => seen[t] ?? 0),
    unmasked: softmax(scaled),
    z: merged.slice(head * width, (head + 1) * width),
    merged,
    projected: row(steps.projected, token),
    x_mid: row(steps.x_mid, token),
  };
}

/** @param {Carried} carried @param {number} layer @param {number} token */
function mlpAnswer(carried, layer, token) {
  const steps = carried.layers[layer];
  const names = ["x_mid", "ln_2", "pre", "post", "out"];
  const found = Object.fromEntries(names.map((name) => [name, row(steps[name], token)]));
  return { ...found, x_out: row(carried.streams[layer + 1], token) };
}

/** @param {Carried} carried @param {number} layer */
function patternsAnswer(carried, layer) {
  const { q, k } = carried.layers[layer];
  const [heads, tokens] = q.shape;
  const data = new Uint8Array(heads * tokens * tokens);
  for (let head = 0; head < heads; head++) {
    const [queries, keys] = [ofHead(q, head), ofHead(k, head)];
    queries.forEach((query, t) => {
      const weights = softmax(keys.slice(0, t + 1).map((key) => dot(query, key) * carried.scales[layer]));
      data.set(weights.map((weight) => Math.round(255 * weight)), (head * tokens + t) * tokens);
    });
  }
  return { weights: { shape: [heads, tokens, tokens], data } };
}

/**
 * The answer to a question, or undefined if the file does not hold it.
 * @param {Carried} carried
 * @param {string} key
 */
export function answer(carried, key) {
  if (Object.hasOwn(carried.answers, key)) return carried.answers[key];
  const found = /^\/trace\/(\w+)\/(head|mlp|patterns)\?(.*)$/.exec(key);
  if (!found || found[1] !== carried.trace) return undefined;
  const asked = new URLSearchParams(found[3]);
  const [layer, head, token] = ["layer", "head", "token"].map((name) => Number(asked.get(name)));
  if (found[2] === "patterns") return patternsAnswer(carried, layer);
  return found[2] === "mlp" ? mlpAnswer(carried, layer, token) : headAnswer(carried, layer, head, token);
}
