// The answers about a trace, each as explorer/routes/trace.py makes it.
import { klDivergence, largest, list, lists, logSoftmax, rankOf, rowOf, softmax } from "./model/arrays.js";
import { neuronTokens } from "./model/parameters.js";
import { below, invalid } from "./request.js";
import { splitIntoWords } from "./text/words.js";

/** @typedef {import("./model/model.js").Model} Model */
/** @typedef {import("./model/trace.js").Trace} Trace */

export const LENS_TOP = 5;
const CANDIDATES = 10;
const TOP_CHANGES = 10;
const NEURONS = 8;
const MAX_ROWS = 16;
const MAX_ALL_PATTERNS = 256;

/** The steps of a block that each answer has. */
const HEAD_STEPS = ["attn.q", "attn.k", "attn.v", "attn.scores", "attn.scaled", "attn.masked", "attn.weights", "attn.z"];
const ATTENTION_STEPS = ["ln_1", "attn.merged", "attn.proj", "resid_mid"];
const MLP_STEPS = ["resid_mid", "ln_2", "mlp.fc", "mlp.gelu", "mlp.proj", "resid_post"];

/** @param {Model} model @param {Int32Array} ids @param {ArrayLike<number>} p @param {number} n columns @param {number} k of each cell */
export function lensJSON(model, ids, p, n, k) {
  const rows = ids.length / (n * k);
  const some = (/** @type {ArrayLike<number>} */ values) => Array.from({ length: rows }, (_, layer) => Array.from({ length: n }, (_, i) => values[(layer * n + i) * k]));
  const first = some(ids);
  return { ids: first, texts: first.map((row) => row.map((id) => model.text(id))), p: some(p) };
}

/** What the page needs of a trace when it opens. @param {{id: string, trace: Trace, number: number}} found */
export function traceJSON({ id, trace, number: which }) {
  const { model, ids } = trace;
  const { words, ofToken } = splitIntoWords(model, ids);
  const k = Math.min(LENS_TOP, model.size);
  const lens = trace.wholeLens(k);
  return {
    id, model: which, checkpoint: null, text: model.decode(ids),
    tokens: ids.map((token, i) => ({ id: token, text: model.text(token), bytes: [...model.bytesOf(token)], word: ofToken[i] })),
    words, token_loss: trace.tokenLoss().slice(), lens: lensJSON(model, lens.ids, lens.p, ids.length, k), norms: trace.norms(),
  };
}

/** The patterns of a block, (H, T, T), or of a short text's whole model, (L, H, T, T), as bytes. @param {Trace} trace @param {number | null} layer */
export function patternsJSON(trace, layer) {
  const { n_layer, n_head } = trace.model.config;
  const T = trace.length;
  if (layer === null && T > MAX_ALL_PATTERNS) throw invalid(`layer: name one; this text has more than ${MAX_ALL_PATTERNS} tokens.`, "layer");
  const layers = layer === null ? Array.from({ length: n_layer }, (_, i) => i) : [layer];
  const data = new Uint8Array(layers.length * n_head * T * T);
  layers.forEach((each, i) => data.set(Uint8Array.from(trace.attention(each), (x) => roundToEven(x * 255)), i * n_head * T * T));
  return { "attn.weights": { shape: layer === null ? [n_layer, n_head, T, T] : [n_head, T, T], data } };
}

/** @param {number} x */
function roundToEven(x) {
  const below = Math.floor(x);
  const rest = x - below;
  return rest > 0.5 || (rest === 0.5 && below % 2) ? below + 1 : below;
}

/** @param {Trace} trace @param {number} position */
export function embeddingJSON(trace, position) {
  const C = trace.model.config.n_embd;
  return Object.fromEntries(["wpe", "wte", "embedding"].map((step) => [step, list(rowOf(trace.step(step).data, position, C))]));
}

/** The five most likely tokens of every cell of a column, and ranks of tokens in all layers. @param {Trace} trace @param {number} position @param {number | null} token @param {boolean} all */
export function lensColumnJSON(trace, position, token, all) {
  const { model } = trace;
  const k = Math.min(LENS_TOP, model.size);
  const { ids, p } = trace.wholeLens(k);
  const layers = trace.residuals().length;
  const column = (/** @type {ArrayLike<number>} */ values) => Array.from({ length: layers }, (_, layer) => Array.from({ length: k }, (_, i) => values[(layer * trace.length + position) * k + i]));
  const top = column(ids);
  const tokens = all ? [...new Set(top.flat())] : token === null ? [] : [token];
  const ranks = Object.fromEntries(tokens.map((each) => [each, /** @type {number[]} */ ([])]));
  if (tokens.length) {
    const C = model.config.n_embd;
    for (let layer = 0; layer < layers; layer++) {
      const vector = rowOf(trace.residuals()[layer], position, C);
      const logits = layer === layers - 1 ? trace.logitsAt(position) : model.logits(model.finalNorm(vector));
      for (const each of tokens) ranks[each].push(rankOf(logits, each));
    }
  }
  return { ids: top, texts: top.map((row) => row.map((id) => model.text(id))), p: column(p), ranks };
}

