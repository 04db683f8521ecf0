// A head's attention pattern, small or large, as a matrix or as lines.

import { color, el, pixels, prepare, put, shades, short, visible } from "../draw/draw.js";
import { hover, hovered } from "../state/hover.js";
import { store } from "../state/store.js";
import { Drawn } from "../view.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

/**
 * `others` are drawn over it, each in a color.
 * @typedef {{weights: Uint8Array, tokens: Token[], token: number, others?: {weights: Uint8Array, paint: string}[], paint?: string}} Pattern
 */

/** The colors of heads that are drawn together. */
export const PAINTS = ["a-2", "d-plus", "d-minus", "accent", "s-2"];

/** A pattern without its first column: what is left of each row, scaled up to one. @param {Uint8Array} weights @param {number} count */
export function withoutFirst(weights, count) {
  const made = new Uint8Array(weights.length);
  for (let query = 1; query < count; query++) {
    const row = weights.subarray(query * count + 1, query * count + query + 1);
    const total = row.reduce((sum, weight) => sum + weight, 0);
    if (total > 0) made.set(Array.from(row, (weight) => Math.round((255 * weight) / total)), query * count + 1);
  }
  return made;
}

/** A weight as it can be told from a byte. @param {number} weight */
const wholePercent = (weight) => (weight === 0 ? t("pattern.little") : weight === 255 ? t("pattern.most") : `${Math.max(1, Math.round((100 * weight) / 255))}%`);

/** The matrix, a pixel for each pair; the square root lets small weights be seen. @param {Uint8Array} weights (T, T) @param {number} count */
function matrix(weights, count) {
  const colors = shades("attention");
  return pixels(count, count, (i) => (i % count <= i / count ? colors[Math.round(Math.sqrt(255 * weights[i]))].rgb : null));
}

/**
 * @param {Uint8Array} weights @param {number} count @param {number} least
 * @param {(query: number, key: number, share: number) => void} use
 */
export function eachWeight(weights, count, least, use) {
  for (let query = 0; query < count; query++) {
    for (let key = 0; key <= query; key++) {
      const share = weights[query * count + key] / 255;
      if (share >= least && share > 0) use(query, key, share);
    }
  }
}

/** <glass-pattern>: one head's pattern, large, with names; the pointer reads single weights, a click moves the cursor. */
export class GlassPattern extends Drawn {
  #canvas = el("canvas", { role: "img" });
  #readout = el("p", { class: "small" });
  /** @type {Pattern | null} */ #pattern = null;
  /** @type {"matrix" | "lines"} */ #how = "matrix";
  #least = 0;
  #geometry = { left: 0, top: 0, cell: 1 };

  build() {
    this.box.setAttribute("aria-label", t("pattern.label"));
    this.box.append(this.#canvas);
    this.append(this.box, this.#readout);
    this.#canvas.addEventListener("mousemove", (event) => this.#point(event, false));
    this.#canvas.addEventListener("click", (event) => this.#point(event, true));
    this.#canvas.addEventListener("mouseleave", () => {
      this.#notify();
      hover(null);
    });
  }

  light() {
    this.draw();
  }

  /** @param {Pattern} pattern @param {"matrix" | "lines"} how @param {number} least @param {string} label */
  show(pattern, how, least, label) {
    this.#pattern = pattern;
    this.#how = how;
    this.#least = least;
    this.#canvas.setAttribute("aria-label", label);
    this.draw();
    this.#notify();
  }

