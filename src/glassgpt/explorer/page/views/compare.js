// Compare: two models, or two checkpoints of a run, on the same text, by token and by layer.

import { api } from "../state/api.js";
import { color, diverging, el, format, percent, put, shade, short, svg, visible } from "../draw/draw.js";
import { head, label, line, named, Panel, figure, scroll, slider } from "../panel.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

/** The models and checkpoints to choose from. @returns {{name: string, source: Source}[]} */
function sources() {
  const { models, checkpoints } = /** @type {ModelInfo} */ (store.info);
  return [...models.map(({ name }, model) => ({ name, source: model === 0 ? {} : { model } })),
    ...checkpoints.map(({ name, step }) => ({ name, source: { checkpoint: step } }))];
}

/** Its index among them, or -1. @param {Source | undefined} source */
const place = (source) => sources().findIndex((one) => JSON.stringify(one.source) === JSON.stringify(source));

/** The model that is shown, as one of the sources. @returns {Source} */
const shown = () => (store.trace?.model ? { model: store.trace.model } : {});

/**
 * What to compare it with, if nothing is chosen: a model that was named at the start, the first checkpoint of the run, or a model with as large a vocabulary.
 * @returns {Source | null}
 */
function companion() {
  const { models, checkpoints } = /** @type {ModelInfo} */ (store.info);
  const own = store.trace?.model ?? 0;
  const fits = (/** @type {number} */ other) => other !== own && models[other]?.config.vocab_size === models[own].config.vocab_size;
  const source = (/** @type {number} */ model) => (model === 0 ? {} : { model });
  const numbers = models.map((_, number) => number).filter(fits);
  const named = numbers.find((number) => number < 2 && models[number].is_open);
  if (named !== undefined) return source(named);
  if (own === 0 && checkpoints.length > 0) return { checkpoint: checkpoints[0].step };
  return numbers.length > 0 ? source(numbers[0]) : null;
}

/** The two to compare: from the state, or the shown model and one that fits; a checkpoint comes first, in time. @returns {{a: Source, b: Source} | null} */
function pair() {
  const { compare } = store.get();
  if (place(compare?.a) >= 0 && place(compare?.b) >= 0) return { a: compare?.a ?? {}, b: compare?.b ?? {} };
  const other = companion();
  if (other === null) return null;
  return other.checkpoint === undefined ? { a: shown(), b: other } : { a: other, b: shown() };
}

