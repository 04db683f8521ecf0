// Pictures of a distribution: how probability gathers over the ranks and where each filter cuts; and one for a paper.

import { colour, percent, svg, svgText } from "../draw.js";
import { count, label } from "../panel.js";

/** @typedef {import("../sampling.js").Sampler} Sampler */

const NAMES = { temperature: "", topK: "top-k", topP: "top-p", minP: "min-p" };
const [LEFT, RIGHT, TOP, BOTTOM] = [32, 8, 14, 26];

/**
 * The share that the best n tokens hold, over n (by powers of ten). What is kept is filled; each cut is a line.
 * @param {Sampler} sampler @param {number} width @param {number} height @param {Record<string, number>} [place]
 */
export function curve(sampler, width, height, place = {}) {
  const x = (/** @type {number} */ n) => LEFT + ((width - LEFT - RIGHT) * Math.log(n)) / (Math.log(sampler.size) || 1);
  const y = (/** @type {number} */ share) => TOP + (height - TOP - BOTTOM) * (1 - share);
  const points = [`${x(1)} ${y(0)}`];
  let [sum, shown, kept] = [0, -9, 0];
  for (let n = 1; n <= sampler.size; n++) {
    sum += sampler.weight[n - 1] / sampler.whole;
    if (x(n) - shown < 1.5 && n !== sampler.kept && n !== sampler.size) continue;
    shown = x(n);
    points.push(`${shown.toFixed(1)} ${y(sum).toFixed(1)}`);
    if (n <= sampler.kept) kept = points.length;
  }
  const [ink, line, accent, pane] = ["ink", "line", "accent", "pane"].map(colour);
  const filled = [...points.slice(0, kept), `${x(sampler.kept).toFixed(1)} ${y(0)}`];
  const cuts = sampler.cuts.slice(1).filter((cut, i) => cut.count < sampler.cuts[i].count);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The best ${count(sampler.kept)} tokens are kept and hold ${percent(sampler.cuts[3].mass)}`, ...place },
    [0, 0.5, 1].flatMap((share) => [svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(share), y2: y(share), stroke: line }), label(LEFT - 4, y(share) + 3, `${100 * share}%`, { "text-anchor": "end" })]),
    [1, 10, 100, 1000, 10000].filter((n) => n <= sampler.size).map((n) => label(x(n), height - 14, count(n), { "text-anchor": n === 1 ? "start" : "middle" })),
    label(width - RIGHT, height - 2, "number of the best tokens, and the share they hold", { "text-anchor": "end" }),
    svg("path", { d: `M${filled.join("L")}Z`, fill: accent, "fill-opacity": 0.28 }),
    svg("path", { d: `M${points.join("L")}`, fill: "none", stroke: accent, "stroke-width": 1.5 }),
    cuts.map(({ count: n }) => svg("line", { x1: x(n), x2: x(n), y1: TOP - 2, y2: y(0), stroke: ink, "stroke-dasharray": "3 2" })),
    // Each filter keeps no more than the one before it: the first is named on its right, the others on their left.
    cuts.map(({ name, count: n }, i) => {
      const right = (i === 0 && x(n) < width - 50) || x(n) < LEFT + 36;
      return label(x(n) + (right ? 4 : -4), TOP + 8 + 11 * i, NAMES[name], { "text-anchor": right ? "start" : "end", fill: ink, stroke: pane, "stroke-width": 3, "paint-order": "stroke" });
    }));
}

/** Candidates and curve in one picture. @param {{word: (rank: number) => string}} view @param {Sampler} sampler @param {string} title @param {string} settings */
export function figure(view, sampler, title, settings) {
  const [ink, soft, accent] = ["ink", "soft", "accent"].map(colour);
  const most = Math.max(sampler.probability(0), sampler.plain[0]);
  const rows = Array.from({ length: Math.min(10, sampler.size) }, (_, rank) => {
    const y = 52 + rank * 22;
    const p = sampler.probability(rank);
    const alone = 140 + (sampler.plain[rank] / most) * 200;
    return [
      svg("text", { x: 130, y: y + 12, "text-anchor": "end", fill: ink, "font-family": "monospace" }, view.word(rank)),
      svg("rect", { x: 140, y, width: (p / most) * 200, height: 15, rx: 2, fill: accent }),
      svg("line", { x1: alone, x2: alone, y1: y - 1, y2: y + 16, stroke: ink }),
      svg("text", { x: 352, y: y + 12, fill: soft }, p === 0 ? "cut" : percent(p)),
    ];
  });
  return svgText(724, 290, [svg("text", { x: 14, y: 24, fill: ink, "font-size": 15 }, title), svg("text", { x: 14, y: 42, fill: soft }, settings), ...rows.flat(), curve(sampler, 300, 160, { x: 410, y: 52, width: 300, height: 160 })]);
}
