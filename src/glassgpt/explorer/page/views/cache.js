// The cache player: generation step by step. Lit columns are computed in this step, gray ones are cached.

import { bytesPerToken, steps } from "./cost.js";
import { color, el, put, short, svg } from "../draw/draw.js";
import { count, head, label, line, Panel, figure, current, slider } from "../panel.js";
import { store } from "../state/store.js";
import { promptLength } from "../text/text.js";
import { large, t } from "../languages/language.js";

const CELL = { width: 34, narrow: 24, height: 15, gap: 3 };
const LEFT = 26; // room for the numbers of blocks
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @param {number} n */
function bytes(n) {
  const unit = n >= 1e9 ? 3 : n >= 1e6 ? 2 : n >= 1e4 ? 1 : 0;
  return unit === 0 ? `${count(n)} B` : `${(n / 1000 ** unit).toFixed(1)} ${["", "kB", "MB", "GB"][unit]}`;
}


/** How many columns fit into a figure, and how wide each is: narrower, if then all of them fit. @param {number} width @param {number} length */
function columns(width, length) {
  const cell = Math.max(CELL.narrow, Math.min(CELL.width, Math.floor((width - LEFT + CELL.gap) / length) - CELL.gap));
  return { cell, shown: Math.max(3, Math.floor((width - LEFT + CELL.gap) / (cell + CELL.gap))) };
}

class GlassCache extends Panel {
  /** @type {Topic[]} */ wants = ["trace", "prompt", "step", "theme"];
  /** @type {ReturnType<typeof setInterval> | undefined} */ #playing;
  #play = el("button", { class: "primary", title: "p", onclick: () => this.play() }, t("player.play"));
  #step = slider("cache-step", t("cache.step"), {}, (step) => this.#go(step));
  #given = slider("cache-prompt", t("cache.prompt"), { min: 1 }, (prompt) => this.#setPrompt(prompt));
  #figures = el("div", { class: "cache-figures" });
  #numbers = el("table", { class: "figures" });

