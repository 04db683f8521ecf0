// The tally: every matrix with its shape and count, drawn to scale; and The Illustrated GPT-2's own sum beside it.

import { api, isAbort } from "../api.js";
import { colour, diverging, el, put, shade, svg, svgText } from "../draw.js";
import { strips } from "../scale.js";
import { store } from "../store.js";
import { GlassView } from "../view.js";

/** @typedef {{name: string, shape: number[], count: number, meaning?: string}} Row */
/** @typedef {{rows: Row[], total: number, illustrated: (Row & {published: number})[], illustrated_total: number, published_total: number}} Tally */

const count = (/** @type {number} */ n) => n.toLocaleString("en-US");
const inBlock = (/** @type {Row} */ row) => row.name.startsWith("h.");
const shortName = (/** @type {Row} */ row) => row.name.replace(/^h\.\d+\./, "");

/** @type {Record<string, string>} the kinds of matrices, by how their names begin */
const KINDS = { "attn.": "attention", "mlp.": "MLP", wte: "tokens", wpe: "positions", lm_head: "head" };

/** @param {Row} row */
function kindOf(row) {
  const found = Object.keys(KINDS).find((start) => shortName(row).startsWith(start));
  return found === undefined ? "norm" : KINDS[found];
}

/** @param {string} kind */
function paint(kind) {
  if (kind === "tokens" || kind === "head") return shade("probability", 0.55);
  if (kind === "positions") return shade("surprise", 0.5);
  return kind === "attention" ? shade("attention", 0.55) : diverging(0.6, 1);
}

class GlassTally extends GlassView {
  /** @type {Topic[]} */ wants = ["info", "model", "theme"];
  /** @type {Tally | null} */ #tally = null;
  #model = -1;

  constructor() {
    super();
    this.heading = el("h2");
    this.picture = el("figure", { class: "tally-picture" });
    this.table = el("table", { class: "figures tally-table" });
    this.article = el("table", { class: "figures tally-table" });
    this.why = el("div", { class: "tally-why" });
    this.pointed = el("p", { class: "small quiet", role: "status" });
  }

