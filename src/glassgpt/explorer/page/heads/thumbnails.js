// The small pictures of all heads, drawn on one canvas behind their buttons: a canvas for each head would be an image
// for each to make, copy and compose.

import { color, el, shades } from "../draw/draw.js";
import { eachWeight } from "./pattern.js";
import { afterRender } from "../view.js";
import { t } from "../languages/language.js";

/** @typedef {{left: number, top: number, size: number}} Square in pixels of the screen */

export class Thumbnails {
  canvas = el("canvas", { class: "pictures", "aria-hidden": "true" });
  #grid;
  /** @type {Map<string, Square> | null} where each head is drawn, by its name */ #squares = null;
  /** @type {ImageData | null} what is on the canvas, or will be in a moment */ #image = null;
  #waiting = false;

  /** @param {HTMLElement} grid of buttons with data-layer and data-head */
  constructor(grid) {
    this.#grid = grid;
  }

  /** The squares may have moved, or the colors changed: all is drawn anew. */
  reset() {
    this.#squares = this.#image = null;
  }

  /** Whether the grid has the size that was drawn, if anything was. */
  get fits() {
    return this.#squares === null || (this.canvas.style.width === `${this.#grid.clientWidth}px` && this.canvas.style.height === `${this.#grid.clientHeight}px`);
  }

  get #context() {
    return /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
  }

  /** Find the squares, and make the canvas as large as the grid. */
  #measure() {
    const ratio = globalThis.devicePixelRatio || 1;
    const squares = /** @type {NodeListOf<HTMLElement>} */ (this.#grid.querySelectorAll(".thumb"));
    // All is read before the canvas changes: then the browser lays out no more than once.
    const found = Array.from(squares, (thumb) =>
      /** @type {[string, Square]} */ ([`${thumb.dataset.layer}.${thumb.dataset.head}`,
      { left: Math.round((thumb.offsetLeft + 2) * ratio), top: Math.round((thumb.offsetTop + 2) * ratio),
      size: Math.round((thumb.offsetWidth - 4) * ratio) }]));
    const { clientWidth: width, clientHeight: height } = this.#grid;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    [this.canvas.style.width, this.canvas.style.height] = [`${width}px`, `${height}px`];
    if (width > 0 && height > 0) this.#image = new ImageData(this.canvas.width, this.canvas.height);
    return new Map(found);
  }

  /** @param {string} name of the head, "6.5" @param {Uint8Array} weights (T, T) @param {number} count @param {"matrix" | "lines"} how */
  draw(name, weights, count, how) {
    const square = (this.#squares ??= this.#measure()).get(name);
    if (!square || !this.#image || square.size < 1) return;
    if (how === "lines") return this.#lines(square, weights, count);
    drawMatrix(this.#image, square, weights, count);
    if (this.#waiting) return;
    this.#waiting = true;
    afterRender(() => {
      this.#waiting = false;
      if (this.#image) this.#context.putImageData(this.#image, 0, 0);
    });
  }

  /** @param {Square} square @param {Uint8Array} weights @param {number} count */
  #lines({ left, top, size }, weights, count) {
    const context = this.#context;
    context.clearRect(left, top, size, size);
    context.strokeStyle = color("a-2");
    eachWeight(weights, count, 0.08, (query, key, share) => {
      context.globalAlpha = share * 0.8;
      context.beginPath();
      context.moveTo(left + 2, top + ((query + 0.5) / count) * size);
      context.lineTo(left + size - 2, top + ((key + 0.5) / count) * size);
      context.stroke();
    });
    context.globalAlpha = 1;
  }
}

/**
 * The weights of all pairs in a square; where it has fewer pixels than pairs, a pixel is the mean of its own.
 * @param {ImageData} image @param {Square} square @param {Uint8Array} weights @param {number} count
 */
export function drawMatrix(image, { left, top, size }, weights, count) {
  const pixels = new Uint32Array(image.data.buffer);
  const colors = palette();
  const at = (/** @type {number} */ row, /** @type {number} */ column) => (top + row) * image.width + left + column;
  if (count <= size) {
    const source = Array.from({ length: size }, (_, i) => Math.floor((i * count) / size));
    for (let row = 0; row < size; row++) {
      const query = source[row];
      for (let column = 0; column < size; column++) pixels[at(row, column)] = source[column] <= query
        ? colors[LEVEL[weights[query * count + source[column]]]] : 0;
    }
    return;
  }
  const target = Array.from({ length: count }, (_, i) => Math.floor((i * size) / count));
  const [sums, counts] = [new Uint32Array(size), new Uint32Array(size)];
  for (let query = 0; query < count; query++) {
    for (let key = 0; key <= query; key++) {
      sums[target[key]] += LEVEL[weights[query * count + key]];
      counts[target[key]]++;
    }
    if (target[query + 1] === target[query]) continue;
    for (let column = 0; column < size; column++) pixels[at(target[query], column)] = counts[column] ? colors[Math.round(sums[column] / counts[column])] : 0;
    sums.fill(0);
    counts.fill(0);
  }
}

/** The shade of a weight: the square root lets small weights be seen. */
const LEVEL = Uint8Array.from({ length: 256 }, (_, weight) => Math.round(Math.sqrt(255 * weight)));

/** The shades as an image stores them: red in the lowest byte. */
function palette() {
  return Uint32Array.from(shades("attention"), ({ rgb: [red, green, blue] }) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0);
}

/** The button of a head, over its picture. @param {number} layer @param {number} head @param {boolean} main of the text, not of the second one */
export function thumbOf(layer, head, main) {
  return el("button", { class: "thumb", "data-layer": layer, "data-head": head, draggable: main ? null : "true", tabindex: -1,
    title: t("heads.head", { head: `${layer}.${head}` }) });
}

/** @param {Event} event @returns {{layer: number, head: number} | null} the head an event happened on */
export function placeOf({ target }) {
  const thumb = target instanceof Element ? target.closest(".thumb") : null;
  return thumb instanceof HTMLElement ? { layer: Number(thumb.dataset.layer), head: Number(thumb.dataset.head) } : null;
}
