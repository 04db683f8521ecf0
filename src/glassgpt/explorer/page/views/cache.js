// The cache player: writing a text step by step. Lit columns are computed in this step, grey ones are remembered.

import { colour, el, put, short, svg, svgText } from "../draw.js";
import { bytesPerToken, steps } from "../cost.js";
import { bind } from "../keys.js";
import { store } from "../store.js";
import { promptLength } from "../text.js";
import { GlassView } from "../view.js";

const CELL = { width: 34, height: 15, gap: 3 };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @param {number} n */
const count = (n) => n.toLocaleString("en-US");

/** A number of bytes for people. @param {number} n */
export function bytes(n) {
  const unit = n >= 1e9 ? 3 : n >= 1e6 ? 2 : n >= 1e4 ? 1 : 0;
  return unit === 0 ? `${count(n)} B` : `${(n / 1000 ** unit).toFixed(1)} ${["", "kB", "MB", "GB"][unit]}`;
}

/** A large number for people. @param {number} n */
export function large(n) {
  const unit = n >= 1e12 ? 3 : n >= 1e9 ? 2 : n >= 1e6 ? 1 : 0;
  return unit === 0 ? count(n) : `${(n / 1000 ** (unit + 1)).toFixed(n / 1000 ** (unit + 1) < 10 ? 2 : 1)} ${["", "million", "billion", "trillion"][unit]}`;
}

/** How many columns a picture has room for. @param {number} width */
const columns = (width) => Math.max(3, Math.floor((width - 26 + CELL.gap) / (CELL.width + CELL.gap)));

class GlassCache extends GlassView {
  /** @type {Topic[]} */ wants = ["trace", "prompt", "step", "theme"];
  /** @type {(() => void)[]} */ #unbind = [];
  /** @type {ReturnType<typeof setInterval> | undefined} */ #playing;

