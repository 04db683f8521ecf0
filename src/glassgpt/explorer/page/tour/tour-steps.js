// The steps of the guided tour, in order. Each can be read alone; `values` are those of its sentences (`tour.NAME.1`
// and `.2` in the languages), `state` is what the page shows, `look` and `at` what is lit.

import { api } from "../state/api.js";
import { percent } from "../draw/draw.js";
import { large, t } from "../languages/language.js";
import { lookedAt, tokenInNumbers } from "./tour-facts.js";

/** What every step begins with, so that steps can be visited in any order. @type {Partial<State>} */
export const PLAIN = { token: -1, edits: [], play: null, part: "", mask: true, game: false, overlay: [], skipFirst: false, filter: "", sort: false,
  pattern: "matrix", step: null, temperature: 1, topK: 0, topP: 1, minP: 0, target: null, method: "input_x_gradient", pin: null };

const touch = matchMedia("(hover: none)");

/** @param {TourFacts} facts @param {(name: string) => boolean} of */
const share = ({ tally }, of) => percent(tally.rows.filter(({ name }) => of(name)).reduce((sum, row) => sum + row.count, 0) / tally.total);

/** @param {TourFacts} facts */
const here = ({ layer, head }) => ({ layer, head });

/** The most likely next word. @param {TourFacts} facts */
const word = ({ next }) => next[0].text.trim();

/** What the tour's head looks back at, as a sentence. @param {TourFacts} facts */
function example(facts) {
  const seen = lookedAt(facts);
  if (!seen) return "";
  const shares = seen.parts.map(percent).join(" + ");
  const parts = seen.parts.length > 1 ? t("tour.attention.parts", { shares, n: seen.parts.length }) : "";
  return t("tour.attention.example", { ...here(facts), from: seen.from, word: seen.word, share: percent(seen.share), parts });
}

/** @type {TourStep[]} */
export const STEPS = [
  { name: "guess", values: (facts) => ({ word: word(facts), share: percent(facts.next[0].p) }),
    state: (facts) => ({ view: "next", ...here(facts) }), look: "next", at: ".candidates" },
  { name: "tokens", values: ({ config, trace: { tokens } }) => ({ vocabulary: config.vocab_size, n: tokens.length }),
    instead: ({ trace: { tokens } }) => (tokens.length === 1 ? { "tour.tokens.1": "tour.tokens.1.one" } : {}),
    state: (facts) => ({ view: "next", token: 0, ...here(facts) }), look: "strip", at: ".chips" },
  { name: "embedding", values: ({ config }) => ({ width: config.n_embd, positions: config.n_positions }),
    state: (facts) => ({ view: "block", head: facts.head, layer: -1 }), look: "block", at: "section:not([data-stages]):not(.all-pairs)" },
  { name: "tower", values: ({ config }) => ({ layers: config.n_layer }),
    state: (facts) => ({ view: "tower", layer: facts.config.n_layer - 1, head: facts.head }), look: "tower", at: "[role=grid]" },
  { name: "attention", values: (facts) => ({ example: example(facts) }),
    state: (facts) => ({ view: "block", part: "scores", ...here(facts) }), look: "block", at: "glass-scores" },
  { name: "numbers", values: ({ config }) => ({ width: config.d_head }),
    state: (facts) => ({ view: "block", part: "attention", play: 0, token: tokenInNumbers(facts.trace), ...here(facts) }), look: "block", at: ".player" },
  { name: "mask", values: () => ({}),
    state: (facts) => ({ view: "block", part: "pairs", ...here(facts) }), look: "block", at: ".all-pairs" },
  { name: "heads", values: ({ config }) => ({ heads: config.n_head, each: config.d_head }),
    instead: () => (touch.matches ? { "tour.heads.go": "tour.heads.go.touch" } : {}),
    state: (facts) => ({ view: "heads", ...here(facts) }), look: "heads", at: ".large" },
  { name: "mlp", values: ({ config }) => ({ width: config.n_embd, wide: config.d_mlp }),
    state: (facts) => ({ view: "block", part: "mlp", ...here(facts) }), look: "block", at: "[data-stages^=ln2]" },
  { name: "logits", values: (facts) => ({ vocabulary: facts.config.vocab_size, word: word(facts), logit: facts.next[0].logit.toFixed(1) }),
    state: (facts) => ({ view: "next", ...here(facts) }), look: "next", at: ".from-vector" },
  { name: "sampling", values: () => ({}),
    state: (facts) => ({ view: "next", temperature: 0.8, topK: 40, ...here(facts) }), look: "next", at: ".next-columns" },
  { name: "cache", values: ({ trace: { tokens }, tally }) => ({ bytes: tally.cache_bytes_per_token,
      gain: t(tokens.length === 1 ? "tour.cache.gain.one" : "tour.cache.gain", { n: tokens.length }) }),
    state: (facts) => ({ view: "cache", ...here(facts) }), look: "cache", at: ".cache-figures" },
  { name: "tally", values: (facts) => ({ total: facts.tally.total, mlps: share(facts, (name) => name.includes(".mlp.")),
      attention: share(facts, (name) => name.includes(".attn.")),
      table: share(facts, (name) => name.startsWith("wte") || name.startsWith("lm_head")) }),
    state: (facts) => ({ view: "tally", ...here(facts) }), look: "tally", at: "figure" },
  { name: "why", values: (facts) => ({ word: word(facts) }),
    instead: ({ gradients }) => (gradients ? {} : { "tour.why.1": "tour.why.1.rollout", "tour.why.go": "tour.why.go.rollout" }),
    state: (facts) => ({ view: "why", ...here(facts) }), look: "why", at: ".owed" },
  { name: "family", values: ({ config, parameters }) => ({ layers: config.n_layer, parameters: large(parameters, { long: true, digits: 1 }) }),
    state: (facts) => ({ view: "family", ...here(facts) }), look: "family", at: ".branches" },
  { name: "whole", values: () => ({}), instead: () => (api.offline ? { "tour.whole.2": "tour.whole.2.file" } : {}),
    state: (facts) => ({ view: "next", ...here(facts) }), look: "strip" },
];
