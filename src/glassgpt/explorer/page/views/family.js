// The family: the transformers that came of one paper, where this model belongs, and the sizes of GPT-2 to scale.

import { color, el, put, shade, svg } from "../draw/draw.js";
import { figure, label, Panel, current } from "../panel.js";
import { Lessons, SIZES } from "../lessons/lessons.js";
import { store } from "../state/store.js";
import { large, t } from "../languages/language.js";

/** @typedef {(typeof SIZES)[number]} Size */

/**
 * In words they are `family.NAME`.
 * @typedef {{name: string, stacks: [kind: "encoder" | "decoder", masked: boolean, memory: boolean][], here?: boolean}} Branch
 * @type {Branch[]}
 */
const BRANCHES = [
  { name: "both", stacks: [["encoder", false, false], ["decoder", true, false]] },
  { name: "decoder", stacks: [["decoder", true, false]], here: true },
  { name: "encoder", stacks: [["encoder", false, false]] },
  { name: "memory", stacks: [["decoder", true, true]] },
];

class GlassFamily extends Panel {
  /** @type {Topic[]} */ wants = ["info", "model", "theme", "trace", "head", "layer"];
  #branches = el("div", { class: "branches" });
  #sizes = el("figure");
  #says = el("p", { class: "says" });
  #lessons = new Lessons();
  parts = [
    el("h2", {}, t("family.title")),
    el("p", { class: "says" }, t("family.says")),
    this.#branches,
    el("h2", {}, t("family.sizes")),
    this.#says,
    this.#sizes,
    el("h2", {}, t("family.story")),
    this.#lessons.element,
  ];

  render() {
    put(this.#branches, BRANCHES.map((branch) => el("div", { class: branch.here ? "branch here" : "branch" }, el("h3", {}, t(`family.${branch.name}`)),
      drawing(branch), el("p", { class: "small" }, el("b", {}, t(`family.${branch.name}.examples`))), el("p", { class: "small quiet" }, t(`family.${branch.name}.says`)))));
    const { config } = current();
    const model = store.info?.models[current().trace.model];
    const own = /** @type {Size} */ ([model?.name ?? t("family.this"), "", config.n_layer, config.n_embd, model?.parameters ?? 0]);
    const parameters = own[4];
    const largest = SIZES[3][4];
    const known = SIZES.some((size) => size[4] === parameters);
    const ratio = known || parameters >= largest / 1.5 ? "" : t("family.ratio", { times: Math.round(largest / parameters) });
    put(this.#says, t("family.scale", { layers: config.n_layer, width: config.n_embd, parameters, ratio }));
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
    label(left(i) + 34, 120, t(`family.stack.${kind}`), { "text-anchor": "middle", "font-size": 11, fill: color("ink") }),
    svg("path", { d: `M${left(i) + 34} 26V12m-4 5l4 -6l4 6`, fill: "none", stroke: color("soft") }),
    label(left(i) + 34, 37, t(masked ? "family.past" : "family.sees"), { "text-anchor": "middle", "font-size": 10, fill: paint(kind).ink }),
    ...(memory ? [svg("rect", { x: 1, y: 46, width: 42, height: 55, rx: 3, fill: "none", stroke: color("a-2"), "stroke-dasharray": "3 2" }),
      label(22, 77, t("family.stack.memory"), { "text-anchor": "middle", "font-size": 10, fill: color("ink") }),
      svg("path", { d: "M43 74h11m-4 -4l5 4l-5 4", fill: "none", stroke: color("a-2") })] : []),
  ]);
  if (stacks.length === 2) drawn.push(svg("path", { d: "M73 46H96m-5 -4l6 4l-6 4", fill: "none", stroke: color("a-2"), "stroke-width": 1.5 }));
  return figure(width, height, t("family.label", { name: t(`family.${name}`),
    stacks: stacks.map(([kind]) => t(`family.stack.${kind}`)).join(t("family.and")) }), drawn);
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
      label(at, tall + 41, large(parameters, { digits: parameters >= 1e9 ? 2 : 0 }), { "font-size": 10.5 }),
      ...(paper ? [label(at, tall + 54, `“${paper}”`, { "font-size": 10.5 })] : []),
    ];
  });
  return figure(width, tall + 59, t("family.figure"), drawn);
}

customElements.define("glass-family", GlassFamily);
