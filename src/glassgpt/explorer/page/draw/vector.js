// <glass-vector>: a vector as a strip of colors; the pointer or the arrow keys read single values.

import { diverging, el, format, pixels, prepare, put } from "./draw.js";
import { math } from "./math.js";
import { Drawn } from "../view.js";
import { t } from "../languages/language.js";

/** The quantile of the magnitudes with full color: one outlier must not pale the rest. */
const FULL = 0.99;

/** A number that nearly all of the values stay below in size. @param {ArrayLike<number>} values */
export function limitOf(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  return sizes[Math.floor((sizes.length - 1) * FULL)] || 1;
}

export class GlassVector extends Drawn {
  /** @type {ArrayLike<number>} */ values = [];
  /** @type {[number, number] | null} a range to highlight */ #mark = null;
  #title = el("span");
  #facts = el("span", { class: "quiet small" });
  #canvas = el("canvas", { "aria-hidden": "true" });
  #name = "";
  #at = 0;
  #limit = 1;
  #shape = { columns: 1, cell: 1, high: 1 };

  build() {
    this.box.className = "image";
    this.box.setAttribute("role", "img");
    this.box.append(this.#canvas);
    put(this, el("div", { class: "about" }, this.#title, this.#facts), this.box);
    this.box.addEventListener("mousemove", (event) => this.#point(event));
    this.box.addEventListener("keydown", (event) => this.#step(event));
    for (const name of ["mouseleave", "blur"]) {
      this.box.addEventListener(name, () => {
        this.#notify();
        this.onread(-1);
      });
    }
  }

  /** @param {string} name as in a formula @param {ArrayLike<number>} values @param {{mark?: [number, number], limit?: number}} [how] */
  show(name, values, { mark, limit = limitOf(values) } = {}) {
    if (name !== this.#name) put(this.#title, math(name));
    this.#name = name;
    this.values = values;
    this.#mark = mark ?? null;
    this.#limit = limit;
    this.#notify();
    this.draw();
  }

  #notify() {
    const length = Math.sqrt(Array.from(this.values).reduce((sum, value) => sum + value * value, 0));
    const facts = t("vector.facts", { n: this.values.length, norm: format(length, 2) });
    put(this.#facts, facts);
    this.box.setAttribute("aria-label", t("vector.label", { name: this.#name, facts }));
  }

  /** Called with the index that is read, or -1 for none: vectors of one width may be read together. @type {(place: number) => void} */
  onread = () => {};

  /** Read one value. @param {number} place */
  read(place) {
    if (place < 0) return this.#notify();
    this.#at = Math.max(0, Math.min(this.values.length - 1, place));
    const value = format(this.values[this.#at], 4);
    put(this.#facts, `[${this.#at}] = ${value}`);
    this.box.setAttribute("aria-label", t("vector.value", { name: this.#name, place: this.#at, value }));
  }

  /** @param {MouseEvent} event */
  #point({ clientX, clientY }) {
    const { left, top } = this.#canvas.getBoundingClientRect();
    const { columns, cell, high } = this.#shape;
    const column = Math.floor((clientX - left) / cell);
    if (column >= 0 && column < columns) this.#pick(Math.floor((clientY - top) / high) * columns + column);
  }

  /** @param {KeyboardEvent} event */
  #step(event) {
    const { columns } = this.#shape;
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.#pick(this.#at + by);
  }

  /** @param {number} place */
  #pick(place) {
    this.read(place);
    this.onread(this.#at);
  }

  draw() {
    const count = this.values.length;
    if (!this.width || !count) return;
    const rows = Math.max(1, Math.ceil((count * 2.2) / this.width));
    const columns = Math.ceil(count / rows);
    const cell = Math.min(18, this.width / columns);
    const high = rows === 1 ? 16 : rows === 2 ? 9 : 7;
    this.#shape = { columns, cell, high };
    const context = prepare(this.#canvas, columns * cell, rows * high);
    const drawn = pixels(columns, rows, (i) => (i < count ? diverging(this.values[i], this.#limit).rgb : null));
    context.globalAlpha = this.#mark ? 0.35 : 1;
    context.drawImage(drawn, 0, 0, columns * cell, rows * high);
    if (!this.#mark) return;
    context.beginPath();
    for (let i = this.#mark[0]; i < this.#mark[1]; i++) context.rect((i % columns) * cell, Math.floor(i / columns) * high, cell, high);
    context.clip();
    context.globalAlpha = 1;
    context.drawImage(drawn, 0, 0, columns * cell, rows * high);
  }
}

customElements.define("glass-vector", GlassVector);
