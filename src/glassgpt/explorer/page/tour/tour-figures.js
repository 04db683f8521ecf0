// The figures of the tour, on a canvas of 320 x 120, drawn from the loaded model's own numbers. Colors come from the theme.

import { brief, diverging, format, PARTS, shade, short, svg } from "../draw/draw.js";
import { tokenInNumbers } from "./tour-facts.js";
import { large, t } from "../languages/language.js";

/** @typedef {SVGElement | (SVGElement | SVGElement[])[]} Drawing */

/** @param {number} x @param {number} y @param {string} words @param {string} [anchor] */
const text = (x, y, words, anchor = "start") => svg("text", { x, y, "text-anchor": anchor }, words);
/** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} [kind] */
const box = (x, y, width, height, kind = "plain") => svg("rect", { x, y, width: Math.max(0.5, width), height: Math.max(0.5, height), rx: 2, class: kind });
/** A box with a text in its middle. @param {number} x @param {number} y @param {number} w @param {number} h @param {string} words @param {string} [kind] */
const card = (x, y, w, h, words, kind) => [box(x, y, w, h, kind), text(x + w / 2, y + h / 2 + 4, words, "middle")];
/** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {number} [width] */
const arrow = (x1, y1, x2, y2, width = 1.5) => [svg("line", { x1, y1, x2, y2, class: "line", "stroke-width": width }), tip(x2, y2, x2 - x1, y2 - y1)];
/** A curve bent to the height `top`. @param {number} x1 @param {number} x2 @param {number} y @param {number} top @param {number} width */
const curve = (x1, x2, y, top, width) =>
  svg("path", { class: "line strong", d: `M${x1} ${y}Q${(x1 + x2) / 2} ${top} ${x2} ${y}`, "stroke-width": width,
  "stroke-opacity": 0.3 + Math.min(0.7, width / 8) });

/** An arrow's head at x, y, pointing along (dx, dy). @param {number} x @param {number} y @param {number} dx @param {number} dy */
function tip(x, y, dx, dy) {
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [(dx / length) * 6, (dy / length) * 6];
  return svg("path", { class: "tip", d: `M${x} ${y}L${x - ux - uy / 2} ${y - uy + ux / 2}L${x - ux + uy / 2} ${y - uy - ux / 2}Z` });
}

/** The first numbers of a vector as cells. @param {number} x @param {number} y @param {number[]} values @param {number} [count] @param {number} [size] */
function cells(x, y, values, count = 16, size = 10) {
  const limit = Math.max(...values.slice(0, count).map(Math.abs)) || 1;
  return values.slice(0, count).map((value, i) =>
    svg("rect", { x: x + i * (size + 1), y, width: size, height: size, fill: diverging(value, limit).fill, stroke: "var(--line-strong)",
    "stroke-width": 0.5 }));
}

/**
 * A pattern, or its first corner.
 * @param {number} x @param {number} y @param {number[][]} pattern @param {number} size of the figure @param {number} [most] tokens
 */
function matrix(x, y, pattern, size, most = 12) {
  const count = Math.min(most, pattern.length);
  const cell = size / count;
  return pattern.slice(0, count).flatMap((row, query) => row.slice(0, query + 1).map((weight, key) =>
    svg("rect", { x: x + key * cell, y: y + query * cell, width: cell - 0.5, height: cell - 0.5, fill: shade("attention", Math.sqrt(weight)).fill })));
}

/** The last tokens of the text. @param {TourFacts} facts @param {number} most */
const lastTokens = ({ trace }, most) => trace.tokens.slice(-most).map(({ text: word }) => word);