  connectedCallback() {
    if (!this.firstChild) {
      this.append(this.heading, this.picture, this.pointed, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Every tensor" }, this.table),
        el("h2", { class: "second" }, "The Illustrated GPT-2’s own table"), this.why, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The article's table" }, this.article));
    }
    super.connectedCallback();
    addEventListener("resize", this.#onResize);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    removeEventListener("resize", this.#onResize);
  }

  #onResize = () => this.#draw();

  render() {
    const { model } = store.get();
    if (this.#model === model && this.#tally) this.#draw();
    else void this.#load(model);
  }

  /** @param {number} model */
  async #load(model) {
    try {
      this.#tally = await api.get(`/tally?model=${model}`, { slot: "tally" });
      this.#model = model;
      this.#draw();
      this.#showTable();
      this.#showArticle();
    } catch (error) {
      if (!isAbort(error)) put(this.heading, error instanceof Error ? error.message : String(error));
    }
  }

  #draw() {
    if (!this.#tally) return;
    put(this.heading, `${count(this.#tally.total)} numbers, each drawn in proportion`);
    put(this.picture, this.#figure(Math.max(260, this.clientWidth || 590)));
  }

  /** @param {number} width */
  #figure(width) {
    const { rows } = /** @type {Tally} */ (this.#tally);
    const { n_embd } = /** @type {ModelConfig} */ (store.config);
    const { pieces, height, perPixel } = strips(rows, n_embd, width - 2);
    const [ink, soft] = ["ink", "soft"].map(colour);
    const drawn = pieces.map(({ row, x, y, width: w, height: h, first, last }) => {
      const { fill, ink: over } = paint(kindOf(row));
      const block = inBlock(row) ? `block ${row.name.split(".")[1]}, ` : "";
      const words = `${block}${shortName(row)}: ${row.shape.map(count).join(" × ")} = ${count(row.count)}`;
      const name = labelFor(row, w, h);
      const made = svg("g", {},
        svg("rect", { x: x + 0.5, y: y + 0.5, width: w, height: h, rx: first || last ? 2 : 0, fill, stroke: ink, "stroke-opacity": 0.25 }, svg("title", {}, words)),
        first && name ? svg("text", { x: x + 5, y: y + h / 2 + 4, "font-size": 11, fill: over, "pointer-events": "none" }, name) : null);
      made.addEventListener("pointerenter", () => put(this.pointed, words));
      return made;
    });
    const kinds = ["tokens", "positions", "attention", "MLP", ...(rows.some((row) => row.name.startsWith("lm_head")) ? ["head"] : [])];
    const legend = kinds.map((kind, i) => [
      svg("rect", { x: i * 86, y: height + 14, width: 11, height: 11, rx: 2, fill: paint(kind).fill, stroke: ink, "stroke-opacity": 0.25 }),
      svg("text", { x: i * 86 + 16, y: height + 24, "font-size": 11, fill: soft }, kind),
    ]).flat();
    const note = svg("text", { x: 0, y: height + 44, "font-size": 11, fill: soft },
      width > 420 ? `One square pixel is ${count(Math.round(perPixel))} numbers. Biases and gains, one number thin, are left out of the picture.` : `One square pixel: ${count(Math.round(perPixel))} numbers. Not drawn: biases, gains.`);
    return svg("svg", { width, height: height + 50, viewBox: `0 0 ${width} ${height + 50}`, role: "img", "aria-label": "Every matrix, drawn to scale" }, drawn, legend, note);
  }

  #showTable() {
    const { rows, total } = /** @type {Tally} */ (this.#tally);
    const { n_layer } = /** @type {ModelConfig} */ (store.config);
    const block = rows.filter((row) => row.name.startsWith("h.0."));
    const one = block.reduce((sum, row) => sum + row.count, 0);
    const blocks = rows.findIndex(inBlock);
    const outside = rows.filter((row) => !inBlock(row));
    const line = (/** @type {Row} */ row) => el("tr", {}, el("th", { scope: "row", class: inBlock(row) ? "inner" : "" }, shortName(row)),
      el("td", { class: "words" }, row.meaning ?? ""), el("td", {}, row.shape.map(count).join(" × ")), el("td", {}, count(row.count)));
    const sum = (/** @type {string} */ name, /** @type {number} */ n) => el("tr", { class: "sum" }, el("th", { scope: "row" }, name), el("td"), el("td"), el("td", {}, count(n)));
    put(this.table,
      el("thead", {}, el("tr", {}, ["tensor", "what it is", "shape", "numbers"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {},
        outside.slice(0, Math.max(0, blocks)).map(line), block.map(line), sum("one block", one), sum(`${n_layer} blocks`, one * n_layer),
        outside.slice(Math.max(0, blocks)).map(line), sum("all", total)));
  }

  #showArticle() {
    const { illustrated, illustrated_total, published_total } = /** @type {Tally} */ (this.#tally);
    put(this.why,
      el("p", {}, "The article counts GPT-2 small (12 blocks, 768 wide) and arrives at ", el("b", {}, count(illustrated_total)), ". The published tensors hold ", el("b", {}, count(published_total)),
        `: ${count(published_total - illustrated_total)} more. Two things are missing from its table:`),
      el("ul", {},
        el("li", {}, "the bias of mlp.c_fc is given 768 numbers; that layer is 3,072 wide and so is its bias: 12 × 2,304 = ", el("b", {}, "27,648")),
        el("li", {}, "ln_f, the norm after the last block, is left out: 2 × 768 = ", el("b", {}, "1,536"))));
    put(this.article,
      el("thead", {}, el("tr", {}, ["tensor", "shape", "published", "the article", "difference"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, illustrated.map((row) => {
        const difference = row.published - row.count;
        return el("tr", { class: difference ? "differs" : "" }, el("th", { scope: "row" }, row.name), el("td", {}, row.shape.map(count).join(" × ")), el("td", {}, count(row.published)), el("td", {}, count(row.count)), el("td", {}, difference ? count(difference) : ""));
      }), el("tr", { class: "sum" }, el("th", { scope: "row" }, "all, with 12 blocks"), el("td"), el("td", {}, count(published_total)), el("td", {}, count(illustrated_total)), el("td", {}, count(published_total - illustrated_total)))));
  }

  toSVG() {
    const figure = this.#figure(860);
    figure.setAttribute("x", "16");
    figure.setAttribute("y", "40");
    return svgText(892, Number(figure.getAttribute("height")) + 52, [svg("text", { x: 16, y: 24, "font-size": 15, "font-weight": 600, fill: colour("ink") }, this.heading.textContent), figure]);
  }
}

/** What fits onto a strip. @param {Row} row @param {number} width @param {number} height */
function labelFor(row, width, height) {
  if (height < 13) return "";
  const block = inBlock(row) && shortName(row).startsWith("attn.c_attn") ? `${row.name.split(".")[1]}: ` : "";
  const full = block + shortName(row).replace(".weight", "");
  return [full, block + full.split(".").at(-1), block.replace(": ", "")].find((text) => text && text.length * 6.2 + 8 < width) ?? "";
}

customElements.define("glass-tally", GlassTally);
