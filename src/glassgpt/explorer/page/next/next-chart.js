// The cumulative probability by rank, and where each filter cuts it off.

import { color, percent, svg } from "../draw/draw.js";
import { count, label, figure } from "../panel.js";
import { t } from "../languages/language.js";

/** @typedef {import("./sampling.js").Sampler} Sampler */

const NAMES = { temperature: "", topK: "top-k", topP: "top-p", minP: "min-p" };
const [LEFT, RIGHT, TOP, BOTTOM] = [32, 8, 14, 26];

/**
 * The cumulative probability of the top n tokens, with a log axis. What is kept is filled; each cutoff is a line.
 * @param {Sampler} sampler @param {number} width @param {number} height
 */
export function curve(sampler, width, height) {
  const x = (/** @type {number} */ n) => LEFT + ((width - LEFT - RIGHT) * Math.log(n)) / (Math.log(sampler.size) || 1);
  const y = (/** @type {number} */ share) => TOP + (height - TOP - BOTTOM) * (1 - share);
  const stops = [...new Set([sampler.kept, ...Array.from({ length: 161 }, (_, i) => Math.round(sampler.size ** (i / 160)))])].sort((a, b) => a - b);
  const points = [`${x(1)} ${y(0)}`];
  let [sum, n] = [0, 0];
  for (const stop of stops) {
    while (n < stop) sum += sampler.weight[n++];
    points.push(`${x(stop).toFixed(1)} ${y(sum / sampler.whole).toFixed(1)}`);
  }
  const kept = stops.indexOf(sampler.kept) + 2;
  const [ink, line, accent, pane] = ["ink", "line", "accent", "pane"].map(color);
  const filled = [...points.slice(0, kept), `${x(sampler.kept).toFixed(1)} ${y(0)}`];
  const cuts = sampler.cuts.slice(1).filter((cut, i) => cut.count < sampler.cuts[i].count);
  return figure(width, height, t("chart.label", { n: sampler.kept, share: percent(sampler.cuts[3].mass) }),
    [0, 0.5, 1].flatMap((share) => [svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(share), y2: y(share), stroke: line }),
      label(LEFT - 4, y(share) + 3, `${100 * share}%`, { "text-anchor": "end" })]),
    [1, 10, 100, 1000, 10000].filter((n) => n <= sampler.size).map((n) => label(x(n), height - 14, count(n), { "text-anchor": n === 1 ? "start" : "middle" })),
    label(width - RIGHT, height - 2, t("chart.axis"), { "text-anchor": "end" }),
    svg("path", { d: `M${filled.join("L")}Z`, fill: accent, "fill-opacity": 0.28 }),
    svg("path", { d: `M${points.join("L")}`, fill: "none", stroke: accent, "stroke-width": 1.5 }),
    cuts.map(({ count: n }) => svg("line", { x1: x(n), x2: x(n), y1: TOP - 2, y2: y(0), stroke: ink, "stroke-dasharray": "3 2" })),
    // Each filter keeps no more than the one before it: the first is named on its right, the others on their left.
    cuts.map(({ name, count: n }, i) => {
      const right = (i === 0 && x(n) < width - 50) || x(n) < LEFT + 36;
      return label(x(n) + (right ? 4 : -4), TOP + 8 + 11 * i, NAMES[name], { "text-anchor": right ? "start" : "end", fill: ink, stroke: pane,
        "stroke-width": 3, "paint-order": "stroke" });
    }));
}
