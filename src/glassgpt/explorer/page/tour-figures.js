// The figures of the tour, as lists of shapes on a canvas of 320 x 120. Colours come from the theme.

import { svg } from "./draw.js";

const { box, card, arrow, text, cells, bars, triangle } = /** @type {Pen} */ ({
  box: (x, y, w, h, kind = "plain") => ["box", x, y, w, h, kind],
  card: (x, y, w, h, words, kind) => [box(x, y, w, h, kind), text(x + w / 2, y + h / 2 + 4, words, "middle")],
  arrow: (x1, y1, x2, y2, width = 1.5) => ["arrow", x1, y1, x2, y2, width],
  text: (x, y, words, anchor = "start") => ["text", x, y, words, anchor],
  cells: (x, y, n, kind = "hot", seed = 1) => Array.from({ length: n }, (_, i) => box(x + i * 11, y, 10, 10, `${kind} f${(i * 7 + seed * 5) % 4}`)),
  bars: (x, y, sizes, words) => sizes.flatMap((size, i) => [box(x, y + i * 20, size, 13, i === 0 ? "hot" : "plain"), text(x + size + 6, y + 11 + i * 20, words[i])]),
  triangle: (x, y, n, s, dark) =>
    Array.from({ length: n * n }, (_, i) => [Math.floor(i / n), i % n])
      .filter(([row, column]) => column <= row)
      .map(([row, column]) => box(x + column * s, y + row * s, s - 1, s - 1, dark(row, column) ? "hot" : "plain")),
});

/** Attention patterns of four heads. @type {((row: number, column: number) => boolean)[]} */
const PATTERNS = [(row, column) => column === row - 1, (_row, column) => column === 0, (row, column) => column === row, (row, column) => (row + column) % 2 === 0];

/** @type {(() => Shape[])[]} one for each step */
const FIGURES = [
  () => [...card(6, 44, 92, 30, "the sky is"), arrow(100, 59, 124, 59), ...card(128, 34, 62, 50, "model", "hot"), arrow(192, 59, 214, 59),
    ...bars(220, 32, [52, 22, 9], ["blue", "clear", "the"])],
  () => [..."unseen".split("").flatMap((c, i) => card(52 + i * 37, 6, 30, 24, c)), arrow(88, 33, 88, 44), arrow(203, 33, 203, 44),
    ...card(52, 48, 67, 24, "un"), ...card(126, 48, 141, 24, "seen"), arrow(86, 75, 86, 86), arrow(197, 75, 197, 86),
    text(86, 104, "403", "middle"), text(197, 104, "15898", "middle")],
  () => [text(8, 26, "token table"), ...cells(112, 16, 14, "hot", 2), text(8, 58, "position table"), ...cells(112, 48, 14, "cool", 3), text(96, 42, "+", "middle"),
    ["line", 104, 70, 274, 70, 1], text(8, 92, "their sum"), ...cells(112, 82, 14, "mixed", 4), arrow(276, 87, 306, 87), text(112, 114, "into the first block")],
  () => [...[0, 1].flatMap((i) => [...card(142, 68 - i * 44, 80, 28, `block ${i + 1}`), arrow(100, 91 - i * 44, 140, 88 - i * 44), arrow(140, 76 - i * 44, 100, 72 - i * 44)]),
    arrow(97, 116, 97, 4, 4), text(84, 112, "the", "end"), text(84, 66, "a thing?", "end"), text(84, 20, "orders!", "end"), text(230, 86, "reads, adds"), text(230, 42, "reads, adds")],
  () => [...["the", "dog", "wagged", "its"].flatMap((w, i) => card(14 + i * 76, 78, 64, 26, w, i === 3 ? "hot" : "plain")),
    ["curve", 274, 76, 46, 76, 14, 1.5], ["curve", 270, 76, 122, 76, 26, 6], ["curve", 266, 76, 198, 76, 48, 2.5], text(160, 116, "thicker: heard louder", "middle")],
  () => [...triangle(30, 8, 5, 20, (r, c) => (r * 3 + c * 2) % 4 === 0),
    ...[..."1234234344"].map((column, i) => ["cross", 30 + Number(column) * 20, 8 + Number("0000111223"[i]) * 20]),
    arrow(142, 58, 170, 58), text(180, 40, "query · key / √d"), text(180, 62, "mask the future"), text(180, 84, "softmax: each row"), text(180, 100, "sums to one")],
  () => [...PATTERNS.flatMap((dark, i) => [
    ...triangle(12 + i * 78, 12, 5, 13, dark), text(44 + i * 78, 98, ["the one", "the first", "itself", "far and"][i], "middle"), text(44 + i * 78, 112, ["before", "word", "", "wide"][i], "middle")])],
  () => [...cells(138, 98, 4, "hot"), ["line", 138, 94, 56, 66, 1], ["line", 182, 94, 264, 66, 1], ...cells(72, 52, 16, "cool", 2), text(270, 61, "GELU"),
    ["line", 56, 48, 138, 22, 1], ["line", 264, 48, 182, 22, 1], ...cells(138, 8, 4, "hot", 3), text(190, 107, "768"), text(26, 61, "3,072"), text(190, 17, "768")],
  () => [...cells(10, 52, 6, "hot"), text(84, 61, "×"), ...[0, 1, 2, 3].flatMap((i) => cells(100, 16 + i * 24, 6, "cool", i)), arrow(172, 58, 192, 58),
    ...["7.1", "4.0", "2.6", "−1.3"].map((s, i) => text(198, 25 + i * 24, s)), arrow(230, 58, 246, 58), ...[58, 12, 5, 2].map((w, i) => box(252, 14 + i * 24, w, 13, i === 0 ? "hot" : "plain"))],
  () => [...[[62, 8, 2, 0, 0], [44, 20, 11, 6, 3], [26, 22, 19, 17, 15]].flatMap((sizes, i) => [
    ...sizes.map((h, j) => box(14 + i * 104 + j * 17, 80 - h, 13, h, j < 3 ? "hot" : "plain")), text(56 + i * 104, 108, ["cool: 0.5", "as it is: 1", "hot: 2"][i], "middle")]),
    ...[63.5, 167.5, 271.5].map((x) => ["dash", x, 12, x, 84])],
  () => [...["the", "dog", "sat", "on"].flatMap((w, i) => [...[0, 1, 2].map((r) => box(20 + i * 60, 12 + r * 22, 48, 18, i === 3 ? "hot" : "grey")), text(44 + i * 60, 98, w, "middle")]),
    ["curve", 226, 10, 284, 84, 8, 1.5], text(262, 98, "a"), text(110, 116, "remembered", "middle"), text(224, 116, "computed", "middle")],
  () => [text(8, 16, "token table"), box(8, 22, 304, 14, "hot"), text(8, 56, "positions"), box(8, 62, 12, 14, "cool"), text(90, 56, "a block, twelve times"),
    ...[18, 6, 24, 24].map((w, i) => box(90 + [0, 21, 30, 57][i], 62, w, 14, "plain")), ...Array.from({ length: 11 }, (_, i) => box(90 + (i % 2) * 90, 82 + Math.floor(i / 2) * 6, 81, 4, "plain"))],
  () => [...["text", "tokens", "table"].flatMap((w, i) => [...card(4 + i * 82, 14, 64, 26, w), arrow(69 + i * 82, 27, 84 + i * 82, 27)]), ...card(250, 14, 64, 26, "blocks", "hot"),
    arrow(282, 42, 282, 70), ...card(250, 74, 64, 26, "scores"), arrow(248, 87, 234, 87), ...card(168, 74, 64, 26, "word", "hot"), ["curve", 166, 87, 36, 42, 96, 1.5]],
];

