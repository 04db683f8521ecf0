// <glass-stages>: the scores of one head for all pairs of tokens, in three stages: dot products, scaled and masked, softmax.

import { color, diverging, el, format, percent, pixels, prepare, put, ramp, shades, short, visible } from "../draw/draw.js";
import { hover, hovered } from "../state/hover.js";
import { math } from "../draw/math.js";
import { GlassVector, limitOf } from "../draw/vector.js";
import { Drawn } from "../view.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

/**
 * @typedef {{q: number[][], k: number[][], scores: number[][], scaled: number[][], weights: number[][],
 *   tokens: Token[], token: number, mask: boolean, scale: string, name: string}} Stages
 */

const TITLES = [() => "q · k", () => t("stages.masked"), () => "softmax"];
const NAME = 58; // room for the names of rows
const TOP = 48; // and of columns
const PHONE = 400; // below this width the matrices are one below the other

/** The rows of a matrix. @param {Floats} array @returns {number[][]} */
export function rowsOf({ shape: [rows, columns], data }) {
  return Array.from({ length: rows }, (_, row) => Array.from(data.subarray(row * columns, (row + 1) * columns)));
}

/** Each row's softmax, with the mask or without. @param {number[][]} scaled @param {boolean} mask @returns {number[][]} */
export function softmaxRows(scaled, mask) {
  return scaled.map((row, query) => {
    const seen = mask ? row.slice(0, query + 1) : row;
    const most = Math.max(...seen);
    const raised = row.map((score, key) => (mask && key > query ? 0 : Math.exp(score - most)));
    const total = raised.reduce((sum, value) => sum + value, 0);
    return raised.map((value) => value / total);
  });
}

export class GlassStages extends Drawn {
  /** @type {Stages | null} */ #shown = null;
  #canvases = TITLES.map(() => el("canvas", { "aria-hidden": "true" }));
  #titles = TITLES.map((title) => el("figcaption", {}, math(title())));
  #readout = el("p", { class: "small", "aria-live": "polite" });
  #strips = [new GlassVector(), new GlassVector(), new GlassVector()];
  #geometry = { left: 0, top: 1, cell: 1, size: 1, stacked: false };
  #at = [0, 0];
  #subject = "";