/** One head of a step, (T, T) or (T, D). @param {import("./model/trace.js").Floats} floats @param {number} head @returns {import("./model/trace.js").Floats} */
function ofHead({ shape, data }, head) {
  const [, rows, columns] = shape;
  return { shape: [rows, columns], data: data.slice(head * rows * columns, (head + 1) * rows * columns) };
}

/** @param {Trace} trace @param {number} layer @param {number} head */
export function scoresJSON(trace, layer, head) {
  const steps = trace.block(layer, ["attn.q", "attn.k", "attn.scores", "attn.scaled"]);
  return Object.fromEntries(Object.entries(steps).map(([step, floats]) => [step, ofHead(floats, head)]));
}

/** The most active neurons of a block at a position. @param {Trace} trace @param {number} layer @param {number} position */
export function neuronsJSON(trace, layer, position) {
  const { model } = trace;
  const { data } = trace.block(layer, ["mlp.gelu"])["mlp.gelu"];
  const M = model.config.d_mlp;
  const neurons = largest(rowOf(data, position, M).map(Math.abs), NEURONS);
  const known = neuronTokens(model, layer, neurons);
  return {
    neurons: neurons.map((neuron) => {
      const [reads, writes] = /** @type {[number[], number[]]} */ (known.get(neuron));
      return { neuron, reads: reads.map((id) => model.text(id)), writes: writes.map((id) => model.text(id)), activations: Array.from({ length: trace.length }, (_, t) => data[t * M + neuron]) };
    }),
  };
}

/** @param {Trace} trace @param {number} position @param {string[]} asked */
export function finalJSON(trace, position, asked) {
  const { model } = trace;
  if (asked.length > MAX_ROWS) throw invalid(`token: ${asked.length} items are over the limit of ${MAX_ROWS}.`, "token");
  const tokens = asked.length ? asked.map((text) => below("token", Number(text), model.size)) : largest(trace.logitsAt(position), CANDIDATES);
  return { ln_f: list(rowOf(trace.finals(), position, model.config.n_embd)), tokens, rows: tokens.map((token) => list(model.output(-1, "lm_head.weight", token))) };
}

/** One head at one position, from the block's input to `resid_mid`. @param {Trace} trace @param {number} layer @param {number} head @param {number} position */
export function headJSON(trace, layer, head, position) {
  const C = trace.model.config.n_embd;
  const found = trace.block(layer, [...HEAD_STEPS, ...ATTENTION_STEPS]);
  /** @type {Record<string, any>} */
  const steps = { resid_pre: list(rowOf(trace.residuals()[layer], position, C)) };
  for (const step of ATTENTION_STEPS) steps[step] = list(rowOf(found[step].data, position, C));
  for (const step of HEAD_STEPS) {
    const { shape, data } = ofHead(found[step], head);
    steps[step] = step === "attn.k" || step === "attn.v" ? lists(data, shape[1]) : list(rowOf(data, position, shape[1]));
  }
  steps.unmasked = list(softmax(steps["attn.scaled"]));
  return steps;
}

/** @param {Trace} trace @param {number} layer @param {number} position */
export function mlpJSON(trace, layer, position) {
  const found = trace.block(layer, MLP_STEPS);
  return Object.fromEntries(MLP_STEPS.map((step) => [step, list(rowOf(found[step].data, position, found[step].shape[1]))]));
}

/** @param {Trace} before @param {Trace} after @param {number} position */
export function nextTokenJSON(before, after, position) {
  const { model } = before;
  const [p, q] = [before, after].map((trace) => logSoftmax(trace.logitsAt(position)));
  const [was, is] = [p, q].map((logs) => logs.map(Math.exp));
  const change = was.map((x, i) => Math.abs(Math.fround(x) - Math.fround(is[i])));
  const order = largest(change, TOP_CHANGES).filter((id) => change[id] > 0);
  return {
    logits: { shape: [model.size], data: after.logitsAt(position).slice() },
    kl: klDivergence(p, q),
    changes: order.map((id) => ({ id, text: model.text(id), before: was[id], after: is[id] })),
  };
}

/** KL(first || second) of the next-token distributions at every position. @param {Trace} first @param {Trace} second */
export function klPerToken(first, second) {
  const C = [first, second].map(({ model }) => model.config.n_embd);
  const rows = (/** @type {Trace} */ trace, /** @type {number} */ i, /** @type {number} */ position) => logSoftmax(trace.model.logits(trace.finals().subarray(position * C[i], (position + 1) * C[i])));
  return Array.from({ length: first.length }, (_, position) => klDivergence(rows(first, 0, position), rows(second, 1, position)));
}