/** An arrow's head at x, y, pointing along (dx, dy). @param {number} x @param {number} y @param {number} dx @param {number} dy */
function tip(x, y, dx, dy) {
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [(dx / length) * 6, (dy / length) * 6];
  return svg("path", { class: "tip", d: `M${x} ${y}L${x - ux - uy / 2} ${y - uy + ux / 2}L${x - ux + uy / 2} ${y - uy - ux / 2}Z` });
}

/** @param {Shape} shape @returns {SVGElement[]} */
function draw([kind, ...rest]) {
  const n = /** @type {number[]} */ (rest);
  if (kind === "box") return [svg("rect", { x: n[0], y: n[1], width: n[2], height: n[3], rx: 2, class: rest[4] })];
  if (kind === "text") return [svg("text", { x: n[0], y: n[1], "text-anchor": rest[3] }, String(rest[2]))];
  if (kind === "cross") return [svg("path", { class: "cross", d: `M${n[0] + 4} ${n[1] + 4}l11 11m0 -11l-11 11` })];
  if (kind === "curve") {
    // from (x1, y1) to (x2, y2), bent towards height n[4]
    const middle = (n[0] + n[2]) / 2;
    const path = svg("path", { class: "line", d: `M${n[0]} ${n[1]}Q${middle} ${n[4]} ${n[2]} ${n[3]}`, "stroke-width": n[5] });
    return n[5] > 2 ? [path] : [path, tip(n[2], n[3], n[2] - middle, n[3] - n[4])];
  }
  const made = svg("line", { x1: n[0], y1: n[1], x2: n[2], y2: n[3], class: `line ${kind}`, "stroke-width": n[4] ?? 1.5 });
  return kind === "arrow" ? [made, tip(n[2], n[3], n[2] - n[0], n[3] - n[1])] : [made];
}

/** The figure of a step. @param {number} index @param {string} words for screen readers */
export const figureOfStep = (index, words) => svg("svg", { viewBox: "0 0 320 120", role: "img", "aria-label": words }, FIGURES[index]().flatMap(draw));
