// The whole way in one picture, with the numbers of the text on show: text, tokens, vectors, blocks, logits, probabilities.

import { brief, color, diverging, format, shade, short, svg } from "../draw/draw.js";
import { figure, label } from "../panel.js";
import { t } from "../languages/language.js";

const SHOWN = 5; // tokens, and candidates
const [WIDTH, HEIGHT] = [600, 330];

/** @param {number} x @param {number} y @param {string | number} words @param {Record<string, unknown>} [more] */
const text = (x, y, words, more = {}) => label(x, y, words, { "font-size": 11, fill: color("ink"), "text-anchor": "middle", ...more });

/** @param {string} d */
const arrow = (d) => svg("path", { d, fill: "none", stroke: color("soft"), "stroke-width": 1.2 });

/** @param {TourFacts} facts */
export function flow({ trace, config, embedding, next }) {
  const tokens = trace.tokens.slice(-SHOWN);
  const first = trace.tokens.length - tokens.length;
  const last = trace.tokens.length - 1;
  const wide = 64;
  const at = (/** @type {number} */ i) => 104 + i * wide;
  const names = /** @type {[number, string][]} */ ([[318, t("flow.text")], [286, t("flow.ids")], [254, t("flow.vectors")]]);
  const most = Math.max(...embedding.embedding.slice(0, 8).map(Math.abs)) || 1;
  const rows = [0, 1, 2, 3].map((i) => Math.round((i * config.n_layer) / 3)); // of the lens: before the blocks, and after some
  const columns = tokens.flatMap(({ text: word, id }, i) => {
    const here = first + i === last;
    return [
      text(at(i), 318, short(word, 9), { "font-weight": here ? 700 : 400, "font-size": 12 }),
      arrow(`M${at(i)} 305v-7m-3 4l3 -4l3 4M${at(i)} 274v-7m-3 4l3 -4l3 4M${at(i)} 240v-8m-3 4l3 -4l3 4`),
      text(at(i), 288, id),
      ...rows.map((row, up) => {
        const [p, guess] = [trace.lens.p[row][first + i], trace.lens.texts[row][first + i]];
        const paint = shade("probability", p);
        return svg("g", {}, svg("rect", { x: at(i) - 29, y: 208 - up * 34, width: 58, height: 22, rx: 4, fill: paint.fill,
          stroke: color(here ? "accent" : "line-strong") }), text(at(i), 223 - up * 34, short(guess, 8), { fill: paint.ink }));
      }),
      ...(here ? embedding.embedding.slice(0, 8) : Array.from({ length: 8 }, () => 0)).map((value, n) =>
        svg("rect", { x: at(i) - 28 + n * 7, y: 246, width: 6, height: 16, fill: diverging(value, most).fill, stroke: color("line") })),
    ];
  });
  // Only the last column goes on to the vocabulary.
  const out = at(tokens.length - 1);
  const bars = next.slice(0, SHOWN).flatMap(({ text: word, logit, p }, i) => [
    text(444, 34 + i * 24, short(word, 9), { "text-anchor": "end", "font-size": 12 }),
    text(488, 34 + i * 24, format(logit, 1), { "text-anchor": "end" }),
    svg("rect", { x: 496, y: 23 + i * 24, width: Math.max(1, (60 * p) / next[0].p), height: 15, rx: 2, fill: color(i === 0 ? "accent" : "p-1") }),
    text(598, 34 + i * 24, brief(p), { "text-anchor": "end" }),
  ]);
  return figure(WIDTH, HEIGHT, t("flow.label", { n: trace.tokens.length, width: config.n_embd, layers: config.n_layer,
    vocabulary: config.vocab_size, word: next[0].text.trim(), share: brief(next[0].p) }),
    names.map(([y, name]) => text(0, y, name, { "text-anchor": "start", fill: color("soft") })),
    columns,
    rows.map((row, up) => text(0, 223 - up * 34, row === 0 ? t("flow.bottom") : t("flow.after", { layer: row - 1 }),
      { "text-anchor": "start", "font-size": 10, fill: color("soft") })),
    arrow(`M${out} 104V76H${Math.max(out, 398)}m-6 -4l6 4l-6 4`),
    text(Math.min(out, 360) + 4, 70, t("flow.table"), { "text-anchor": "end", "font-size": 10, fill: color("soft") }),
    text(488, 14, "logit", { "text-anchor": "end", fill: color("soft") }),
    text(598, 14, "softmax", { "text-anchor": "end", fill: color("soft") }),
    bars,
    text(598, 34 + SHOWN * 24, t("flow.more", { n: config.vocab_size - SHOWN }), { "text-anchor": "end", "font-size": 10, fill: color("soft") }));
}
