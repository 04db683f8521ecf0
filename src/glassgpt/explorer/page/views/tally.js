// The tally: every matrix with its shape and count, drawn to scale; and The Illustrated GPT-2's own sum beside it.

import { api } from "../api.js";
import { colour, diverging, el, put, shade, svg } from "../draw.js";
import { count, head, label, line, Panel, figure, current, scroll } from "../panel.js";
import { strips } from "../scale.js";
import { store } from "../store.js";

const inBlock = (/** @type {TallyRow} */ row) => row.name.startsWith("h.");
const ofOne = (/** @type {TallyRow} */ row) => !inBlock(row) || row.name.startsWith("h.0."); // outside, or in the first block
const shortName = (/** @type {TallyRow} */ row) => row.name.replace(/^h\.\d+\./, "");
const shapeOf = (/** @type {TallyRow} */ row) => row.shape.map(count).join(" × ");

/** @type {[start: string, kind: string, paint: () => {fill: string, ink: string}][]} kinds of matrices, by the prefix of their names */
const KINDS = [
  ["wte", "tokens", () => shade("probability", 0.55)],
  ["wpe", "positions", () => shade("loss", 0.5)],
  ["attn.", "attention", () => shade("attention", 0.55)],
  ["mlp.", "MLP", () => diverging(0.6, 1)],
  ["lm_head", "head", () => shade("probability", 0.8)],
];

/** The longest label that fits on a strip. @param {TallyRow} row @param {number} width @param {number} height */
function labelFor(row, width, height) {
  const block = shortName(row).startsWith("attn.c_attn") ? `${row.name.split(".")[1]}: ` : "";
  const full = block + shortName(row).replace(".weight", "");
  return height < 13 ? "" : ([full, block + full.split(".").at(-1), block.replace(": ", "")].find((text) => text && text.length * 6.2 + 8 < width) ?? "");
}

class GlassTally extends Panel {
  /** @type {Topic[]} */ wants = ["info", "model", "theme"];
  /** @type {Tally | null} */ #tally = null;
  #model = -1;
  #title = el("h2");
  #figure = el("figure");
  #pointed = el("p", { class: "small quiet said", role: "status" });
  #table = el("table", { class: "figures tally-table" });
  #article = el("table", { class: "figures" });
  #why = el("div");
  parts = [this.#title, this.#figure, this.#pointed, scroll("Every tensor", this.#table), el("h2", {}, "The table of The Illustrated GPT-2"), this.#why, scroll("The article’s table", this.#article)];

  render() {
    const { model } = store.get();
    if (this.#model === model && this.#tally) this.#draw(this.#tally);
    else void this.load(api.get(`/tally?model=${model}`, { slot: "tally" }), (/** @type {Tally} */ tally) => {
      [this.#tally, this.#model] = [tally, model];
      this.#draw(tally);
      this.#showTable(tally);
      this.#showArticle(tally);
    });
  }

  /** @param {Tally} tally */
  #draw({ rows, total }) {
    const width = this.figureWidth;
    const { pieces, height, perPixel } = strips(rows, current().config.n_embd, width - 2);
    const edge = { stroke: colour("ink"), "stroke-opacity": 0.25 };
    const kinds = KINDS.filter(([start]) => rows.some((row) => shortName(row).startsWith(start)));
    const drawn = pieces.map(({ row, x, y, width: w, height: h, first }) => {
      const { fill, ink } = /** @type {(typeof KINDS)[0]} */ (KINDS.find(([start]) => shortName(row).startsWith(start)))[2]();
      const words = `${inBlock(row) ? `block ${row.name.split(".")[1]}, ` : ""}${shortName(row)}: ${shapeOf(row)} = ${count(row.count)}`;
      const part = svg("rect", { x: x + 0.5, y: y + 0.5, width: w, height: h, rx: 1.5, fill, ...edge, "data-name": row.name }, svg("title", {}, words));
      part.addEventListener("pointerenter", () => put(this.#pointed, words));
      return [part, first && label(x + 5, y + h / 2 + 4, labelFor(row, w, h), { fill: ink, "font-size": 11, "pointer-events": "none" })];
    });
    const legend = kinds.map(([, kind, paint], i) => [svg("rect", { x: i * 82, y: height + 14, width: 11, height: 11, rx: 2, fill: paint().fill, ...edge }), label(i * 82 + 16, height + 24, kind, { "font-size": 11 })]);
    const note = `One square pixel: ${count(Math.round(perPixel))} parameters. Biases and gains are too thin to draw.`;
    put(this.#title, `${count(total)} parameters, drawn to scale`);
    put(this.#figure, figure(width, height + 50, "Every matrix, drawn to scale", drawn.flat(), legend.flat(), label(0, height + 44, note, width < 420 ? { textLength: width - 4 } : { "font-size": 11 })));
  }

  /** @param {Tally} tally */
  #showTable({ rows, total }) {
    const { n_layer } = current().config;
    const each = rows.filter(ofOne).map((row) => line(shortName(row), [el("td", { class: "words" }, row.meaning ?? ""), shapeOf(row), count(row.count)], inBlock(row) ? "inside" : ""));
    const one = rows.filter((row) => row.name.startsWith("h.0.")).reduce((sum, row) => sum + row.count, 0);
    const sum = (/** @type {string} */ name, /** @type {number} */ n) => line(name, [el("td", { class: "words" }), "", count(n)], "sum");
    const after = each.findLastIndex((row) => row.className === "inside") + 1;
    put(this.#table, head(["tensor", "description", "shape", "parameters"]), el("tbody", {}, each.slice(0, after), sum("one block", one), sum(`all ${n_layer} blocks`, one * n_layer), each.slice(after), sum("total", total)));
    this.#table.querySelectorAll("thead th")[1].className = "words";
  }

  /** @param {Tally} tally */
  #showArticle({ illustrated, illustrated_total, published_total }) {
    const missing = published_total - illustrated_total;
    put(this.#why,
      el("p", {}, "The article counts GPT-2 small (12 blocks, 768 wide) as ", el("b", {}, count(illustrated_total)), " parameters. The published tensors have ", el("b", {}, count(published_total)), `: ${count(missing)} more. Two things are missing from its table:`),
      el("ul", {},
        el("li", {}, "the bias of mlp.c_fc is listed with 768 values, but has 3,072: 12 × 2,304 = ", el("b", {}, "27,648")),
        el("li", {}, "ln_f, the final LayerNorm, is missing: 2 × 768 = ", el("b", {}, "1,536"))));
    put(this.#article, head(["tensor", "published", "the article", "difference"]), el("tbody", {},
      illustrated.filter(ofOne).map((row) => line(shortName(row), [count(row.published), count(row.count), row.published === row.count ? "" : count(row.published - row.count)], `${inBlock(row) ? "inside" : ""} ${row.published === row.count ? "" : "differs"}`)),
      line("total", [count(published_total), count(illustrated_total), count(missing)], "sum")));
  }
}

customElements.define("glass-tally", GlassTally);
