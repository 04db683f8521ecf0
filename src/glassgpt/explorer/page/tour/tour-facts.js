// The numbers of the guided tour: those of the page's own text and model, found once for each trace.

import { api } from "../state/api.js";
import { wordAt } from "../draw/attention-row.js";
import { Sampler } from "../next/sampling.js";
import { store } from "../state/store.js";

const KINDS = ["previous", "first", "self"];

/** The token at which step 6 shows how weights come about: not the last, where the mask has nothing to strike out. @param {Trace} trace */
export const tokenInNumbers = ({ tokens }) => Math.max(0, tokens.length - 3);

/** @type {{id: string, facts: Promise<TourFacts>} | null} */
let known = null;

/** @returns {Promise<TourFacts>} */
export function tourFacts() {
  const trace = /** @type {Trace} */ (store.trace);
  if (known?.id !== trace.id) {
    const facts = find(trace);
    known = { id: trace.id, facts };
    facts.catch(() => (known = null)); // it may be asked for again
  }
  return known.facts;
}

/** @param {Trace} trace @returns {Promise<TourFacts>} */
async function find(trace) {
  const config = /** @type {ModelConfig} */ (store.config);
  const last = trace.tokens.length - 1;
  const [salientHeads, embedding, { logits }, { texts }, tally] = await Promise.all([
    api.get(`/trace/${trace.id}/salient-heads?position=${last}`),
    api.get(`/trace/${trace.id}/embedding?position=${last}`),
    api.get(`/trace/${trace.id}/next?position=${last}`),
    api.get(`/vocabulary?model=${trace.model}`),
    api.get(`/tally?model=${trace.model}`),
  ]);
  const { layer, head } = salientHeads.best ?? { layer: Math.min(1, config.n_layer - 1), head: 0 };
  const kinds = KINDS.filter((kind) => salientHeads.kinds[kind]).map((kind) => ({ kind, ...salientHeads.kinds[kind] }));
  const weightsAt = async (/** @type {number} */ position) =>
    (await api.get(`/trace/${trace.id}/head?layer=${layer}&head=${head}&position=${position}`))["attn.weights"];
  const [mlp, weights, weightsInNumbers, pattern, ...patterns] = await Promise.all([
    api.get(`/trace/${trace.id}/mlp?layer=${layer}&position=${last}`),
    weightsAt(last),
    weightsAt(tokenInNumbers(trace)),
    patternOf(trace, layer, head),
    ...kinds.map((kind) => patternOf(trace, kind.layer, kind.head)),
  ]);
  const sampler = new Sampler(logits.data);
  return {
    trace, config, salientHeads, layer, head, embedding, mlp, tally, pattern,
    gradients: store.info?.methods?.includes("input_x_gradient") ?? true,
    parameters: store.info?.models[trace.model]?.parameters ?? tally.total,
    weights, weightsInNumbers, // a pattern's are bytes: good enough for colors only
    examples: [...kinds.map(({ kind, layer, head }, i) => ({ name: `${layer}.${head}`, kind, pattern: patterns[i] })),
      { name: `${layer}.${head}`, kind: "far", pattern }],
    next: Array.from({ length: Math.min(5, sampler.size) }, (_, rank) =>
      ({ text: texts[sampler.order[rank]], logit: sampler.values[rank], p: sampler.plain[rank] })),
  };
}

/** @param {Trace} trace @param {number} layer @param {number} head @returns {Promise<number[][]>} (T, T) */
async function patternOf(trace, layer, head) {
  const { "attn.weights": { data } } = await api.get(`/trace/${trace.id}/patterns?layer=${layer}`);
  const count = trace.tokens.length;
  return Array.from({ length: count }, (_, query) => Array.from(data.subarray((head * count + query) * count, (head * count + query + 1) * count),
    (weight) => weight / 255));
}

/** The word that the tour's head looks back at, and how much. @param {TourFacts} facts */
export function lookedAt({ salientHeads, trace, weights }) {
  const { best } = salientHeads;
  if (!best) return null;
  return { word: wordAt(trace, best.first, best.last), parts: weights.slice(best.first, best.last + 1), share: best.share,
    from: wordAt(trace, salientHeads.position) };
}
