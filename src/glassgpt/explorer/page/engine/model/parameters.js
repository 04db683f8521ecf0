// The tensors of a model, counted, and the tokens that its neurons read and write (inspect/parameters).
import { largest } from "./arrays.js";
import { countParameters, shapesOf } from "./config.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{meanings: Record<string, string>, illustrated: any[], illustrated_total: number, published_total: number, examples: Record<string, any[]>}} Facts what a site knows from Python, so that it is written once */

const FLOAT_BYTES = 4;
const TOKENS = 5;

/** Every tensor, and the table of GPT-2 small from The Illustrated GPT-2. @param {import("./config.js").Config} config @param {Facts} facts */
export function tallyOf(config, facts) {
  const rows = [...shapesOf(config)].map(([name, shape]) => {
    const found = /^h\.(\d+)\.(.+)$/.exec(name);
    const short = found ? found[2] : name;
    return { name, short, block: found ? Number(found[1]) : null, meaning: facts.meanings[short], shape, count: shape.reduce((a, b) => a * b, 1) };
  });
  const { illustrated, illustrated_total, published_total } = facts;
  return {
    rows, total: countParameters(config), per_block: rows.filter(({ block }) => block === 0).reduce((sum, { count }) => sum + count, 0),
    cache_bytes_per_token: 2 * config.n_layer * config.n_embd * FLOAT_BYTES, illustrated, illustrated_total, published_total,
  };
}

/**
 * The tokens that excite each neuron most, and those it makes more likely: the same in every text.
 * @param {Model} model @param {number} layer @param {number[]} neurons @returns {Map<number, [number[], number[]]>}
 */
export function neuronTokens(model, layer, neurons) {
  const known = (/** @type {number} */ neuron) => model.neurons.get(`${layer}.${neuron}`);
  const missing = neurons.filter((neuron) => !known(neuron));
  if (missing.length) {
    const { n_embd: C, tie_word_embeddings: tied } = model.config;
    const vector = (/** @type {string} */ name) => /** @type {Float32Array} */ (model.vectors.get(name));
    const [gain, final] = [vector(`h.${layer}.ln_2.weight`), vector("ln_f.weight")];
    const read = new Float32Array(missing.length * C);
    const write = new Float32Array(missing.length * C);
    missing.forEach((neuron, i) => read.set(centered(model.output(layer, "mlp.c_fc.weight", neuron).map((x, c) => x * gain[c])), i * C));
    for (let c = 0; c < C; c++) {
      const column = model.output(layer, "mlp.c_proj.weight", c);
      missing.forEach((neuron, i) => (write[i * C + c] = column[neuron] * final[c]));
    }
    const reads = topRows(model, read, "wte.weight");
    const writes = topRows(model, write, tied ? "wte.weight" : "lm_head.weight");
    missing.forEach((neuron, i) => model.neurons.set(`${layer}.${neuron}`, [reads[i], writes[i]]));
  }
  return new Map(neurons.map((neuron) => [neuron, /** @type {[number[], number[]]} */ (known(neuron))]));
}

/** LayerNorm subtracts the mean of its input, so that the mean of a direction is never seen. @param {Float32Array} x */
function centered(x) {
  const mean = x.reduce((sum, one) => sum + one, 0) / x.length;
  return x.map((one) => one - mean);
}

/** The tokens whose rows of a table have the largest products with each vector. @param {Model} model @param {Float32Array} vectors @param {string} table */
function topRows(model, vectors, table) {
  const scores = model.logits(vectors, table);
  return Array.from({ length: scores.length / model.size }, (_, i) => largest(scores.subarray(i * model.size, (i + 1) * model.size), Math.min(TOKENS, model.size)));
}
