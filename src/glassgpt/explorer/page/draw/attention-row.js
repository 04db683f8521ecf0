// What one token attends to: in the cursor's head, or in its whole block.

import { api } from "../state/api.js";
import { eventName } from "../music/music-events.js";
import { store } from "../state/store.js";

/** For longer texts the patterns are too large to load for one row; the block view's own is used. */
export const PATTERN_TOKENS = 200;

/** @param {Trace} trace @param {number} layer */
export const patternPath = (trace, layer) => `/trace/${trace.id}/patterns?layer=${layer}`;

/**
 * The attention weights of a token in the cursor's head, or the mean of its block's heads; empty while they are not loaded.
 * @param {Trace} trace @param {number} [token] @param {boolean} [mean]
 * @returns {number[]}
 */
export function attentionRow(trace, token = store.cursor.token, mean = false) {
  const { layer, head } = store.cursor;
  if (layer < 0) return [];
  const known = mean ? undefined : api.peek(`/trace/${trace.id}/head?layer=${layer}&head=${head}&position=${token}`);
  if (known) return known["attn.weights"];
  const pattern = api.peek(patternPath(trace, layer));
  if (!pattern) return [];
  const { shape, data } = pattern["attn.weights"];
  const count = trace.tokens.length;
  const heads = mean ? Array.from({ length: shape[0] }, (_, i) => i) : [head];
  return Array.from({ length: count }, (_, key) => heads.reduce((sum, one) => sum + data[(one * count + token) * count + key], 0) / (255 * heads.length));
}

/**
 * The words that a token attends to most, with their shares. @param {Trace} trace @param {number[]} weights @param {number} most
 * @returns {{text: string, share: number}[]}
 */
export function wordsAttended(trace, weights, most) {
  return trace.words
    .map(({ text, first, last }) => ({ text, share: weights.slice(first, last + 1).reduce((sum, weight) => sum + weight, 0) }))
    .sort((a, b) => b.share - a.share)
    .slice(0, most)
    .filter(({ share }) => share >= 0.01);
}

/**
 * Tokens as a reader writes them: an event by its name, and a word whole, since its tokens may be parts of letters.
 * @param {Trace} trace @param {number} first @param {number} [last]
 */
export function wordAt(trace, first, last = first) {
  const whole = trace.words.find((word) => word.first === first && word.last === last)?.text;
  const tokens = trace.tokens.slice(first, last + 1).map(({ text }) => eventName(text) ?? text);
  return (first < last && whole ? whole : tokens.join("")).trim();
}