  draw() {
    const width = this.width - 2;
    if (!this.#pattern || width <= 0) return;
    if (this.#how === "matrix") this.#drawMatrix(this.#pattern, width);
    else this.#drawLines(this.#pattern, width);
  }

  /** @param {Pattern} pattern @param {number} width */
  #drawMatrix({ weights, tokens, token }, width) {
    const count = tokens.length;
    const left = 12 + 6.4 * Math.min(10, Math.max(...tokens.map(({ text }) => text.length)));
    const cell = Math.max(1, Math.min(26, (width - left - 32) / count));
    const named = cell >= 9;
    const top = named ? 58 : 6;
    this.#geometry = { left, top, cell };
    const context = prepare(this.#canvas, left + count * cell + 32, top + count * cell + 4);
    context.drawImage(matrix(weights, count), left, top, count * cell, count * cell);
    context.strokeStyle = color("accent");
    const lit = hovered();
    if (lit !== null && lit < count) {
      context.lineWidth = 1;
      context.strokeRect(left, top + lit * cell, (lit + 1) * cell, cell);
      context.strokeRect(left + lit * cell, top + lit * cell, cell, (count - lit) * cell);
    }
    context.lineWidth = 2;
    context.strokeRect(left - 1, top + token * cell - 1, (token + 1) * cell + 2, cell + 2);
    context.font = "11px system-ui, sans-serif";
    const every = named ? 1 : Math.ceil(12 / cell);
    for (let place = 0; place < count; place += every) {
      context.fillStyle = color(place === token || place === lit ? "accent" : "soft");
      context.textAlign = "right";
      context.fillText(short(tokens[place].text, 10), left - 5, top + (place + 0.5) * cell + 4);
      if (!named) continue;
      context.save();
      context.translate(left + (place + 0.5) * cell + 3, top - 5);
      context.rotate(-Math.PI / 3);
      context.textAlign = "left";
      context.fillText(short(tokens[place].text, 8), 0, 0);
      context.restore();
    }
  }

  /** @param {Pattern} pattern @param {number} width */
  #drawLines({ weights, tokens, token, others = [], paint = "a-2" }, width) {
    const count = tokens.length;
    const cell = 17;
    const wide = Math.min(width, 460);
    const [left, right, top] = [92, wide - 92, 20];
    this.#geometry = { left, top, cell };
    const context = prepare(this.#canvas, wide, top + count * cell + 6);
    /** @param {number} place */
    const y = (place) => top + (place + 0.5) * cell;
    const lit = hovered();
    for (const one of [{ weights, paint }, ...others]) {
      context.strokeStyle = color(one.paint);
      eachWeight(one.weights, count, this.#least, (query, key, share) => {
        const strong = query === token || query === lit || key === lit;
        context.globalAlpha = strong ? 0.25 + 0.75 * share : 0.28 * share;
        context.lineWidth = strong ? 1 + 4 * share : 1 + 2 * share;
        context.beginPath();
        context.moveTo(left, y(query));
        context.bezierCurveTo((left + right) / 2, y(query), (left + right) / 2, y(key), right, y(key));
        context.stroke();
      });
    }
    context.globalAlpha = 1;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = color("soft");
    context.textAlign = "right";
    context.fillText(t("pattern.from"), left - 6, 11);
    context.textAlign = "left";
    context.fillText(t("pattern.to"), right + 6, 11);
    context.font = "12px system-ui, sans-serif";
    tokens.forEach(({ text }, place) => {
      context.fillStyle = color(place === token || place === lit ? "accent" : "ink");
      context.textAlign = "right";
      context.fillText(short(text, 12), left - 6, y(place) + 4);
      context.fillStyle = color("ink");
      context.textAlign = "left";
      context.fillText(short(text, 12), right + 6, y(place) + 4);
    });
  }

  /** @param {MouseEvent} event @param {boolean} choose */
  #point(event, choose) {
    const pattern = this.#pattern;
    if (!pattern) return;
    const box = this.#canvas.getBoundingClientRect();
    const { left, top, cell } = this.#geometry;
    const query = Math.floor((event.clientY - box.top - top) / cell);
    if (query < 0 || query >= pattern.tokens.length) return;
    if (choose) store.set({ token: query });
    const key = this.#how === "matrix" ? Math.floor((event.clientX - box.left - left) / cell) : undefined;
    hover(key !== undefined && key >= 0 && key <= query ? key : query);
    this.#notify(query, key !== undefined && key >= 0 && key < pattern.tokens.length ? key : undefined);
  }

  /** Describe one weight; by default, the largest of the cursor's token. @param {number} [query] @param {number} [key] */
  #notify(query, key) {
    const pattern = this.#pattern;
    if (!pattern) return;
    const { weights, tokens } = pattern;
    const from = query ?? pattern.token;
    const row = weights.subarray(from * tokens.length, (from + 1) * tokens.length);
    const to = key ?? row.indexOf(Math.max(...row));
    const how = to > from ? "pattern.cannot" : key === undefined ? "pattern.gives.most" : "pattern.gives";
    put(this.#readout, say(how, { from: el("b", {}, visible(tokens[from].text)), share: wholePercent(row[to]), to: el("b", {}, visible(tokens[to].text)) }));
  }
}

customElements.define("glass-pattern", GlassPattern);