/** @type {Record<string, (facts: TourFacts) => Drawing[]>} by the step's figure */
export const FIGURES = {
  guess: (facts) => {
    const words = lastTokens(facts, 3).join("").trim();
    return [...card(4, 44, 104, 30, short(words, 15)), arrow(110, 59, 128, 59), ...card(130, 34, 56, 50, t("tour.guess.model"), "hot"), arrow(188, 59, 206, 59),
      facts.next.slice(0, 4).flatMap(({ text: word, p }, i) => [text(246, 27 + i * 24, short(word, 6), "end"),
        box(250, 16 + i * 24, 34 * (p / facts.next[0].p), 14, i === 0 ? "hot" : "plain"), text(318, 27 + i * 24, brief(p), "end")])];
  },
  tokens: ({ trace }) => {
    const word = [...trace.words].sort((a, b) => b.last - b.first - (a.last - a.first) || b.text.length - a.text.length)[0];
    const states = [word.merges[0], word.merges[Math.floor(word.merges.length / 2)], word.merges.at(-1) ?? []];
    const ids = trace.tokens.slice(word.first, word.last + 1).map(({ id }) => String(id));
    return [...states.map((pieces, row) => {
      const shown = pieces.slice(0, 9);
      const wide = Math.min(64, 300 / shown.length);
      return shown.map((piece, i) => card(10 + i * wide, 6 + row * 32, wide - 4, 22, short(piece, 8), row === 2 ? "hot" : "plain")).flat();
    }), ids.slice(0, 4).map((id, i) => text(10 + (i + 0.5) * Math.min(64, 300 / Math.min(9, (states[2] ?? []).length)) - 2, 114, id, "middle"))];
  },
  embedding: ({ embedding, trace }) => {
    const last = trace.tokens.length - 1;
    return [text(4, 24, t("tour.embedding.row", { n: String(trace.tokens[last].id) })), text(4, 36, t("tour.embedding.tokens")), cells(122, 18, embedding.wte), text(114, 52, "+", "end"),
      text(4, 60, t("tour.embedding.row", { n: last })), text(4, 72, t("tour.embedding.positions")), cells(122, 54, embedding.wpe),
      svg("line", { x1: 118, y1: 76, x2: 304, y2: 76, class: "line" }),
      text(4, 98, t("tour.embedding.sum")), cells(122, 88, embedding.embedding), text(122, 114, t("tour.embedding.first", { n: embedding.wte.length }))];
  },
  tower: ({ trace, config }) => {
    const last = trace.tokens.length - 1;
    const rows = [0, Math.round(config.n_layer / 3), Math.round((2 * config.n_layer) / 3), config.n_layer];
    return [arrow(60, 116, 60, 4, 4), ...rows.map((row, i) => {
      const y = 90 - i * 26;
      const p = trace.lens.p[row][last];
      return [svg("rect", { x: 74, y, width: 86, height: 20, rx: 4, fill: shade("probability", p).fill, stroke: "var(--line-strong)" }),
        svg("text", { x: 117, y: y + 14, "text-anchor": "middle", style: { fill: shade("probability", p).ink } },
        short(trace.lens.texts[row][last], 8)), text(168, y + 14, `${brief(p)} ${row === 0 ? t("tour.tower.bottom") : t("tour.tower.after", { layer: row - 1 })}`)];
    }).flat(), text(50, 66, short(trace.tokens[last].text, 7), "end")];
  },
  attention: ({ trace, weights }) => {
    const shown = trace.tokens.slice(-9);
    const first = trace.tokens.length - shown.length;
    const wide = 308 / shown.length;
    const at = (/** @type {number} */ i) => 6 + (i + 0.5) * wide;
    return [...shown.flatMap(({ text: word }, i) => card(6 + i * wide, 80, wide - 2, 22, short(word.trim() || word, Math.max(3, Math.floor(wide / 7))),
      i === shown.length - 1 ? "hot" : "plain")),
      ...shown.flatMap((_, i) => (weights[first + i] > 0.01
        ? [curve(at(shown.length - 1), at(i), 78, 78 - 14 - 9 * (shown.length - 1 - i), 1 + 8 * weights[first + i])] : [])),
      ...shown.flatMap((_, i) => (weights[first + i] > 0.05 ? [text(at(i), 115, brief(weights[first + i]), "middle")] : []))];
  },
  numbers: ({ config, weightsInNumbers: weights, trace }) => {
    const asking = tokenInNumbers(trace);
    const best = weights.indexOf(Math.max(...weights.slice(1), 0));
    return [...card(6, 8, 60, 24, "q · k", "hot"), arrow(68, 20, 84, 20), ...card(86, 8, 60, 24, `÷ √${config.d_head}`), arrow(148, 20, 164, 20),
      ...card(166, 8, 60, 24, t("tour.numbers.mask")), arrow(228, 20, 244, 20), ...card(246, 8, 68, 24, "softmax", "hot"),
      ...trace.tokens.slice(-9).flatMap(({ text: word }, i, all) => {
        const place = trace.tokens.length - all.length + i;
        const x = 23 + i * 34;
        const label = text(x, 110, short(word, 4), "middle");
        if (place > asking) return [label, text(x, 92, "×", "middle")]; // the mask
        const high = 52 * weights[place];
        const underline = place === asking ? [svg("line", { x1: x - 14, y1: 115, x2: x + 14, y2: 115, class: "line", "stroke-width": 2 })] : [];
        return [box(x - 14, 96 - high, 28, high, place === best ? "hot" : "plain"), label, text(x, 92 - high, brief(weights[place]), "middle"), ...underline];
      })];
  },
  mask: ({ pattern }) => [matrix(20, 10, pattern, 100, 9), svg("path", { d: "M24 8H122V106Z", class: "struck" }), text(96, 40, t("tour.mask.not"), "middle"),
    text(96, 52, t("tour.mask.written"), "middle"),
    text(140, 40, t("tour.mask.row")), text(140, 60, t("tour.mask.column")), text(140, 80, t("tour.mask.future")), text(140, 94, t("tour.mask.struck"))],
  heads: ({ examples }) => examples.slice(0, 4).map(({ name, kind, pattern }, i) =>
    [...matrix(8 + i * 79, 8, pattern, 70), text(43 + i * 79, 96, t(`tour.kind.${kind}`), "middle"), text(43 + i * 79, 112, t("tour.heads.head", { head: name }), "middle")]),
  mlp: ({ mlp, config, layer }) => {
    const strongest = [...mlp["mlp.gelu"]].sort((a, b) => Math.abs(b) - Math.abs(a));
    return [cells(116, 100, mlp.ln_2, 8), svg("path", { class: "line", d: "M114 98L30 70M206 98L290 70M30 50L114 22M290 50L206 22", fill: "none" }),
      cells(30, 55, strongest, 24, 10), cells(116, 8, mlp["mlp.proj"], 8),
      text(212, 109, t("tour.mlp.numbers", { n: config.n_embd })), text(160, 79, t("tour.mlp.neurons", { n: config.d_mlp, layer }), "middle"),
      text(160, 91, t("tour.mlp.strongest"), "middle"), text(212, 18, t("tour.mlp.again", { n: config.n_embd }))];
  },
  logits: ({ next, embedding }) => [cells(6, 54, embedding.embedding, 7, 8), text(36, 78, "x", "middle"), text(78, 62, "×"),
    ...next.slice(0, 4).flatMap(({ text: word, logit, p }, i) => [text(94, 25 + i * 26, t("tour.logits.row", { word: short(word, 7) })),
      text(206, 25 + i * 26, format(logit, 1), "end"), box(214, 14 + i * 26, 70 * (p / next[0].p), 14, i === 0 ? "hot" : "plain"),
      text(318, 25 + i * 26, brief(p), "end")])],
  sampling: ({ next }) => [0.5, 1, 2].flatMap((temperature, column) => {
    const raised = next.map(({ logit }) => Math.exp((logit - next[0].logit) / temperature));
    const total = raised.reduce((a, b) => a + b, 0);
    return [...raised.map((value, i) => box(10 + column * 106 + i * 19, 84 - 70 * (value / total), 15, 70 * (value / total), i === 0 ? "hot"
      : "plain")), text(56 + column * 106, 108, `T = ${temperature}`, "middle"),
      ...next.map(({ text: word }, i) => svg("text", { x: 17 + column * 106 + i * 19, y: 95, "text-anchor": "middle", class: "tiny" }, short(word, 3)))];
  }),
  cache: (facts) => {
    const words = lastTokens(facts, 5);
    return [...words.flatMap((word, i) => [...[0, 1, 2].map((row) => box(8 + i * 52, 14 + row * 22, 46, 18, i === words.length - 1 ? "hot"
      : "gray")), text(31 + i * 52, 98, short(word, 6), "middle")]),
      ...arrow(262, 40, 282, 40), text(286, 44, short(facts.next[0].text, 5)), text(100, 116, t("tour.cache.kept"), "middle"),
      text(240, 116, t("tour.cache.computed"), "middle")];
  },
  tally: ({ tally, config }) => {
    const sum = (/** @type {(name: string) => boolean} */ of) => tally.rows.filter(({ name }) => of(name)).reduce((total, row) => total + row.count, 0);
    const parts = /** @type {[string, number, string][]} */ ([[t("tour.tally.mlps"), sum((name) => name.includes(".mlp.")), "mlp."],
      [t("tour.tally.attention"), sum((name) => name.includes(".attn.")), "attn."],
      [t("tour.tally.table"), sum((name) => name.startsWith("wte") || name.startsWith("lm_head")), "wte"],
      [t("tour.tally.positions"), sum((name) => name.startsWith("wpe")), "wpe"]]);
    return parts.flatMap(([name, count, part], i) =>
      [text(4, 19 + i * 24, name), svg("rect", { x: 82, y: 8 + i * 24, width: Math.max(0.5, (150 * count) / parts[0][1]), height: 15, rx: 2,
      fill: PARTS[part]().fill, stroke: "var(--line-strong)" }),
      text(318, 20 + i * 24, `${large(count, { digits: 1 })}, ${Math.round((100 * count) / tally.total)}%`, "end")]).concat([text(4, 117,
      t("tour.tally.all", { layers: config.n_layer, total: large(tally.total, { long: true, digits: 1 }) }))]);
  },
  why: ({ next }) => [...["embedding", "heads", "mlps", "biases"].flatMap((part, i) =>
    [...card(6, 6 + i * 28, 84, 22, t(`tour.why.${part}`)), svg("path", { class: "line", d: `M92 ${17 + i * 28}C136 ${17 + i * 28} 132 59 166 59`, fill: "none",
    "stroke-width": 1.5 })]), text(142, 36, "+", "middle"), tip(170, 59, 1, 0),
    ...card(172, 40, 92, 38, `“${short(next[0].text.trim(), 9)}”`, "hot"), text(268, 63, format(next[0].logit, 1)),
    text(218, 98, t("tour.why.sum"), "middle")],
  family: () => [...["encoder", "decoder"].flatMap((kind, i) =>
    [...[0, 1, 2].map((row) => box(16 + i * 52, 26 + row * 20, 42, 15, i ? "hot" : "mixed")), text(37 + i * 52, 104, t(`tour.family.${kind}`), "middle")]),
    ...arrow(60, 54, 66, 54),
    ...[0, 1, 2].map((row) => box(164, 26 + row * 20, 42, 15, "hot")), text(185, 104, "GPT-2", "middle"),
    ...[0, 1, 2].map((row) => box(254, 26 + row * 20, 42, 15, "mixed")), text(275, 104, "BERT", "middle"), text(63, 16, "Transformer", "middle"),
    text(185, 16, t("tour.family.here"), "middle")],
  whole: ({ next }) => [...["text", "tokens", "table"].flatMap((word, i) => [...card(4 + i * 82, 14, 64, 26, t(`tour.whole.${word}`)),
    arrow(69 + i * 82, 27, 84 + i * 82, 27)]).flat(), ...card(250, 14, 64, 26, t("tour.whole.blocks"), "hot"),
    ...arrow(282, 42, 282, 70), ...card(250, 74, 64, 26, t("tour.whole.scores")), ...arrow(248, 87, 234, 87),
    ...card(168, 74, 64, 26, short(next[0].text, 8), "hot"), ...arrow(166, 87, 40, 87), ...arrow(36, 84, 36, 44)],
};

/** The figure of a step. @param {string} name @param {TourFacts} facts */
export const figureOf = (name, facts) => svg("svg", { viewBox: "0 0 320 120", role: "img", "aria-label": t(`tour.${name}.figure`) },
  /** @type {any[]} */ (FIGURES[name](facts).flat(3)));
