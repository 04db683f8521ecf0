// Compare: two models, or two moments of one training run, on the same text, token by token and layer by layer.

import { api, isAbort } from "../api.js";
import { colour, diverging, el, format, percent, put, shade, short, svg, svgText, visible } from "../draw.js";
import { store } from "../store.js";
import { GlassView } from "../view.js";

/** @typedef {{a: Trace, b: Trace, kl: number[], p_difference: (number | null)[]}} Comparison the difference is B's probability less A's */

/** What there is to compare: each model, and each checkpoint of the first. @returns {{name: string, source: Source}[]} */
export function sources() {
  const { models, checkpoints } = /** @type {ModelInfo} */ (store.info);
  return [
    ...models.map(({ name }, model) => ({ name: models.length > 1 ? `${name} (${"AB"[model] ?? model})` : name, source: model === 0 ? {} : { model } })),
    ...checkpoints.map(({ name, step }) => ({ name, source: { checkpoint: step } })),
  ];
}

class GlassCompare extends GlassView {
  /** @type {Topic[]} */ wants = ["trace", "info", "token", "compare", "theme"];
  /** @type {Comparison | null} */ #found = null;
  #asked = "";

  constructor() {
    super();
    this.choice = el("div", { class: "acts" });
    this.slider = el("div", { class: "acts given" });
    this.said = el("p", { class: "said", role: "status" });
    this.picture = el("figure", { class: "compare-picture" });
    this.lens = el("table", { class: "figures lens-table" });
    this.lensBox = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What each layer would say" }, this.lens);
  }

  connectedCallback() {
    if (!this.firstChild) this.append(el("h2", {}, "Two models, one text"), this.choice, this.slider, this.said, this.picture, this.lensBox);
    super.connectedCallback();
    addEventListener("resize", this.#onResize);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    removeEventListener("resize", this.#onResize);
  }

  #onResize = () => this.#draw();

  /** The two that are compared: as the state says, else the model and the second one, or the first and the last checkpoint. */
  #pair() {
    const all = sources();
    const { compare } = store.get();
    const { models, checkpoints } = /** @type {ModelInfo} */ (store.info);
    const usual = models.length > 1 ? { a: {}, b: { model: 1 } } : { a: all[1]?.source ?? {}, b: checkpoints.length > 1 ? (all.at(-1)?.source ?? {}) : {} };
    const known = (/** @type {Source | undefined} */ source, /** @type {Source} */ other) => all.find((one) => JSON.stringify(one.source) === JSON.stringify(source))?.source ?? other;
    return { a: known(compare?.a, usual.a), b: known(compare?.b, usual.b) };
  }

  render() {
    if (!store.info || !store.trace) return;
    const all = sources();
    if (all.length < 2) return this.#showAlone();
    const pair = this.#pair();
    this.#showChoice(all, pair);
    const { ids, text } = store.get();
    const body = { ...(ids ? { ids } : { text }), ...pair };
    const asked = JSON.stringify(body);
    if (asked === this.#asked && this.#found) this.#draw();
    else void this.#load(asked, body);
  }

  #showAlone() {
    put(this.choice);
    put(this.said, "There is one model only. Name a second one when you start the Explorer, or a training run with its checkpoints:");
    put(this.picture, el("pre", { class: "command", tabindex: 0 }, "glassgpt explore --compare OTHER\nglassgpt explore --model runs/mine"));
    this.lensBox.hidden = true;
  }

