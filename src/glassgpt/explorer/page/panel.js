// The base of the views with keys of their own: made of parts, redrawn on resize.

import { color, el, svg, visible } from "./draw/draw.js";
import { bind } from "./keys.js";
export { number as count } from "./languages/language.js";
import { store } from "./state/store.js";
import { GlassView } from "./view.js";


/** A token within a sentence. @param {string} text */
export const named = (text) => el("b", { class: "named" }, visible(text));

/** The current trace and config; views are rendered only when there are some. */
export const current = () => ({ trace: /** @type {Trace} */ (store.trace), config: /** @type {ModelConfig} */ (store.config) });

/** An SVG with a label for screen readers. @param {number} width @param {number} height @param {string} words @param {...(Child | Child[])} children */
export const figure = (width, height, words, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words }, ...children);

/** A text in a figure. @param {number} x @param {number} y @param {string | number} text @param {Record<string, unknown>} [more] */
export const label = (x, y, text, more = {}) => svg("text", { x, y, "font-size": 10, fill: color("soft"), ...more }, text);

/** A table row. @param {string} name @param {(string | HTMLTableCellElement)[]} cells @param {string} [kind] its class */
export const line = (name, cells, kind = "") => el("tr", { class: kind }, el("th", { scope: "row" }, name),
  cells.map((cell) => (typeof cell === "string" ? el("td", {}, cell) : cell)));

/** A table head. @param {string[]} names */
export const head = (names) => el("thead", {}, el("tr", {}, names.map((name) => (name ? el("th", { scope: "col" }, name) : el("td")))));

/** A box that scrolls if its table or figure is too wide. @param {string} name @param {Element} content */
export const scroll = (name, content) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, content);

/**
 * A slider with a label and its value as text.
 * @param {string} id @param {string} name @param {Record<string, unknown>} attributes @param {(value: number) => void} run
 */
export function slider(id, name, attributes, run) {
  const input = el("input", { type: "range", id, min: 0, step: 1, ...attributes, oninput: () => run(Number(input.value)) });
  const says = el("output", { for: id });
  const show = (/** @type {number} */ value, /** @type {string} */ words) => {
    if (Number(input.value) !== value) input.value = String(value);
    says.textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
  return { input, says, show, label: el("label", { for: id }, name) };
}

export class Panel extends GlassView {
  /** @type {Node[]} */ parts = [];
  /** @type {Parameters<typeof bind>[]} */ keys = [];
  /** @type {(() => void)[]} */ #unbind = [];
  #redraw = () => store.trace && this.render(new Set());

  build() {
    this.append(...this.parts, this.problem);
  }

  connectedCallback() {
    super.connectedCallback();
    this.#unbind = this.keys.map((key) => bind(...key));
    addEventListener("resize", this.#redraw);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    for (const unbind of this.#unbind) unbind();
    removeEventListener("resize", this.#redraw);
  }

  /** The width for figures. */
  get figureWidth() {
    return Math.max(240, this.clientWidth || 590);
  }
}
