// What a next token's logit comes from: the methods of inspect/attribution that need no gradients.
import { dot } from "./model/arrays.js";

/** @typedef {import("./model/trace.js").Trace} Trace */

/** Attention, averaged over heads and multiplied through all layers, with 1/2 for the residual connection. @param {Trace} trace @param {number} target @param {number} position */
export function attentionRollout(trace, target, position) {
  const T = trace.length;
  const { n_layer, n_head } = trace.model.config;
  let rolled = new Float64Array(T);
  rolled[position] = 1;
  for (let layer = n_layer - 1; layer >= 0; layer--) {
    const weights = trace.attention(layer);
    const next = new Float64Array(T);
    for (let i = 0; i < T; i++) {
      if (rolled[i] === 0) continue;
      for (let head = 0; head < n_head; head++) {
        const start = (head * T + i) * T;
        for (let j = 0; j <= i; j++) next[j] += (rolled[i] * weights[start + j]) / n_head;
      }
    }
    rolled = rolled.map((x, i) => (x + next[i]) / 2);
  }
  return { scores: Array.from(rolled), convergence_delta: null, logit: trace.logitsAt(position)[target] };
}

/** All that is written to the residual stream, through ln_f and onto the target's row of the head. @param {Trace} trace @param {number} target @param {number} position */
export function directLogitAttribution(trace, target, position) {
  const { model } = trace;
  const { n_layer, n_head, n_embd: C, d_head: D, layer_norm_epsilon } = model.config;
  const at = (/** @type {Float32Array} */ x) => x.subarray(position * C, (position + 1) * C);
  const final = at(/** @type {Float32Array} */ (trace.residuals().at(-1)));
  const mean = final.reduce((sum, x) => sum + x, 0) / C;
  const scale = 1 / Math.sqrt(final.reduce((sum, x) => sum + (x - mean) ** 2, 0) / C + layer_norm_epsilon);
  const row = model.output(-1, "lm_head.weight", target);
  const vector = (/** @type {string} */ name) => /** @type {Float32Array} */ (model.vectors.get(name));
  const weight = vector("ln_f.weight");
  const direction = Float64Array.from(weight, (x, i) => x * row[i] * scale);
  const middle = direction.reduce((sum, x) => sum + x, 0) / C; // ln_f subtracts the mean of what it reads
  direction.forEach((x, i) => (direction[i] = x - middle));
  /** @type {number[][]} */
  const heads = [];
  const mlps = [];
  let biases = dot(vector("ln_f.bias"), row);
  for (let layer = 0; layer < n_layer; layer++) {
    const { "attn.z": z, "mlp.proj": mlp } = trace.block(layer, ["attn.z", "mlp.proj"]);
    const perInput = new Float64Array(C); // what each number of the merged heads adds to the logit
    for (let out = 0; out < C; out++) {
      const column = model.output(layer, "attn.c_proj.weight", out);
      for (let i = 0; i < C; i++) perInput[i] += column[i] * direction[out];
    }
    heads.push(Array.from({ length: n_head }, (_, head) => {
      const start = (head * trace.length + position) * D;
      return dot(z.data.subarray(start, start + D), perInput.subarray(head * D, (head + 1) * D));
    }));
    biases += dot(vector(`h.${layer}.attn.c_proj.bias`), direction);
    mlps.push(dot(at(mlp.data), direction));
  }
  const embedding = dot(at(trace.residuals()[0]), direction);
  const total = embedding + biases + heads.flat().reduce((a, b) => a + b, 0) + mlps.reduce((a, b) => a + b, 0);
  return { embedding, heads, mlps, biases, total, logit: trace.logitsAt(position)[target] };
}