  build() {
    this.box.className = "stages";
    this.box.setAttribute("aria-label", t("stages.box"));
    this.box.append(...this.#canvases.map((canvas, i) => el("figure", {}, this.#titles[i], canvas)));
    const keys = el("div", { class: "color-keys" }, ramp(t("block.below"), "diverging", t("block.above")), ramp("0%", "attention", "100%"));
    this.append(this.box, keys, this.#readout, el("div", { class: "three" }, this.#strips));
    this.#canvases.forEach((canvas) => canvas.addEventListener("mousemove", (event) => this.#point(canvas, event)));
    this.box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!by) return;
      event.preventDefault();
      this.#describe(this.#at[0] + by[0], this.#at[1] + by[1]);
    });
  }

  light() {
    this.draw();
  }

  /** @param {Stages} shown */
  show(shown) {
    this.#shown = shown;
    const { weights, tokens, token } = shown;
    const subject = `${tokens.map(({ id }) => id).join()} ${token} ${shown.name}`;
    if (subject !== this.#subject) this.#at = [token, weights[token].indexOf(Math.max(...weights[token]))];
    this.#subject = subject;
    this.#describe(this.#at[0], this.#at[1]); // and draws
  }

  draw() {
    const shown = this.#shown;
    if (!shown || !this.width) return;
    const count = shown.tokens.length;
    const stacked = this.width < PHONE;
    // Side by side, the names of rows are next to the first of the three only.
    const cell = Math.max(1, Math.min(stacked ? 18 : 22, stacked ? (this.width - NAME - 4) / count : (this.width - NAME - 3 * 14) / (3 * count)));
    const named = cell >= 9;
    const size = count * cell;
    this.#geometry = { left: named ? NAME : 4, top: named ? TOP : 1, cell, size, stacked };
    const { top } = this.#geometry;
    const [limit, scaledLimit] = [limitOf(shown.scores.flat()), limitOf(shown.scaled.flat())];
    const masked = (/** @type {number} */ i) => shown.mask && i % count > Math.floor(i / count);
    const colors = shades("attention");
    /** @type {((i: number) => import("../draw/draw.js").Rgb | null)[]} */
    const paints = [
      (i) => diverging(shown.scores[Math.floor(i / count)][i % count], limit).rgb,
      (i) => (masked(i) ? null : diverging(shown.scaled[Math.floor(i / count)][i % count], scaledLimit).rgb),
      (i) => (masked(i) ? null : colors[Math.round(255 * Math.sqrt(shown.weights[Math.floor(i / count)][i % count]))].rgb),
    ];
    this.#canvases.forEach((canvas, stage) => {
      const start = this.#left(stage);
      const context = prepare(canvas, start + size + 2, top + size + 1);
      context.drawImage(pixels(count, count, paints[stage]), start, top, size, size);
      this.#decorate(context, shown, stage);
    });
  }

  /** Where a matrix begins in its canvas. @param {number} stage */
  #left(stage) {
    return stage === 0 || this.#geometry.stacked ? this.#geometry.left : 2;
  }

  /**
   * Names, the mask's steps, the cursor's row, and the cell that is read.
   * @param {CanvasRenderingContext2D} context @param {Stages} shown @param {number} stage
   */
  #decorate(context, { tokens, token, mask }, stage) {
    const { cell, size, top, stacked } = this.#geometry;
    const left = this.#left(stage);
    const count = tokens.length;
    context.strokeStyle = color("line-strong");
    context.strokeRect(left - 0.5, top - 0.5, size + 1, size + 1);
    if (mask && stage > 0) {
      context.beginPath();
      for (let row = 0; row < count; row++) {
        context.lineTo(left + (row + 1) * cell, top + row * cell);
        context.lineTo(left + (row + 1) * cell, top + (row + 1) * cell);
      }
      context.stroke();
    }
    const lit = hovered();
    if (cell >= 9) {
      context.font = "11px system-ui, sans-serif";
      tokens.forEach(({ text }, place) => {
        context.fillStyle = color(place === token || place === lit ? "accent" : "soft");
        context.textAlign = "right";
        if (stage === 0 || stacked) context.fillText(short(text, 8), left - 4, top + (place + 0.5) * cell + 4);
        context.save();
        context.translate(left + (place + 0.5) * cell + 4, top - 5);
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
        context.fillText(short(text, 6), 0, 0);
        context.restore();
      });
    }
    context.strokeStyle = color("accent");
    if (lit !== null && lit < count) {
      context.lineWidth = 1;
      context.strokeRect(left + lit * cell, top, cell, size);
      context.strokeRect(left, top + lit * cell, size, cell);
    }
    context.lineWidth = 2;
    context.strokeRect(left + this.#at[1] * cell, top + this.#at[0] * cell, cell, cell);
  }

  /** @param {HTMLCanvasElement} canvas @param {MouseEvent} event */
  #point(canvas, { clientX, clientY }) {
    const box = canvas.getBoundingClientRect();
    const { cell, top } = this.#geometry;
    const left = this.#left(this.#canvases.indexOf(canvas));
    const [query, key] = [Math.floor((clientY - box.top - top) / cell), Math.floor((clientX - box.left - left) / cell)];
    const count = this.#shown?.tokens.length ?? 0;
    if (query < 0 || query >= count || key >= count) return hover(null);
    if (key >= 0) this.#describe(query, key);
    hover(key < 0 ? query : key);
  }

  /** How one pair came to its weight, number by number. @param {number} query @param {number} key */
  #describe(query, key) {
    const shown = this.#shown;
    if (!shown) return;
    const last = shown.tokens.length - 1;
    const [i, j] = [Math.max(0, Math.min(last, query)), Math.max(0, Math.min(last, key))];
    this.#at = [i, j];
    const { q, k, scores, scaled, weights, tokens, mask, scale } = shown;
    const products = q[i].map((value, place) => value * k[j][place]);
    this.#strips[0].show(t("stages.q", { word: visible(tokens[i].text) }), q[i]);
    this.#strips[1].show(t("stages.k", { word: visible(tokens[j].text) }), k[j]);
    this.#strips[2].show("q × k", products);
    const fate = mask && j > i ? t("stages.struck") : t("stages.softmax", { share: percent(weights[i][j]) });
    put(this.#readout, say("stages.says", { from: el("b", {}, visible(tokens[i].text)), to: el("b", {}, visible(tokens[j].text)), n: q[i].length,
      score: format(scores[i][j]), scale, scaled: format(scaled[i][j]), fate }));
    this.draw();
  }
}

customElements.define("glass-stages", GlassStages);
