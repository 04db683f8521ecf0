// What views 5 to 8 share: they build their parts once, have keys of their own, fit the width, and come out as SVG.

import { colour, el, svg, svgText, visible } from "./draw.js";
import { bind } from "./keys.js";
import { store } from "./store.js";
import { GlassView } from "./view.js";

/** @param {number} n */
export const count = (n) => n.toLocaleString("en-US");

/** A token within a sentence. @param {string} text */
export const named = (text) => el("b", { class: "named" }, visible(text));

/** What went wrong, for people. @param {unknown} error */
export const message = (error) => (error instanceof Error ? error.message : String(error));

/** The present trace and shape; views are drawn only when there are some. */
export const present = () => ({ trace: /** @type {Trace} */ (store.trace), config: /** @type {ModelConfig} */ (store.config) });

/** Small words in a picture. @param {number} x @param {number} y @param {string | number} text @param {Record<string, unknown>} [more] */
export const label = (x, y, text, more = {}) => svg("text", { x, y, "font-size": 10, fill: colour("soft"), ...more }, text);

/** A line of a table: its name, then its cells. @param {string | Node} name @param {(string | Node)[]} cells @param {Record<string, unknown>} [more] */
export const line = (name, cells, more = {}) =>
  el("tr", more, el("th", { scope: "row" }, name), cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : el("td", {}, cell))));

/** The first line. @param {string[]} names */
export const head = (names) => el("thead", {}, el("tr", {}, names.map((name) => (name ? el("th", { scope: "col" }, name) : el("td")))));

/** A slider with its name and what it says. @param {string} id @param {string} name @param {Record<string, unknown>} attributes @param {(value: number) => void} run */
export function slider(id, name, attributes, run) {
  const input = el("input", { type: "range", id, min: 0, step: 1, ...attributes });
  input.addEventListener("input", () => run(Number(input.value)));
  const says = el("output", { for: id });
  const show = (/** @type {number} */ value, /** @type {string} */ words) => {
    if (Number(input.value) !== value) input.value = String(value);
    says.textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
  return { input, says, show, label: el("label", { for: id }, name) };
}

/** A box that scrolls sideways where its table is too wide. @param {string} name @param {HTMLTableElement} table */
export const scroll = (name, table) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, table);

export class Panel extends GlassView {
  /** @type {Node[]} */ parts = [];
  /** @type {Parameters<typeof bind>[]} */ keys = [];
  /** @type {(() => void)[]} */ #unbind = [];

  connectedCallback() {
    if (!this.firstChild) this.append(...this.parts);
    super.connectedCallback();
    this.#unbind = this.keys.map((key) => bind(...key));
    addEventListener("resize", this.#redraw);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    for (const unbind of this.#unbind) unbind();
    removeEventListener("resize", this.#redraw);
  }

  #redraw = () => store.trace && this.render(new Set());

  /** The room for pictures. */
  get room() {
    return Math.max(240, this.clientWidth || 590);
  }

  /** The view's pictures below each other, under its title. */
  toSVG(title = this.querySelector("h2")?.textContent ?? "") {
    const pictures = [.../** @type {NodeListOf<SVGSVGElement>} */ (this.querySelectorAll("svg[role=img]"))];
    const width = Math.max(...pictures.map((picture) => picture.viewBox.baseVal.width)) + 32;
    let y = 40;
    const placed = pictures.map((picture) => {
      const copy = /** @type {SVGElement} */ (picture.cloneNode(true));
      const { width: w, height: h } = picture.viewBox.baseVal;
      for (const [name, value] of Object.entries({ x: 16, y, width: w, height: h })) copy.setAttribute(name, String(value));
      y += h + 12;
      return copy;
    });
    return pictures.length === 0 ? "" : svgText(width, y, [svg("text", { x: 16, y: 24, "font-size": 15, fill: colour("ink") }, title), ...placed]);
  }
}