  parts = [
    el("h2", {}, t("cache.title")),
    el("p", { class: "small quiet" }, t("cache.says")),
    el("div", { class: "acts", role: "group", "aria-label": t("player.label") },
      el("button", { title: ",", onclick: () => this.#move(-1) }, t("cache.back")), this.#play,
      el("button", { title: ".", onclick: () => this.#move(1) }, t("cache.forward")), this.#step.label, this.#step.input),
    el("div", { class: "acts" }, this.#given.label, this.#given.input, this.#given.says),
    el("p", { class: "cache-said", role: "status" }, this.#step.says),
    el("p", { class: "small quiet color-keys" }, el("span", {}, el("i", { class: "lit", "aria-hidden": "true" }), t("cache.lit")),
      el("span", {}, el("i", { class: "kept", "aria-hidden": "true" }), t("cache.kept")),
      el("span", {}, el("i", { class: "empty", "aria-hidden": "true" }), t("cache.empty"))),
    this.#figures, this.#numbers,
    el("p", { class: "small quiet" }, t("cache.counted")),
  ];

  /** @type {Panel["keys"]} */ keys = [
    [["p"], t("keys.play"), () => this.play()],
    [[","], t("keys.back"), () => this.#move(-1)],
    [["."], t("keys.forward"), () => this.#move(1)],
  ];

  disconnectedCallback() {
    super.disconnectedCallback();
    this.#pause();
  }

  /** The length of the prompt: what was typed, if tokens were appended; else a few, so that there is something to play. */
  get given() {
    const { length } = current().trace.tokens;
    const wanted = store.get().prompt ?? (promptLength() < length ? promptLength() : Math.min(3, length - 1));
    return Math.max(1, Math.min(wanted, length));
  }

  get steps() {
    return steps(current().config, this.given, current().trace.tokens.length);
  }

  /** The index of the current step. */
  get now() {
    const last = this.steps.length - 1;
    return Math.min(store.get().step ?? last, last);
  }

  /** @param {number} step */
  #go(step) {
    this.#pause();
    store.set({ step: Math.max(0, Math.min(this.steps.length - 1, step)) });
  }

  /** @param {number} by */
  #move(by) {
    this.#go(this.now + by);
  }

  /** Another prompt; the column stays. @param {number} prompt */
  #setPrompt(prompt) {
    const column = this.given + this.now;
    store.set({ prompt, step: Math.max(0, column - prompt) });
  }

  #pause() {
    clearInterval(this.#playing);
    this.#playing = undefined;
    put(this.#play, t("player.play"));
  }

  /** Play from here, or from the start when the end is reached; or pause. */
  play() {
    if (this.#playing !== undefined) return this.#pause();
    const last = this.steps.length - 1;
    if (this.now === last) store.set({ step: 0 });
    put(this.#play, t("player.pause"));
    this.#playing = setInterval(() => {
      store.set({ step: Math.min(last, this.now + 1) });
      if (this.now === last) this.#pause();
    }, calm.matches ? 1500 : 800);
  }

  render() {
    const { trace, config } = current();
    const { steps: all, now, given, figureWidth: room } = this;
    const { length } = trace.tokens;
    const step = all[now];
    this.#step.input.max = String(all.length - 1);
    this.#step.show(now, t(now === 0 ? "cache.step.prompt" : "cache.step.token", { step: now + 1, steps: all.length, last: step.to - 1, cached: step.from }));
    this.#given.input.max = String(length);
    this.#given.show(given, t("cache.prompt.of", { n: given, all: length }));
    // Side by side where the tower is too high for two, or where the text fits into a half.
    const beside = (room - 16) / 2;
    const width = room < 480 || (config.n_layer <= 6 && columns(beside, length).shown < length) ? room : beside;
    put(this.#figures, this.#figure(width, t("cache.with"), step.from, step.to), this.#figure(width, t("cache.without"), 0, step.to));
    const token = bytesPerToken(config);
    const times = (/** @type {number} */ few, /** @type {number} */ many) => [large(few, { long: true }), large(many, { long: true }),
      `${many / few >= 10 ? Math.round(many / few) : (many / few).toFixed(1)} ×`];
    put(this.#numbers,
      head(["", t("cache.head.with"), t("cache.head.without"), t("cache.head.saved")]),
      el("tbody", {},
        line(t("cache.now"), times(step.withCache, step.without)),
        line(t("cache.sofar"), times(step.withSoFar, step.withoutSoFar)),
        line(t("cache.values"), [bytes(step.cached - step.spared), bytes(step.cached), bytes(step.spared)]),
        line(t("cache.values.sofar"), [bytes(step.cached), bytes(step.cached + step.sparedSoFar), bytes(step.sparedSoFar)]),
        line(t("cache.size", { bytes: token }), [bytes(step.cached), "0 B", ""])));
  }

  /**
   * The tower's keys and values at a step.
   * @param {number} width @param {string} title @param {number} from first column that is computed @param {number} to
   */
  #figure(width, title, from, to) {
    const { trace: { tokens }, config: { n_layer } } = current();
    const { cell, shown } = columns(width, tokens.length);
    const first = Math.max(0, Math.min(to - shown + 1, tokens.length - shown));
    const last = Math.min(tokens.length, first + shown);
    const rows = Math.min(n_layer, 16);
    const height = 58 + rows * (CELL.height + CELL.gap);
    const [ink, gray, accent, accentInk] = ["ink", "line-strong", "accent", "accent-ink"].map(color);
    /** @type {SVGElement[]} */
    const made = [label(0, 13, title, { "font-size": 13, fill: ink })];
    const at = (/** @type {number} */ column) => LEFT + (column - first) * (cell + CELL.gap);
    for (let layer = 0; layer < rows; layer++) {
      const y = 24 + (rows - 1 - layer) * (CELL.height + CELL.gap);
      made.push(label(18, y + 11, layer, { "text-anchor": "end" }));
      for (let column = first; column < last; column++) {
        const is = column >= to ? "empty" : column >= from ? "lit" : "kept";
        ["k", "v"].forEach((name, i) => {
          const x = at(column) + (i * cell) / 2;
          const paint = { empty: { fill: "none", stroke: gray, "stroke-dasharray": "2 2" }, lit: { fill: accent },
            kept: { fill: gray, "fill-opacity": 0.55 } }[is];
          made.push(svg("rect", { x, y, width: cell / 2 - 1, height: CELL.height, rx: 2, class: is, ...paint }));
          if (is !== "empty") made.push(label(x + cell / 4 - 0.5, y + 11, name, { "text-anchor": "middle", fill: is === "lit" ? accentInk : ink }));
        });
      }
    }
    for (let column = first; column < last; column++) {
      made.push(label(at(column) + cell / 2, height - 20, short(tokens[column].text, cell < 30 ? 4 : 5),
        { "text-anchor": "middle", "font-family": "monospace", ...(column < to && { fill: ink }), ...(column === to - 1 && { "font-weight": 700 }) }));
    }
    const more = Object.entries({ earlier: first, later: tokens.length - last, higher: n_layer - rows }).filter(([, n]) => n > 0);
    if (more.length > 0) made.push(label(LEFT, height - 4, t("cache.hidden", { parts: more.map(([name, n]) => t(`cache.${name}`, { n })).join(", ") })));
    return figure(width, height, t("cache.figure", { title, n: to - from, all: to }), made);
  }
}

customElements.define("glass-cache", GlassCache);
