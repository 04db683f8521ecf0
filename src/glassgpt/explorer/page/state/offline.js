// An exported page has no server: it has a bundle of responses, and the activations to compute the others from.

/** @typedef {{shape: number[], data: Float32Array}} Floats */
/**
 * @typedef {object} Bundle
 * @property {Record<string, unknown>} responses by request key
 * @property {string} trace the id of its trace
 * @property {number} n_head
 * @property {number[]} scales the factor of the attention scores, for each block
 * @property {Floats} wte the rows of the token table, (T, C)
 * @property {Floats} wpe the rows of the position table
 * @property {Floats[]} residual the residual stream between blocks, (T, C) each
 * @property {Record<string, Floats>[]} layers the steps of each block, by the names of inspect/taps.py
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

/** @param {Bundle} bundle @param {number} layer @param {number} head @param {number} token */
function headResponse(bundle, layer, head, token) {
  const steps = bundle.layers[layer];
  const [q, k, v] = [steps["attn.q"], steps["attn.k"], steps["attn.v"]].map((array) => ofHead(array, head));
  const scores = k.map((key) => dot(q[token], key));
  const scaled = scores.map((score) => score * bundle.scales[layer]);
  const seen = softmax(scaled.slice(0, token + 1));
  const merged = row(steps["attn.merged"], token);
  const width = merged.length / bundle.n_head;
  return {
    resid_pre: row(bundle.residual[layer], token),
    ln_1: row(steps.ln_1, token),
    "attn.q": q[token],
    "attn.k": k,
    "attn.v": v,
    "attn.scores": scores,
    "attn.scaled": scaled,
    "attn.masked": scaled.map((score, t) => (t > token ? null : score)),
    "attn.weights": scaled.map((_, t) => seen[t] ?? 0),
    unmasked: softmax(scaled),
    "attn.z": merged.slice(head * width, (head + 1) * width),
    "attn.merged": merged,
    "attn.proj": row(steps["attn.proj"], token),
    resid_mid: row(steps.resid_mid, token),
  };
}

/** @param {Bundle} bundle @param {number} layer @param {number} token */
function mlpResponse(bundle, layer, token) {
  const steps = bundle.layers[layer];
  const names = ["resid_mid", "ln_2", "mlp.fc", "mlp.gelu", "mlp.proj"];
  const found = Object.fromEntries(names.map((name) => [name, row(steps[name], token)]));
  return { ...found, resid_post: row(bundle.residual[layer + 1], token) };
}

/** @param {Bundle} bundle @param {number} layer */
function patternsResponse(bundle, layer) {
  const { "attn.q": q, "attn.k": k } = bundle.layers[layer];
  const [heads, tokens] = q.shape;
  const data = new Uint8Array(heads * tokens * tokens);
  for (let head = 0; head < heads; head++) {
    const [queries, keys] = [ofHead(q, head), ofHead(k, head)];
    queries.forEach((query, t) => {
      const weights = softmax(keys.slice(0, t + 1).map((key) => dot(query, key) * bundle.scales[layer]));
      data.set(weights.map((weight) => Math.round(255 * weight)), (head * tokens + t) * tokens);
    });
  }
  return { "attn.weights": { shape: [heads, tokens, tokens], data } };
}

/** A head's scores for all pairs, from its queries and keys. @param {Bundle} bundle @param {number} layer @param {number} head */
function scoresResponse(bundle, layer, head) {
  const steps = bundle.layers[layer];
  const [q, k] = [steps["attn.q"], steps["attn.k"]].map((array) => ofHead(array, head));
  const scores = q.flatMap((query) => k.map((key) => dot(query, key)));
  const square = (/** @type {number[]} */ data) => ({ shape: [q.length, q.length], data: Float32Array.from(data) });
  const part = (/** @type {number[][]} */ rows) => ({ shape: [rows.length, rows[0].length], data: Float32Array.from(rows.flat()) });
  return { "attn.q": part(q), "attn.k": part(k), "attn.scores": square(scores), "attn.scaled": square(scores.map((score) => score * bundle.scales[layer])) };
}

/**
 * The neurons that are most active at a token. What they read and write would need the token table.
 * @param {Bundle} bundle @param {number} layer @param {number} token
 */
function neuronsResponse(bundle, layer, token) {
  const gelu = bundle.layers[layer]["mlp.gelu"];
  const here = row(gelu, token);
  const order = here.map((_, neuron) => neuron).sort((a, b) => Math.abs(here[b]) - Math.abs(here[a]));
  const activations = (/** @type {number} */ neuron) => Array.from({ length: gelu.shape[0] }, (_, t) => gelu.data[t * gelu.shape[1] + neuron]);
  return { neurons: order.slice(0, 8).map((neuron) => ({ neuron, reads: [], writes: [], activations: activations(neuron) })) };
}

/**
 * The response to a request, or undefined if it is not in the bundle.
 * @param {Bundle} bundle
 * @param {string} key
 */
export function respond(bundle, key) {
  if (Object.hasOwn(bundle.responses, key)) return bundle.responses[key];
  const found = /^\/trace\/(\w+)\/(head|mlp|patterns|scores|neurons|embedding)\?(.*)$/.exec(key);
  if (!found || found[1] !== bundle.trace) return undefined;
  const asked = new URLSearchParams(found[3]);
  const [layer, head, token] = ["layer", "head", "position"].map((name) => Number(asked.get(name)));
  if (found[2] === "patterns") return patternsResponse(bundle, layer);
  if (found[2] === "scores") return scoresResponse(bundle, layer, head);
  if (found[2] === "neurons") return neuronsResponse(bundle, layer, token);
  if (found[2] === "embedding") return { wte: row(bundle.wte, token), wpe: row(bundle.wpe, token), embedding: row(bundle.residual[0], token) };
  return found[2] === "mlp" ? mlpResponse(bundle, layer, token) : headResponse(bundle, layer, head, token);
}
