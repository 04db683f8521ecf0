// <glass-vector>: a vector as a strip of colours; the pointer or the arrow keys read single numbers.

import { diverging, el, format, prepare, put } from "./draw.js";
import { math } from "./math.js";

/** The colour is full at this quantile of the sizes: one outlier must not pale all the rest. */
const FULL = 0.99;

/** A number that nearly all of the values stay below in size. @param {ArrayLike<number>} values */
export function limitOf(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  return sizes[Math.floor((sizes.length - 1) * FULL)] || 1;
}

/** The length of a vector. @param {ArrayLike<number>} values */
export function lengthOf(values) {
  return Math.sqrt(Array.from(values).reduce((sum, value) => sum + value * value, 0));
}

export class GlassVector extends HTMLElement {
  /** @type {ArrayLike<number>} */ values = [];
  /** @type {[number, number] | null} a stretch to mark */ #mark = null;
  #facts = el("span", { class: "quiet small" });
  #canvas = el("canvas", { "aria-hidden": "true" });
  #image = el("div", { class: "strip-image", role: "img", tabindex: 0 });
  #title = el("span", {});
  #at = 0;
  #name = "";
  #shape = { columns: 1, rows: 1, cell: 1, high: 1 };
  /** @type {ResizeObserver | null} */ #watch = null;

  connectedCallback() {
    if (!this.#watch) {
      this.#image.append(this.#canvas);
      put(this, el("div", { class: "strip-head" }, this.#title, this.#facts), this.#image);
      this.#image.addEventListener("mousemove", (event) => this.#point(event));
      this.#image.addEventListener("mouseleave", () => this.#showFacts());
      this.#image.addEventListener("keydown", (event) => this.#step(event));
      this.#image.addEventListener("blur", () => this.#showFacts());
    }
    this.#watch = new ResizeObserver(() => this.#draw());
    this.#watch.observe(this.#image);
    document.addEventListener("glass-theme", this.#onTheme);
  }

  disconnectedCallback() {
    this.#watch?.disconnect();
    document.removeEventListener("glass-theme", this.#onTheme);
  }

  #onTheme = () => this.#draw();

  /**
   * Show a vector. @param {string} name as in a formula @param {ArrayLike<number>} values @param {{mark?: [number, number]}} [options]
   */
  show(name, values, { mark } = {}) {
    if (name !== this.#name) put(this.#title, math(name));
    this.#name = name;
    this.values = values;
    this.#mark = mark ?? null;
    this.#at = Math.min(this.#at, Math.max(0, values.length - 1));
    this.#image.setAttribute("aria-label", `${name.replace(/[_{}]/g, " ")}: ${values.length} numbers of length ${format(lengthOf(values), 2)}; arrow keys read them`);
    this.#showFacts();
    this.#draw();
  }

  #showFacts() {
    put(this.#facts, `${this.values.length} numbers, length ${format(lengthOf(this.values), 2)}`);
  }

  /** @param {number} place */
  #read(place) {
    this.#at = Math.max(0, Math.min(this.values.length - 1, place));
    put(this.#facts, math(`${this.#name.split(" ")[0]} [${this.#at}]`), ` = ${format(this.values[this.#at], 4)}`);
  }

  /** @param {MouseEvent} event */
  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.#shape.cell);
    const row = Math.floor((event.clientY - box.top) / this.#shape.high);
    if (column >= 0 && column < this.#shape.columns) this.#read(row * this.#shape.columns + column);
  }

  /** @param {KeyboardEvent} event */
  #step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#shape.columns, ArrowUp: -this.#shape.columns, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.#read(this.#at + by);
    this.#image.setAttribute("aria-label", `${this.#name.replace(/[_{}]/g, " ")}, number ${this.#at}: ${format(this.values[this.#at], 4)}`);
  }

  #draw() {
    const width = this.#image.clientWidth;
    const count = this.values.length;
    if (!width || !count) return;
    const rows = Math.max(1, Math.ceil((count * 2.2) / width));
    const columns = Math.ceil(count / rows);
    const cell = Math.min(18, width / columns);
    const high = rows === 1 ? 18 : 9;
    this.#shape = { columns, rows, cell, high };
    const context = prepare(this.#canvas, columns * cell, rows * high);
    const limit = limitOf(this.values);
    for (let i = 0; i < count; i++) {
      context.fillStyle = diverging(this.values[i], limit).fill;
      const x = (i % columns) * cell;
      context.fillRect(x, Math.floor(i / columns) * high, cell + 0.4, high);
    }
    if (this.#mark && rows === 1) this.#outline(context, this.#mark, cell, high);
    else if (this.#mark) this.#shadeOthers(context, this.#mark);
  }

  /** @param {CanvasRenderingContext2D} context @param {[number, number]} mark @param {number} cell @param {number} high */
  #outline(context, [from, to], cell, high) {
    context.strokeStyle = getComputedStyle(this).color;
    context.lineWidth = 2;
    context.strokeRect(from * cell + 1, 1, (to - from) * cell - 2, high - 2);
  }

  /** Over several lines a frame would be torn: pale what is not marked instead. @param {CanvasRenderingContext2D} context @param {[number, number]} mark */
  #shadeOthers(context, [from, to]) {
    const { columns, cell, high } = this.#shape;
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--pane");
    context.globalAlpha = 0.6;
    for (let i = 0; i < this.values.length; i++) {
      if (i < from || i >= to) context.fillRect((i % columns) * cell, Math.floor(i / columns) * high, cell + 0.4, high);
    }
    context.globalAlpha = 1;
  }
}

customElements.define("glass-vector", GlassVector);