  /** @param {string} asked @param {unknown} body */
  async #load(asked, body) {
    put(this.said, "Running both…");
    try {
      this.#found = await api.post("/compare", body, { slot: "compare" });
      this.#asked = asked;
      this.#draw();
    } catch (error) {
      if (isAbort(error)) return;
      this.#found = null;
      put(this.said, error instanceof Error ? error.message : String(error));
      put(this.picture);
      put(this.lens);
    }
  }

  /** @param {{name: string, source: Source}[]} all @param {{a: Source, b: Source}} pair */
  #showChoice(all, pair) {
    const place = (/** @type {Source} */ source) => all.findIndex((one) => one.source === source);
    if (this.choice.childElementCount === 0) {
      for (const side of /** @type {const} */ (["a", "b"])) {
        const select = el("select", { id: `compare-${side}` }, all.map(({ name }, i) => el("option", { value: i }, name)));
        select.addEventListener("change", () => store.set({ compare: { ...this.#pair(), [side]: all[Number(select.value)].source } }));
        this.choice.append(el("label", { for: `compare-${side}` }, side.toUpperCase()), select);
      }
      this.choice.append(el("button", { type: "button", onclick: () => this.#swap() }, "Swap"));
      this.#buildSlider(all);
    }
    for (const side of /** @type {const} */ (["a", "b"])) {
      const select = /** @type {HTMLSelectElement} */ (this.choice.querySelector(`#compare-${side}`));
      select.value = String(place(pair[side]));
    }
    const range = this.slider.querySelector("input");
    if (!range) return;
    const first = all.findIndex(({ source }) => source.checkpoint !== undefined);
    range.value = String(Math.max(0, place(pair.a) - first));
    const name = all[first + Number(range.value)].name;
    range.setAttribute("aria-valuetext", name);
    put(/** @type {Element} */ (this.slider.querySelector("output")), place(pair.a) >= first ? name : "");
  }

  /** With a training run: its checkpoints as a slider, which moves A. @param {{name: string, source: Source}[]} all */
  #buildSlider(all) {
    const moments = all.filter(({ source }) => source.checkpoint !== undefined);
    this.slider.hidden = moments.length < 2;
    if (this.slider.hidden) return;
    const range = el("input", { type: "range", id: "compare-moment", min: 0, max: moments.length - 1, step: 1 });
    range.addEventListener("input", () => store.set({ compare: { ...this.#pair(), a: moments[Number(range.value)].source } }));
    put(this.slider, el("label", { for: "compare-moment" }, "A, through its training"), range, el("output", { for: "compare-moment" }));
  }

  #swap() {
    const { a, b } = this.#pair();
    store.set({ compare: { a: b, b: a } });
  }

  #draw() {
    const found = this.#found;
    if (!found || !store.trace) return;
    const { token } = store.cursor;
    const tokens = found.a.tokens;
    const at = Math.min(token, tokens.length - 1);
    const [a, b] = [found.a.surprise[at], found.b.surprise[at]];
    put(this.said, el("b", { class: "token" }, visible(tokens[at].text)),
      a && b ? ` was expected with ${percent(a.p)} by A (number ${a.rank}) and ${percent(b.p)} by B (number ${b.rank}). ` : " is the first token: nobody could expect it. ",
      `What may follow it: KL ${format(found.kl[at])} nats.`);
    put(this.picture, this.#figure(Math.max(260, this.clientWidth || 590), at));
    this.lensBox.hidden = false;
    this.#showLens(found, at);
  }

  /** Bars over the tokens: above, how much likelier B (up) or A (down) held the token; below, how far their next words are apart. @param {number} width @param {number} at */
  #figure(width, at) {
    const { a, kl, p_difference } = /** @type {Comparison} */ (this.#found);
    const [ink, soft, line, accentSoft] = ["ink", "soft", "line-strong", "accent-soft"].map(colour);
    const left = 34;
    const column = Math.max(22, Math.min(64, (width - left) / a.tokens.length));
    const total = Math.max(width, left + column * a.tokens.length);
    const limit = Math.max(0.05, ...p_difference.map((d) => Math.abs(d ?? 0)));
    const most = Math.max(0.01, ...kl);
    const label = (/** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ text, /** @type {string} */ anchor, /** @type {string} */ fill = soft) => svg("text", { x, y, "font-size": 10, "text-anchor": anchor, fill }, text);
    const bars = a.tokens.map((token, i) => {
      const x = left + i * column;
      const d = p_difference[i] ?? 0;
      const up = (Math.abs(d) / limit) * 44;
      const tall = (kl[i] / most) * 52;
      const bar = svg("g", { class: "compare-column" },
        svg("rect", { x, y: 0, width: column, height: 206, fill: i === at ? accentSoft : "transparent" }, svg("title", {}, `${visible(token.text)}: p of B less p of A ${format(d)}, KL ${format(kl[i])}`)),
        p_difference[i] === null ? null : svg("rect", { x: x + 3, y: d > 0 ? 58 - up : 58, width: column - 6, height: Math.max(1, up), fill: diverging(d > 0 ? limit : -limit, limit).fill }),
        label(x + column / 2, 128, short(token.text, Math.max(3, Math.floor(column / 7))), "middle", ink),
        svg("rect", { x: x + 3, y: 140, width: column - 6, height: Math.max(1, tall), fill: shade("attention", 0.7).fill }));
      bar.addEventListener("click", () => store.set({ token: i }));
      return bar;
    });
    return svg("svg", { width: total, height: 212, viewBox: `0 0 ${total} 212`, role: "img", "aria-label": "Difference of probability and KL for each token" },
      bars,
      svg("line", { x1: left, x2: total, y1: 58, y2: 58, stroke: line }), svg("line", { x1: left, x2: total, y1: 139.5, y2: 139.5, stroke: line }),
      label(left - 4, 18, format(limit, 2), "end"), label(left - 4, 61, "0", "end"), label(left - 4, 105, format(-limit, 2), "end"), label(left - 4, 195, format(most, 2), "end"),
      label(left + 2, 10, "up: B held the token likelier", "start"), label(left + 2, 113, "down: A did", "start"), label(left + 2, 208, "KL of the next words, in nats", "start"));
  }

  /** @param {Comparison} found @param {number} at */
  #showLens({ a, b }, at) {
    const rows = Math.max(a.lens.p.length, b.lens.p.length);
    const cell = (/** @type {Trace} */ trace, /** @type {number} */ row) => {
      const p = trace.lens.p[row]?.[at];
      if (p === undefined) return el("td");
      const { fill, ink } = shade("probability", p);
      return el("td", { class: "lens-cell", style: { background: fill, color: ink } }, el("span", {}, visible(trace.lens.texts[row][at])), " ", percent(p));
    };
    put(this.lens,
      el("thead", {}, el("tr", {}, ["what it would say", "A", "B"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, Array.from({ length: rows }, (_, i) => rows - 1 - i).map((row) => el("tr", {}, el("th", { scope: "row" }, row === 0 ? "embedding" : `after block ${row - 1}`), cell(a, row), cell(b, row)))));
  }

  toSVG() {
    if (!this.#found) return "";
    const figure = this.#figure(860, store.cursor.token);
    figure.setAttribute("x", "16");
    figure.setAttribute("y", "36");
    const width = Number(figure.getAttribute("width"));
    return svgText(width + 32, 264, [svg("text", { x: 16, y: 24, "font-size": 15, "font-weight": 600, fill: colour("ink") }, this.said.textContent), figure]);
  }
}

customElements.define("glass-compare", GlassCompare);
