// The family: the transformers that came of one paper, where this model belongs, and the sizes of GPT-2 to scale.

import { color, el, put, shade, svg } from "../draw/draw.js";
import { count, figure, label, Panel, current } from "../panel.js";
import { Lessons, SIZES } from "../lessons/lessons.js";
import { store } from "../state/store.js";

/** @typedef {(typeof SIZES)[number]} Size */

/**
 * @typedef {{name: string, stacks: [kind: "encoder" | "decoder", masked: boolean, memory: boolean][], examples: string, says: string, here?: boolean}} Branch
 * @type {Branch[]}
 */
const BRANCHES = [
  { name: "encoder–decoder", stacks: [["encoder", false, false], ["decoder", true, false]], examples: "the Transformer (2017), T5",
    says: "One stack reads the whole sentence, another writes its translation and looks across at the first." },
  { name: "decoder only", stacks: [["decoder", true, false]], examples: "GPT-2, and this model",
    says: "The writing stack alone: it sees what came before, and guesses what comes next.", here: true },
  { name: "encoder only", stacks: [["encoder", false, false]], examples: "BERT",
    says: "The reading stack alone: every token sees all others. It fills gaps, and does not write." },
  { name: "with memory", stacks: [["decoder", true, true]], examples: "Transformer-XL, XLNet",
    says: "A decoder that keeps the vectors of earlier passages, and looks back at them as well." },
];

class GlassFamily extends Panel {
  /** @type {Topic[]} */ wants = ["info", "model", "theme", "trace", "head", "layer"];
  #branches = el("div", { class: "branches" });
  #sizes = el("figure");
  #says = el("p", { class: "says" });
  #lessons = new Lessons();
  parts = [
    el("h2", {}, "A family of transformers"),
    el("p", { class: "says" }, "In 2017 a machine for translation had two halves, both made of blocks like those in the tower. Later models took " +
      "one half each, and made it taller."),
    this.#branches,
    el("h2", {}, "GPT-2 in four sizes, to scale"),
    this.#says,
    this.#sizes,
    el("h2", {}, "The story around it"),
    this.#lessons.element,
  ];

  render() {
    put(this.#branches, BRANCHES.map((branch) => el("div", { class: branch.here ? "branch here" : "branch" }, el("h3", {}, branch.name),
      drawing(branch), el("p", { class: "small" }, el("b", {}, branch.examples)), el("p", { class: "small quiet" }, branch.says))));
    const { config } = current();
    const model = store.info?.models[current().trace.model];
    const own = /** @type {Size} */ ([model?.name ?? "this model", "", config.n_layer, config.n_embd, model?.parameters ?? 0]);
    const parameters = own[4];
    const largest = SIZES[3][4];
    const known = SIZES.some((size) => size[4] === parameters);
    put(this.#says, `Each block is a line; the width of a line is that of the stream. This model has ${config.n_layer} blocks, ${config.n_embd} ` +
      `wide: ${count(parameters)} ` +
      `parameters${known ? "" : parameters < largest / 1.5 ? `; XL has ${Math.round(largest / parameters)} times as many` : ""}. In quotes: the ` +
      `names in OpenAI’s paper, which had counted too few; the first of them, “117M”, is the model of 124 million.`);
    put(this.#sizes, sizes(known ? SIZES : [own, ...SIZES], this.figureWidth, parameters));
    this.#lessons.width = this.figureWidth;
    this.#lessons.render();
  }
}

/** The stacks of a branch. @param {Branch} branch */
function drawing({ name, stacks, here }) {
  const [width, height] = [170, 132];
  const left = (i = 0) => (stacks.length === 1 ? 55 : 4) + i * 94;
  const paint = (/** @type {string} */ kind) => shade(kind === "decoder" ? "probability" : "loss", 0.5);
  const drawn = stacks.flatMap(([kind, masked, memory], i) => [
    ...[0, 1, 2, 3].map((row) => svg("rect", { x: left(i), y: 26 + row * 20, width: 68, height: 15, rx: 3, fill: paint(kind).fill,
      stroke: color(here ? "accent" : "line-strong") })),
    label(left(i) + 34, 120, kind, { "text-anchor": "middle", "font-size": 11, fill: color("ink") }),
    svg("path", { d: `M${left(i) + 34} 26V12m-4 5l4 -6l4 6`, fill: "none", stroke: color("soft") }),
    label(left(i) + 34, 37, masked ? "sees the past" : "sees all", { "text-anchor": "middle", "font-size": 10, fill: paint(kind).ink }),
    ...(memory ? [svg("rect", { x: 1, y: 46, width: 42, height: 55, rx: 3, fill: "none", stroke: color("a-2"), "stroke-dasharray": "3 2" }),
      label(22, 77, "memory", { "text-anchor": "middle", "font-size": 10, fill: color("ink") }),
      svg("path", { d: "M43 74h11m-4 -4l5 4l-5 4", fill: "none", stroke: color("a-2") })] : []),
  ]);
  if (stacks.length === 2) drawn.push(svg("path", { d: "M73 46H96m-5 -4l6 4l-6 4", fill: "none", stroke: color("a-2"), "stroke-width": 1.5 }));
  return figure(width, height, `${name}: ${stacks.map(([kind]) => kind).join(" and ")}`, drawn);
}

/** The labels of a size, in pixels; a small size is narrower than they are. */
const NARROWEST = 54;

/** @param {Size[]} all @param {number} width @param {number} own */
function sizes(all, width, own) {
  const gap = 14;
  const room = (/** @type {number} */ wide, /** @type {number} */ scale) => Math.max(wide * scale, NARROWEST) + gap;
  let scale = width / 1000;
  while (all.reduce((sum, [, , , wide]) => sum + room(wide, scale), -gap) > width && scale > 0.01) scale *= 0.99;
  const tall = 48 * 4;
  let x = 0;
  const drawn = all.flatMap(([name, paper, layers, wide, parameters]) => {
    const at = x;
    const size = wide * scale;
    x += room(wide, scale);
    const mine = parameters === own;
    return [
      ...Array.from({ length: layers }, (_, i) => svg("rect", { x: at, y: tall - (i + 1) * 4, width: size, height: 3, fill: color(mine ? "accent" : "p-1") })),
      label(at, tall + 14, name, { "font-size": 12, fill: color("ink"), ...(mine && { "font-weight": 700 }) }),
      label(at, tall + 28, `${layers} × ${wide}`, { "font-size": 10.5 }),
      label(at, tall + 41, parameters >= 1e9 ? `${(parameters / 1e9).toFixed(2)} B` : `${Math.round(parameters / 1e6)} M`, { "font-size": 10.5 }),
      ...(paper ? [label(at, tall + 54, `“${paper}”`, { "font-size": 10.5 })] : []),
    ];
  });
  return figure(width, tall + 59, "The sizes of GPT-2: blocks as lines, as wide as the stream", drawn);
}

customElements.define("glass-family", GlassFamily);