  constructor() {
    super();
    this.playButton = el("button", { type: "button", class: "primary", title: "p", onclick: () => this.play() }, "Play");
    this.range = el("input", { type: "range", id: "cache-step", min: 0, step: 1, oninput: () => this.#go(Number(this.range.value)) });
    this.prompt = el("input", { type: "range", id: "cache-prompt", min: 1, step: 1, oninput: () => this.#setPrompt(Number(this.prompt.value)) });
    this.promptSaid = el("output", { for: "cache-prompt" });
    this.said = el("p", { class: "cache-said", role: "status" });
    this.pictures = el("div", { class: "cache-pictures" });
    this.numbers = el("table", { class: "figures" });
    this.controls = el("div", { class: "acts player", role: "group", "aria-label": "Player" },
      el("button", { type: "button", title: ",", onclick: () => this.#move(-1) }, "Back"),
      this.playButton,
      el("button", { type: "button", title: ".", onclick: () => this.#move(1) }, "Step"),
      el("label", { for: "cache-step", class: "unseen" }, "Step"), this.range,
    );
    this.given = el("div", { class: "acts given" }, el("label", { for: "cache-prompt" }, "Given as the prompt"), this.prompt, this.promptSaid);
  }

  connectedCallback() {
    if (!this.firstChild) {
      this.append(
        el("h2", {}, "Writing with a memory"),
        el("p", { class: "small quiet" }, "The keys and values (k, v) of a column never change once it is computed, for no column looks to its right. Kept, they need not be computed again."),
        this.controls, this.given, this.said, this.pictures, this.numbers,
        el("p", { class: "small quiet" }, "Counted: the products of all matrices, of queries with keys and of weights with values, and the scores of one next word; 4 bytes a number. Norms, GELU and softmax are left out."),
      );
    }
    super.connectedCallback();
    this.#unbind = [
      bind(["p"], "play and pause (in Cache)", () => this.play()),
      bind([","], "one step back (in Cache)", () => this.#move(-1)),
      bind(["."], "one step on (in Cache)", () => this.#move(1)),
    ];
    addEventListener("resize", this.#onResize);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.#pause();
    for (const unbind of this.#unbind) unbind();
    removeEventListener("resize", this.#onResize);
  }

  #onResize = () => store.trace && this.render();

  /** The tokens given: those typed, if some were appended; else the first few, so that there is something to play. */
  #given() {
    const length = store.trace?.tokens.length ?? 1;
    const { prompt } = store.get();
    if (prompt !== null) return Math.max(1, Math.min(prompt, length));
    return promptLength() < length ? promptLength() : Math.max(1, Math.min(3, length - 1));
  }

  #steps() {
    const config = /** @type {ModelConfig} */ (store.config);
    return steps(config, this.#given(), store.trace?.tokens.length ?? 1);
  }

  #now() {
    const last = this.#steps().length - 1;
    return Math.min(store.get().step ?? last, last);
  }

  /** @param {number} step */
  #go(step) {
    this.#pause();
    store.set({ step });
  }

  /** @param {number} by */
  #move(by) {
    this.#go(Math.max(0, Math.min(this.#steps().length - 1, this.#now() + by)));
  }

  /** @param {number} prompt */
  #setPrompt(prompt) {
    const before = this.#given() + this.#now(); // stay at the same column
    const length = store.trace?.tokens.length ?? 1;
    store.set({ prompt, step: Math.max(0, Math.min(length - prompt, before - prompt)) });
  }

  #pause() {
    clearInterval(this.#playing);
    this.#playing = undefined;
    put(this.playButton, "Play");
  }

  /** Play from here, or from the start when the end is reached; or pause. */
  play() {
    if (this.#playing !== undefined) return this.#pause();
    const last = this.#steps().length - 1;
    if (this.#now() === last) store.set({ step: 0 });
    put(this.playButton, "Pause");
    this.#playing = setInterval(() => {
      const now = this.#now();
      if (now < last) store.set({ step: now + 1 });
      if (now + 1 >= last) this.#pause();
    }, calm.matches ? 1500 : 800);
  }

  render() {
    const all = this.#steps();
    const now = this.#now();
    const step = all[now];
    const length = store.trace?.tokens.length ?? 1;
    this.range.max = String(all.length - 1);
    this.range.value = String(now);
    this.range.setAttribute("aria-valuetext", `step ${now + 1} of ${all.length}`);
    this.prompt.max = String(length);
    this.prompt.value = String(this.#given());
    put(this.promptSaid, `${this.#given()} of ${length} tokens`);
    put(this.said, `Step ${now + 1} of ${all.length}: `, now === 0 ? `the prompt goes up in one go, ${step.to} column${step.to > 1 ? "s" : ""} at once.` : `column ${step.to} goes up; ${step.from} are remembered.`);
    const width = Math.max(220, Math.min(this.clientWidth || 590, 1200));
    // Side by side where the tower is too high for two, or where the text fits into a half.
    const beside = (width - 16) / 2;
    const half = width < 480 || (Number(store.config?.n_layer) <= 6 && columns(beside) < length) ? width : beside;
    put(this.pictures, this.#picture(half, "With the cache", step.from, step.to), this.#picture(half, "Without it", 0, step.to));
    this.#showNumbers(step);
  }

  /** @param {import("../cost.js").Step} step */
  #showNumbers(step) {
    const config = /** @type {ModelConfig} */ (store.config);
    const times = (/** @type {number} */ a, /** @type {number} */ b) => `${(b / a).toFixed(b / a < 10 ? 1 : 0)} ×`;
    const row = (/** @type {string} */ name, /** @type {string[]} */ ...cells) => el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell)));
    put(this.numbers,
      el("caption", { class: "unseen" }, "What the cache costs and saves"),
      el("thead", {}, el("tr", {}, ["", "with", "without", "saved"].map((name) => (name ? el("th", { scope: "col" }, name) : el("td"))))),
      el("tbody", {},
        row("multiplications, this step", large(step.withCache), large(step.without), times(step.withCache, step.without)),
        row("multiplications so far", large(step.withSoFar), large(step.withoutSoFar), times(step.withSoFar, step.withoutSoFar)),
        row("keys and values computed, this step", bytes((step.to - step.from) * bytesPerToken(config)), bytes(step.to * bytesPerToken(config)), bytes(step.spared)),
        row("keys and values computed so far", bytes(step.cached), bytes(step.cached + step.sparedSoFar), bytes(step.sparedSoFar)),
        row(`memory it takes, at ${count(bytesPerToken(config))} B a token`, bytes(step.cached), "0 B", ""),
      ));
  }

  /** The tower's keys and values at a step. @param {number} width @param {string} title @param {number} from first column that is computed @param {number} to */
  #picture(width, title, from, to) {
    const { tokens } = /** @type {Trace} */ (store.trace);
    const { n_layer } = /** @type {ModelConfig} */ (store.config);
    const shown = columns(width);
    const first = Math.max(0, Math.min(to - shown + (to < tokens.length ? 1 : 0), tokens.length - shown));
    const last = Math.min(tokens.length, first + shown);
    const rows = Math.min(n_layer, 16); // of more blocks the picture shows the lowest and says so
    const height = 24 + rows * (CELL.height + CELL.gap) + 34;
    const [ink, soft, line, accent, accentInk] = ["ink", "soft", "line-strong", "accent", "accent-ink"].map(colour);
    /** @type {SVGElement[]} */
    const made = [svg("text", { x: 0, y: 13, "font-size": 13, "font-weight": 600, fill: ink }, title)];
    for (let layer = 0; layer < rows; layer++) {
      const y = 24 + (rows - 1 - layer) * (CELL.height + CELL.gap);
      made.push(svg("text", { x: 18, y: y + 11, "font-size": 10, fill: soft, "text-anchor": "end" }, layer));
      for (let at = first; at < last; at++) {
        const x = 26 + (at - first) * (CELL.width + CELL.gap);
        const is = at >= to ? "empty" : at >= from ? "lit" : "kept";
        for (const [i, name] of ["k", "v"].entries()) {
          const left = x + (i * CELL.width) / 2;
          made.push(svg("rect", { x: left, y, width: CELL.width / 2 - 1, height: CELL.height, rx: 2, class: is, fill: is === "lit" ? accent : is === "kept" ? line : "none", "fill-opacity": is === "kept" ? 0.55 : 1, stroke: is === "empty" ? line : "none", "stroke-dasharray": "2 2" }));
          if (is !== "empty") made.push(svg("text", { x: left + CELL.width / 4 - 0.5, y: y + 11, "font-size": 10, "text-anchor": "middle", fill: is === "lit" ? accentInk : ink }, name));
        }
      }
    }
    for (let at = first; at < last; at++) {
      const x = 26 + (at - first) * (CELL.width + CELL.gap) + CELL.width / 2;
      made.push(svg("text", { x, y: height - 20, "font-size": 11, "text-anchor": "middle", "font-family": "monospace", fill: at < to ? ink : soft, "font-weight": at === to - 1 ? 700 : 400 }, short(tokens[at].text, 5)));
    }
    const more = [first > 0 ? `${first} earlier` : "", tokens.length > last ? `${tokens.length - last} later` : "", n_layer > rows ? `${n_layer - rows} blocks more` : ""].filter(Boolean);
    if (more.length > 0) made.push(svg("text", { x: 26, y: height - 4, "font-size": 10, fill: soft }, `not drawn: ${more.join(", ")}`));
    return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${to - from} of ${to} columns are computed in this step` }, made);
  }

  toSVG() {
    const now = this.#now();
    const step = this.#steps()[now];
    const pictures = [this.#picture(420, "With the cache", step.from, step.to), this.#picture(420, "Without it", 0, step.to)];
    pictures.forEach((picture, i) => {
      picture.setAttribute("x", String(16 + i * 440));
      picture.setAttribute("y", "40");
    });
    const height = Number(pictures[0].getAttribute("height"));
    const line = `${large(step.withCache)} multiplications instead of ${large(step.without)} in this step; ${bytes(step.cached)} kept.`;
    return svgText(892, height + 80, [
      svg("text", { x: 16, y: 24, "font-size": 15, "font-weight": 600, fill: colour("ink") }, this.said.textContent),
      ...pictures,
      svg("text", { x: 16, y: height + 64, fill: colour("ink") }, line),
    ]);
  }
}

customElements.define("glass-cache", GlassCache);
