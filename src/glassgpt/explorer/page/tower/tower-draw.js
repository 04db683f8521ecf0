// The layout of the tower, its residual streams and the attention of the cursor's head.

import { svg } from "../draw/draw.js";
import { t } from "../languages/language.js";

/**
 * @typedef {{kind: "next" | "lens" | "token", layer: number, name: string, title: string, top: number, high: number}} Row
 * @typedef {{width: number, height: number, labelWidth: number, pitch: number, cellWidth: number, letters: number, rows: Row[]}} Layout
 */

const LABEL = 84;

/** Columns are squeezed to this to fit the window; if that is not enough they get the other, and scroll. */
const NARROW = 38;
const ROOMY = 58;

/**
 * Where everything is: rows from the vocabulary at the top to the tokens at the bottom.
 * @param {number} width of the window on the tower, 0 for a picture @param {number} height
 * @param {number} tokens @param {number} layers
 * @returns {Layout}
 */
export function layout(width, height, tokens, layers) {
  const even = Math.floor((width - LABEL - 8) / tokens);
  const pitch = even < NARROW ? ROOMY : Math.min(100, even);
  const count = layers + 3;
  const step = Math.max(25, Math.min(84, (height - 12) / count));
  const high = Math.round(Math.max(20, Math.min(40, step - 12)));
  /** @type {Row[]} */
  const rows = [];
  /** @param {Row["kind"]} kind @param {number} layer @param {string} name @param {string} title */
  const add = (kind, layer, name, title) => rows.push({ kind, layer, name, title, top: Math.round(6 + rows.length * step), high });
  add("next", layers, t("tower.next"), t("tower.next.hint"));
  for (let layer = layers - 1; layer >= 0; layer--) add("lens", layer, t("tower.block", { layer }), t("tower.block.hint", { layer }));
  add("lens", -1, t("tower.embedding"), t("tower.embedding.hint"));
  add("token", -2, t("tower.token"), t("tower.token.hint"));
  return { width: LABEL + tokens * pitch + 8, height: Math.round(12 + (count - 1) * step + high), labelWidth: LABEL, pitch, cellWidth: pitch - 5,
    letters: Math.floor((pitch - 8) / 6.6), rows };
}

/**
 * The residual stream of each token as a line whose width is its norm: all lines as one path.
 * @param {Layout} plan @param {Trace} trace @param {number} first @param {number} last
 */
export function streams(plan, trace, first, last) {
  // In a trained GPT-2 the first token's norm is a hundred times that of the others: a logarithm shows both.
  const longest = Math.log1p(Math.max(...trace.norms.map((row) => Math.max(...row))));
  let path = "";
  for (let token = first; token <= last; token++) {
    const x = plan.labelWidth + (token + 0.5) * plan.pitch;
    for (let place = 1; place < plan.rows.length; place++) {
      const below = plan.rows[place];
      const above = plan.rows[place - 1];
      const norm = below.kind === "lens" ? trace.norms[below.layer + 1][token] : trace.norms[0][token];
      const wide = 1 + 9 * (Math.log1p(norm) / longest);
      const high = Math.max(0, below.top - above.top - above.high);
      path += `M${(x - wide / 2).toFixed(2)} ${above.top + above.high}h${wide.toFixed(2)}v${high}h${(-wide).toFixed(2)}z`;
    }
  }
  return path;
}

/**
 * The attention of the cursor's head: a curve from each cell below, as strong as its weight.
 * @param {Layout} plan @param {number[]} weights @param {{token: number, layer: number}} cursor
 */
export function curves(plan, weights, { token, layer }) {
  const place = plan.rows.findIndex((row) => row.kind === "lens" && row.layer === layer);
  const [to, from] = [plan.rows[place], plan.rows[place + 1]];
  if (!to || !from) return [];
  const end = plan.labelWidth + (token + 0.5) * plan.pitch;
  const [low, high] = [from.top, to.top + to.high];
  const middle = (low + high) / 2;
  /** @type {SVGElement[]} */
  const drawn = [];
  weights.forEach((weight, source) => {
    if (weight < 0.02) return;
    const start = plan.labelWidth + (source + 0.5) * plan.pitch;
    const d = `M${start} ${low} C${start} ${middle} ${end} ${middle} ${end} ${high}`;
    drawn.push(svg("path", { "data-token": source, fill: "none", stroke: "var(--a-2)", "stroke-linecap": "round", d, "stroke-width": 1 + 6 * weight,
      "stroke-opacity": 0.25 + 0.75 * weight }));
  });
  return drawn;
}
