// Pictures of a distribution: how probability gathers over the ranks and where each filter cuts; and one for a paper.

import { colour, percent, svg, svgText, visible } from "../draw.js";

/** @typedef {import("../sampling.js").Sampler} Sampler */

const NAMES = { topK: "top-k", topP: "top-p", minP: "min-p" };
const PAD = { left: 32, right: 8, top: 14, bottom: 26 };

/**
 * The share that the best n tokens hold, over n (by powers of ten). What is kept is filled; each cut is a line.
 * @param {Sampler} sampler @param {number} width @param {number} height
 */
export function curve(sampler, width, height) {
  const [w, h] = [width - PAD.left - PAD.right, height - PAD.top - PAD.bottom];
  const most = Math.log(sampler.size) || 1;
  const x = (/** @type {number} */ n) => PAD.left + (w * Math.log(n)) / most;
  const y = (/** @type {number} */ share) => PAD.top + h * (1 - share);
  const points = [`M${x(1)} ${y(0)}`];
  const kept = [`M${x(1)} ${y(0)}`];
  let [sum, shown] = [0, -9];
  for (let n = 1; n <= sampler.size; n++) {
    sum += sampler.weight[n - 1] / sampler.whole;
    const at = x(n);
    if (at - shown < 1.5 && n !== sampler.kept && n !== sampler.size) continue;
    shown = at;
    points.push(`L${at.toFixed(1)} ${y(sum).toFixed(1)}`);
    if (n <= sampler.kept) kept.push(`L${at.toFixed(1)} ${y(sum).toFixed(1)}`);
  }
  kept.push(`L${x(sampler.kept).toFixed(1)} ${y(0)}Z`);
  const [ink, soft, line, accent] = ["ink", "soft", "line", "accent"].map(colour);
  const label = (/** @type {number} */ at, /** @type {number} */ up, /** @type {string} */ text, /** @type {string} */ anchor, /** @type {string} */ fill = soft) =>
    svg("text", { x: at.toFixed(1), y: up.toFixed(1), "font-size": 10, fill, "text-anchor": anchor }, text);
  const cuts = sampler.cuts.slice(1).filter((cut, i) => cut.count < sampler.cuts[i].count);
  const ticks = [1, 10, 100, 1000, 10000].filter((n) => n <= sampler.size);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The best ${sampler.kept} tokens are kept and hold ${percent(sampler.cuts[3].mass)}` },
    [0, 0.5, 1].map((share) => [svg("line", { x1: PAD.left, x2: width - PAD.right, y1: y(share), y2: y(share), stroke: line }), label(PAD.left - 4, y(share) + 3, `${100 * share}%`, "end")]).flat(),
    ticks.map((n) => label(x(n), height - 14, n.toLocaleString("en-US"), n === 1 ? "start" : "middle")),
    label(width - PAD.right, height - 2, "number of the best tokens, and the share they hold", "end"),
    svg("path", { d: kept.join(""), fill: accent, "fill-opacity": 0.28 }),
    svg("path", { d: points.join(""), fill: "none", stroke: accent, "stroke-width": 1.5 }),
    cuts.flatMap((cut, i) => {
      const at = x(cut.count);
      const end = at > width - 60;
      return [svg("line", { x1: at, x2: at, y1: PAD.top - 2, y2: y(0), stroke: ink, "stroke-dasharray": "3 2" }),
        label(end ? at - 3 : at + 3, PAD.top + 6 + 11 * (cuts.length - 1 - i), NAMES[/** @type {"topK"} */ (cut.name)], end ? "end" : "start", ink)];
    }),
  );
}

/**
 * Candidates and curve in one picture of its own.
 * @param {Sampler} sampler @param {string[]} words @param {string} title @param {string} settings
 */
export function figure(sampler, words, title, settings) {
  const [ink, soft, accent] = ["ink", "soft", "accent"].map(colour);
  const most = Math.max(sampler.probability(0), sampler.plain[0]);
  const rows = Array.from({ length: Math.min(10, sampler.size) }, (_, rank) => {
    const y = 52 + rank * 22;
    const p = sampler.probability(rank);
    return [
      svg("text", { x: 130, y: y + 12, "text-anchor": "end", fill: ink, "font-family": "monospace" }, visible(words[sampler.order[rank]] ?? "")),
      svg("rect", { x: 140, y, width: (p / most) * 200, height: 15, rx: 2, fill: accent }),
      svg("line", { x1: 140 + (sampler.plain[rank] / most) * 200, x2: 140 + (sampler.plain[rank] / most) * 200, y1: y - 1, y2: y + 16, stroke: ink }),
      svg("text", { x: 352, y: y + 12, fill: soft }, p === 0 ? "cut" : percent(p)),
    ];
  }).flat();
  const graph = curve(sampler, 300, 160);
  for (const [name, value] of Object.entries({ x: 410, y: 52, width: 300, height: 160 })) graph.setAttribute(name, String(value));
  return svgText(724, 290, [
    svg("text", { x: 14, y: 24, fill: ink, "font-size": 15, "font-weight": 600 }, title),
    svg("text", { x: 14, y: 42, fill: soft }, settings),
    ...rows,
    graph,
  ]);
}