class GlassCompare extends Panel {
  /** @type {Topic[]} */ wants = ["trace", "info", "token", "compare", "theme"];
  /** @type {Comparison | null} */ #found = null;
  #asked = "";
  #choice = el("div", { class: "acts kept" });
  #training = slider("compare-checkpoint", t("compare.checkpoint"), {}, (i) => store.set({ compare: { b: shown(), ...pair(), a: this.#checkpoints[i].source } }));
  #slider = el("div", { class: "acts kept", hidden: true }, this.#training.label, this.#training.input, this.#training.says);
  #said = el("p", { class: "said", role: "status" });
  #figure = el("figure");
  #lens = el("table", { class: "figures lens-table" });
  parts = [el("h2", { class: "kept" }, t("compare.title")), this.#choice, this.#slider, this.problem, this.#said, this.#figure,
    scroll(t("compare.lens"), this.#lens)];

  build() {
    this.append(...this.parts);
  }

  get hasNumbers() {
    return this.#found !== null;
  }

  get #checkpoints() {
    return sources().filter(({ source }) => source.checkpoint !== undefined);
  }

  render() {
    if (!store.info) return;
    const both = pair();
    this.#choice.hidden = sources().length < 2;
    if (!both) {
      this.#asked = "";
      [this.#slider.hidden, this.#found] = [true, null];
      put(this.#lens);
      if (!this.#choice.hidden) this.#showChoice({ a: shown(), b: {} });
      const name = store.info.models[store.trace?.model ?? 0].name;
      put(this.#said, t("compare.alone", { name }));
      return put(this.#figure, el("pre", { class: "command", tabindex: 0 }, "glassgpt explore --compare OTHER\nglassgpt explore --model runs/mine"));
    }
    this.#showChoice(both);
    const { ids, text } = store.get();
    const body = { ...(ids ? { ids } : { text }), ...both };
    const asked = JSON.stringify(body);
    if (asked === this.#asked && this.#found) this.#draw(this.#found);
    else void this.load(api.post("/compare", body, { slot: "compare" }), (/** @type {Comparison} */ found) => {
      [this.#found, this.#asked] = [found, asked];
      this.#draw(found);
    });
  }

  /** @param {{a: Source, b: Source}} both */
  #showChoice(both) {
    if (this.#choice.childElementCount === 0) {
      const selects = /** @type {const} */ (["a", "b"]).map((side) => {
        const select = el("select", { id: `compare-${side}` }, sources().map(({ name }, i) => el("option", { value: i }, name)));
        select.addEventListener("change", () =>
          store.set({ compare: { ...(pair() ?? { a: shown(), b: shown() }), [side]: sources()[Number(select.value)].source } }));
        return [el("label", { for: select.id }, side.toUpperCase()), select];
      });
      const swap = () => {
        const both = pair();
        if (both) store.set({ compare: { a: both.b, b: both.a } });
      };
      this.#choice.append(...selects.flat(), el("button", { onclick: swap }, t("compare.swap")));
    }
    const [a, b] = this.#choice.querySelectorAll("select");
    [a.value, b.value] = [String(place(both.a)), String(place(both.b))];
    const checkpoints = this.#checkpoints;
    this.#slider.hidden = checkpoints.length < 2;
    if (checkpoints.length === 0) return;
    this.#training.input.max = String(checkpoints.length - 1);
    const now = checkpoints.findIndex(({ source }) => source.checkpoint === both.a.checkpoint);
    this.#training.show(Math.max(0, now), checkpoints[now]?.name ?? "");
  }

  /** @param {Comparison} found */
  #draw(found) {
    const at = Math.min(store.cursor.token, found.a.tokens.length - 1);
    const [a, b] = [found.a.token_loss[at], found.b.token_loss[at]];
    const values = { word: named(found.a.tokens[at].text), kl: format(found.kl[at]) };
    put(this.#said, a && b ? say("compare.has", { ...values, a: percent(a.p), rankA: a.rank, b: percent(b.p), rankB: b.rank }) : say("compare.first", values));
    put(this.#figure, this.#bars(found, at));
    this.#showLens(found, at);
  }

  /** Above, the difference in probability of each token; below, the KL of the next-token distributions. @param {Comparison} found @param {number} at */
  #bars({ a: { tokens }, kl, p_difference }, at) {
    const left = 34;
    const column = Math.max(22, Math.min(64, (this.figureWidth - left) / tokens.length));
    const width = Math.max(this.figureWidth, left + column * tokens.length);
    const limit = Math.max(0.05, ...p_difference.map((d) => Math.abs(d ?? 0)));
    const most = Math.max(0.01, ...kl);
    const bars = tokens.map((token, i) => {
      const x = left + i * column;
      const d = p_difference[i] ?? 0;
      const up = Math.max(1, (Math.abs(d) / limit) * 44);
      const tall = Math.max(1, (kl[i] / most) * 52);
      return svg("g", { onclick: () => store.set({ token: i }) },
        svg("rect", { x, y: 0, width: column, height: 206, fill: i === at ? color("accent-soft") : "transparent" },
          svg("title", {}, t("compare.bar", { word: visible(token.text), difference: format(d), kl: format(kl[i]) }))),
        i > 0 && svg("rect", { x: x + 3, y: d > 0 ? 58 - up : 58, width: column - 6, height: up, fill: diverging(d, Math.abs(d)).fill }),
        label(x + column / 2, 128, short(token.text, Math.max(3, Math.floor(column / 7))), { "text-anchor": "middle", fill: color("ink") }),
        svg("rect", { x: x + 3, y: 206 - tall, width: column - 6, height: tall, fill: shade("attention", 0.7).fill }));
    });
    const axis = /** @type {[number, string][]} */ ([[18, format(limit, 2)], [61, "0"], [105, format(-limit, 2)], [158, format(most, 2)], [209, "0"]]);
    const words = /** @type {[number, string][]} */ ([[10, t("compare.up")], [113, t("compare.down")],
      [145, t("compare.kl")]]);
    return figure(width, 212, t("compare.figure"), bars,
      [58, 206].map((y) => svg("line", { x1: left, x2: width, y1: y, y2: y, stroke: color("line-strong") })),
      axis.map(([y, text]) => label(left - 4, y, text, { "text-anchor": "end" })),
      words.map(([y, text]) => label(left + 2, y, text)));
  }

  /** @param {Comparison} found @param {number} at */
  #showLens({ a, b }, at) {
    const layers = Math.max(a.lens.p.length, b.lens.p.length);
    // Models of different depths end together: their last layers are compared, and so on downwards.
    const cell = (/** @type {Trace} */ { lens }, /** @type {number} */ down) => {
      const row = lens.p.length - 1 - down;
      const p = lens.p[row]?.[at];
      if (p === undefined) return "";
      const { fill, ink } = shade("probability", p);
      const where = a.lens.p.length === b.lens.p.length ? null : el("span", { class: "small" }, row === 0 ? t("compare.in.embedding") : t("compare.in.block", { layer: row - 1 }));
      return el("td", { style: { background: fill, color: ink } }, el("code", {}, visible(lens.texts[row][at])), ` ${percent(p)}`, where);
    };
    const same = a.lens.p.length === b.lens.p.length;
    const name = (/** @type {number} */ down) =>
      (down === 0 ? t("compare.end") : same ? (down === layers - 1 ? t("lens.embedding") : t("lens.after", { layer: layers - 2 - down })) : t("compare.before", { n: down }));
    const rows = Array.from({ length: layers }, (_, down) => line(same && down === 0 ? t("lens.after", { layer: layers - 2 }) : name(down),
      [cell(a, down), cell(b, down)]));
    put(this.#lens, head([t("compare.head"), "A", "B"]), el("tbody", {}, rows));
  }
}

customElements.define("glass-compare", GlassCompare);
