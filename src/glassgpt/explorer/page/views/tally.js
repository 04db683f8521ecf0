// The tally: every matrix with its shape and count, drawn to scale; and The Illustrated GPT-2's own sum next to it.

import { api } from "../state/api.js";
import { color, el, PARTS, percent, put, svg } from "../draw/draw.js";
import { count, head, label, line, Panel, figure, current, scroll } from "../panel.js";
import { strips } from "../draw/scale.js";
import { widthOf } from "../draw/draw.js";
import { say } from "../text/terms.js";
import { isKnown, t } from "../languages/language.js";

const inBlock = (/** @type {TallyRow} */ row) => row.name.startsWith("h.");
const ofOne = (/** @type {TallyRow} */ row) => !inBlock(row) || row.name.startsWith("h.0."); // outside, or in the first block
const shortName = (/** @type {TallyRow} */ row) => row.name.replace(/^h\.\d+\./, "");
const shapeOf = (/** @type {TallyRow} */ row) => row.shape.map(count).join(" × ");

/** What a tensor is for: the server's words, or the reader's language's. @param {TallyRow} row */
const meaningOf = (row) => {
  const key = `tensor.${shortName(row)}`;
  return isKnown(key) ? t(key) : (row.meaning ?? "").replace("->", "→");
};

/** Kinds of matrices, by how their names begin; in words they are `tally.NAME`. */
const KINDS = ["wte", "wpe", "attn.", "mlp.", "lm_head"];

/**
 * The longest label that fits on a strip; a block's first one says which block it is.
 * @param {TallyRow} row @param {boolean} first of its pieces @param {number} width @param {number} height
 */
function labelFor(row, first, width, height) {
  const name = shortName(row).replace(".weight", "");
  const number = row.name.split(".")[1];
  const last = /** @type {string} */ (name.split(".").at(-1));
  const choice = !first ? [t("tally.continued", { name })] : shortName(row).startsWith("attn.c_attn") ? [t("tally.attention", { layer: number }), t("tally.block", { layer: number }), number]
    : [name, last];
  return height < 13 ? "" : (choice.find((text) => widthOf(text) + 8 < width) ?? "");
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
  parts = [this.#title, this.#figure, this.#pointed, scroll(t("tally.table"), this.#table), el("h2", {}, t("tally.article")),
    this.#why, scroll(t("tally.article.label"), this.#article)];

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
    const kinds = KINDS.filter((start) => rows.some((row) => shortName(row).startsWith(start)));
    const drawn = pieces.map(({ row, x, y, width: w, height: h, first }) => {
      const { fill, ink } = PARTS[/** @type {string} */ (Object.keys(PARTS).find((start) => shortName(row).startsWith(start)))]();
      const words = t(inBlock(row) ? "tally.tensor.block" : "tally.tensor",
        { layer: row.name.split(".")[1], name: shortName(row), shape: shapeOf(row), n: row.count });
      const part = svg("rect", { x: x + 0.5, y: y + 0.5, width: w, height: h, rx: 1.5, fill, ...edge, "data-name": row.name }, svg("title", {}, words));
      part.addEventListener("pointerenter", () => put(this.#pointed, words));
      return [part, label(x + 5, y + h / 2 + 4, labelFor(row, first, w, h), { fill: ink, "font-size": 11, "pointer-events": "none" })];
    });
    const share = (/** @type {string} */ start) => rows.filter((row) => shortName(row).startsWith(start)).reduce((sum, row) => sum + row.count, 0) / total;
    const inLine = width < 560 ? 1 : 2;
    const legend = kinds.map((start, i) => {
      const [x, y] = [((i % inLine) * width) / inLine, height + 14 + 18 * Math.floor(i / inLine)];
      return [svg("rect", { x, y, width: 11, height: 11, rx: 2, fill: PARTS[start]().fill, ...edge }),
        label(x + 16, y + 10, t("tally.share", { kind: t(`tally.${start.replace(".", "")}`), share: percent(share(start)) }), { "font-size": 11, fill: color("ink") })];
    });
    const below = height + 26 + 18 * Math.ceil(kinds.length / inLine);
    const note = [t("tally.pixel", { n: Math.round(perPixel) }), t("tally.thin")];
    const lines = width < 460 ? note : [note.join(" ")];
    put(this.#title, t("tally.title", { n: total }));
    put(this.#figure, figure(width, below - 9 + 15 * lines.length, t("tally.figure"), drawn.flat(), legend.flat(),
      lines.map((words, i) => label(0, below + 15 * i, words, { "font-size": 11 }))));
  }

  /** @param {Tally} tally */
  #showTable({ rows, total }) {
    const { n_layer } = current().config;
    const each = rows.filter(ofOne).map((row) =>
      line(shortName(row), [el("td", { class: "words" }, meaningOf(row)), shapeOf(row), count(row.count)], inBlock(row)
      ? "inside" : ""));
    const one = rows.filter((row) => row.name.startsWith("h.0.")).reduce((sum, row) => sum + row.count, 0);
    const sum = (/** @type {string} */ name, /** @type {number} */ n) => line(name, [el("td", { class: "words" }), "", count(n)], "sum");
    const after = each.findLastIndex((row) => row.className === "inside") + 1;
    put(this.#table, head(["tensor", "says", "shape", "parameters"].map((name) => t(`tally.head.${name}`))), el("tbody", {}, each.slice(0, after), sum(t("tally.one"), one),
      sum(t("tally.all", { n: n_layer }), one * n_layer), each.slice(after), sum(t("tally.total"), total)));
    this.#table.querySelectorAll("thead th")[1].className = "words";
  }

  /** @param {Tally} tally */
  #showArticle({ illustrated, illustrated_total, published_total }) {
    const missing = published_total - illustrated_total;
    put(this.#why,
      el("p", {}, say("tally.why", { illustrated: illustrated_total, published: published_total, missing })),
      el("ul", {},
        el("li", {}, say("tally.why.bias")),
        el("li", {}, say("tally.why.norm"))));
    put(this.#article, head(["tensor", "published", "article", "difference"].map((name) => t(`tally.head.${name}`))), el("tbody", {},
      illustrated.filter(ofOne).map((row) => line(shortName(row), [count(row.published), count(row.count), row.published === row.count ? ""
        : count(row.published - row.count)], `${inBlock(row) ? "inside" : ""} ${row.published === row.count ? "" : "differs"}`)),
      line(t("tally.total"), [count(published_total), count(illustrated_total), count(missing)], "sum")));
  }
}

customElements.define("glass-tally", GlassTally);
