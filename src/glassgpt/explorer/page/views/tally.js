// The tally: every matrix with its shape and count, drawn to scale; and The Illustrated GPT-2's own sum next to it.

import { api } from "../state/api.js";
import { color, el, PARTS, percent, put, svg } from "../draw/draw.js";
import { count, head, label, line, Panel, figure, current, scroll } from "../panel.js";
import { strips } from "../draw/scale.js";

const inBlock = (/** @type {TallyRow} */ row) => row.name.startsWith("h.");
const ofOne = (/** @type {TallyRow} */ row) => !inBlock(row) || row.name.startsWith("h.0."); // outside, or in the first block
const shortName = (/** @type {TallyRow} */ row) => row.name.replace(/^h\.\d+\./, "");
const shapeOf = (/** @type {TallyRow} */ row) => row.shape.map(count).join(" × ");

/** Kinds of matrices, by how their names begin. @type {[start: string, kind: string][]} */
const KINDS = [
  ["wte", "token table: wte"],
  ["wpe", "position table: wpe"],
  ["attn.", "attention: c_attn, c_proj"],
  ["mlp.", "MLP: c_fc, c_proj"],
  ["lm_head", "head: lm_head"],
];

/**
 * The longest label that fits on a strip; a block's first one says which block it is.
 * @param {TallyRow} row @param {boolean} first of its pieces @param {number} width @param {number} height
 */
function labelFor(row, first, width, height) {
  const name = shortName(row).replace(".weight", "");
  const number = row.name.split(".")[1];
  const last = /** @type {string} */ (name.split(".").at(-1));
  const choice = !first ? [`${name}, continued`] : shortName(row).startsWith("attn.c_attn") ? [`block ${number}: c_attn`, `block ${number}`, number]
    : [name, last];
  return height < 13 ? "" : (choice.find((text) => text.length * 6.2 + 8 < width) ?? "");
}

class GlassTally extends Panel {
  /** @type {Topic[]} */ wants = ["trace", "theme"];
  /** @type {Tally | null} */ #tally = null;
  #model = -1;
  #title = el("h2");
  #figure = el("figure");
  #pointed = el("p", { class: "small quiet said", role: "status" });
  #table = el("table", { class: "figures tally-table" });
  #article = el("table", { class: "figures" });
  #why = el("div");
  parts = [this.#title, this.#figure, this.#pointed, scroll("Every tensor", this.#table), el("h2", {}, "The table of The Illustrated GPT-2"),
    this.#why, scroll("The article’s table", this.#article)];

  render() {
    const { model } = current().trace;
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
    const edge = { stroke: color("ink"), "stroke-opacity": 0.25 };
    const kinds = KINDS.filter(([start]) => rows.some((row) => shortName(row).startsWith(start)));
    const drawn = pieces.map(({ row, x, y, width: w, height: h, first }) => {
      const { fill, ink } = PARTS[/** @type {string} */ (Object.keys(PARTS).find((start) => shortName(row).startsWith(start)))]();
      const words = `${inBlock(row) ? `block ${row.name.split(".")[1]}, ` : ""}${shortName(row)}: ${shapeOf(row)} = ${count(row.count)}`;
      const part = svg("rect", { x: x + 0.5, y: y + 0.5, width: w, height: h, rx: 1.5, fill, ...edge, "data-name": row.name }, svg("title", {}, words));
      part.addEventListener("pointerenter", () => put(this.#pointed, words));
      return [part, label(x + 5, y + h / 2 + 4, labelFor(row, first, w, h), { fill: ink, "font-size": 11, "pointer-events": "none" })];
    });
    const share = (/** @type {string} */ start) => rows.filter((row) => shortName(row).startsWith(start)).reduce((sum, row) => sum + row.count, 0) / total;
    const inLine = width < 560 ? 1 : 2;
    const legend = kinds.map(([start, kind], i) => {
      const [x, y] = [((i % inLine) * width) / inLine, height + 14 + 18 * Math.floor(i / inLine)];
      return [svg("rect", { x, y, width: 11, height: 11, rx: 2, fill: PARTS[start]().fill, ...edge }),
        label(x + 16, y + 10, `${kind}: ${percent(share(start))} of all parameters`, { "font-size": 11, fill: color("ink") })];
    });
    const below = height + 26 + 18 * Math.ceil(kinds.length / inLine);
    const note = `One square pixel: ${count(Math.round(perPixel))} parameters. Biases and gains are too thin to draw.`;
    put(this.#title, `${count(total)} parameters, drawn to scale`);
    put(this.#figure, figure(width, below + 6, "Every matrix, drawn to scale", drawn.flat(), legend.flat(),
      label(0, below, note, width < 420 ? { textLength: width - 4 } : { "font-size": 11 })));
  }

  /** @param {Tally} tally */
  #showTable({ rows, total }) {
    const { n_layer } = current().config;
    const each = rows.filter(ofOne).map((row) =>
      line(shortName(row), [el("td", { class: "words" }, (row.meaning ?? "").replace("->", "→")), shapeOf(row), count(row.count)], inBlock(row)
      ? "inside" : ""));
    const one = rows.filter((row) => row.name.startsWith("h.0.")).reduce((sum, row) => sum + row.count, 0);
    const sum = (/** @type {string} */ name, /** @type {number} */ n) => line(name, [el("td", { class: "words" }), "", count(n)], "sum");
    const after = each.findLastIndex((row) => row.className === "inside") + 1;
    put(this.#table, head(["tensor", "description", "shape", "parameters"]), el("tbody", {}, each.slice(0, after), sum("one block", one),
      sum(`all ${n_layer} blocks`, one * n_layer), each.slice(after), sum("total", total)));
    this.#table.querySelectorAll("thead th")[1].className = "words";
  }

  /** @param {Tally} tally */
  #showArticle({ illustrated, illustrated_total, published_total }) {
    const missing = published_total - illustrated_total;
    put(this.#why,
      el("p", {}, "The article counts GPT-2 small (12 blocks, 768 wide) as ", el("b", {}, count(illustrated_total)),
        " parameters. The published tensors have ", el("b", {}, count(published_total)), `: ${count(missing)} more. Two things are missing from its table:`),
      el("ul", {},
        el("li", {}, "the bias of mlp.c_fc is listed with 768 values, but has 3,072: 12 × 2,304 = ", el("b", {}, "27,648")),
        el("li", {}, "ln_f, the final LayerNorm, is missing: 2 × 768 = ", el("b", {}, "1,536"))));
    put(this.#article, head(["tensor", "published", "the article", "difference"]), el("tbody", {},
      illustrated.filter(ofOne).map((row) => line(shortName(row), [count(row.published), count(row.count), row.published === row.count ? ""
        : count(row.published - row.count)], `${inBlock(row) ? "inside" : ""} ${row.published === row.count ? "" : "differs"}`)),
      line("total", [count(published_total), count(illustrated_total), count(missing)], "sum")));
  }
}

customElements.define("glass-tally", GlassTally);
