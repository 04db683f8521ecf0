// The words of a text with every merge, and the heads that show most for it (explorer/traces.py, salient_heads.py).
import { pieceText } from "../formats/bytes.js";

/** @typedef {import("../model/model.js").Model} Model */
/** @typedef {import("../model/trace.js").Trace} Trace */
/** @typedef {{text: string, first: number, last: number, merges: string[][]}} PageWord */

/**
 * The words, and for each token the number of its word. Ids that were picked one by one may differ from how the text
 * would be tokenized: from there to the next special token, each token is a word of its own.
 * @param {Model} model @param {readonly number[]} ids @returns {{words: PageWord[], ofToken: number[]}}
 */
export function splitIntoWords(model, ids) {
  /** @type {PageWord[]} */
  const words = [];
  /** @type {number[]} */
  const ofToken = [];
  const add = (/** @type {string} */ text, /** @type {string[][]} */ merges, /** @type {number} */ length) => {
    const first = ofToken.length;
    for (let i = 0; i < length; i++) ofToken.push(words.length);
    words.push({ text, first, last: first + length - 1, merges });
  };
  const special = new Set(model.tokenizer?.special.values());
  while (ofToken.length < ids.length) {
    const start = ofToken.length;
    let end = start;
    while (end < ids.length && !special.has(ids[end])) end++;
    for (const word of model.tokenizer && end > start ? model.tokenizer.explain(model.decode(ids.slice(start, end))) : []) {
      const here = ofToken.length;
      if (word.ids.some((id, i) => id !== ids[here + i])) break;
      add(word.text, word.states.map((pieces) => pieces.map(pieceText)), word.ids.length);
    }
    for (const id of ids.slice(ofToken.length, end + 1)) add(model.text(id), [[model.text(id)]], 1);
  }
  return { words, ofToken };
}

/**
 * The head in which a position looks back at one word most. Not counted are the first token, where idle heads rest
 * their attention, the position's own word, and the word just before it if there are others.
 * @param {Trace} trace @param {number} position
 */
export function mostSalientHead(trace, position) {
  const { words } = splitIntoWords(trace.model, trace.ids);
  let spans = words.filter(({ first, last }) => first > 0 && last < position);
  if (spans.length > 1) spans = spans.slice(0, -1);
  const { n_layer, n_head } = trace.model.config;
  const T = trace.length;
  let best = null;
  const rows = Array.from({ length: n_layer }, (_, layer) => trace.attention(layer));
  for (const { first, last } of spans) {
    let [share, layer, head] = [-1, 0, 0];
    for (let l = 0; l < n_layer; l++) {
      for (let h = 0; h < n_head; h++) {
        let sum = 0;
        for (let t = first; t <= last; t++) sum += rows[l][(h * T + position) * T + t];
        if (sum > share) [share, layer, head] = [sum, l, h];
      }
    }
    if (best === null || share > best.share) best = { layer, head, first, last, share };
  }
  return best;
}

/** For each plain kind the head with the largest mean share, over the positions that can tell. @param {Trace} trace */
export function examplesOfKinds(trace) {
  const T = trace.length;
  const { n_layer, n_head } = trace.model.config;
  /** @type {Record<string, {layer: number, head: number, share: number}>} */
  const found = {};
  if (T < 3) return found;
  /** @type {Record<string, (row: number) => number>} */
  const kinds = { previous: (row) => row - 1, first: () => 0, self: (row) => row };
  for (let layer = 0; layer < n_layer; layer++) {
    const weights = trace.attention(layer);
    for (let head = 0; head < n_head; head++) {
      for (const [kind, column] of Object.entries(kinds)) {
        let sum = 0;
        for (let row = 2; row < T; row++) sum += weights[(head * T + row) * T + column(row)];
        const share = sum / (T - 2);
        if (!found[kind] || share > found[kind].share) found[kind] = { layer, head, share };
      }
    }
  }
  return found;
}
