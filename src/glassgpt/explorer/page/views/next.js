// Next words: what the model expects after the cursor's token, what the knobs make of it, and going on from there.

import { api, isAbort } from "../api.js";
import { el, percent, put, visible } from "../draw.js";
import { bind } from "../keys.js";
import { Sampler, uniform } from "../sampling.js";
import { store } from "../store.js";
import { goOn, promptLength, undo } from "../text.js";
import { GlassView } from "../view.js";
import { Game } from "./next_game.js";
import { curve, figure } from "./next_picture.js";
import { Writer } from "./next_writer.js";

const SHOWN = 10;
const count = (/** @type {number} */ n) => n.toLocaleString("en-US");

/** The state's numbers as the sampler wants them: a filter that does nothing is off. */
export function knobs() {
  const { temperature, topK, topP, minP } = store.get();
  return { temperature, topK: topK > 0 ? topK : null, topP: topP < 1 ? topP : null, minP: minP > 0 ? minP : null };
}

/**
 * @typedef {object} Slider
 * @property {"temperature"|"topK"|"topP"|"minP"} name
 * @property {string} label
 * @property {string} hint
 * @property {number} max
 * @property {number} step
 * @property {(value: number, size: number) => number} at where the slider stands for a value
 * @property {(place: number, size: number) => number} value
 * @property {(value: number) => string} say
 */

/** @type {Slider[]} top-k runs through its powers, from 1 to the whole vocabulary, which is off */
const SLIDERS = [
  { name: "temperature", label: "Temperature", hint: "below 1 sharpens, above 1 levels", max: 2, step: 0.05, at: (v) => v, value: (p) => p, say: (v) => (v === 0 ? "0: always the best" : v.toFixed(2)) },
  {
    name: "topK", label: "Top-k", hint: "only the best k", max: 200, step: 1,
    at: (v, size) => (v === 0 ? 200 : Math.round((199 * Math.log(v)) / Math.log(size))),
    value: (p, size) => (p >= 200 ? 0 : Math.round(size ** (p / 199))),
    say: (v) => (v === 0 ? "off" : count(v)),
  },
  { name: "topP", label: "Top-p", hint: "the fewest that reach this share", max: 1, step: 0.01, at: (v) => v, value: (p) => Math.max(0.01, p), say: (v) => (v >= 1 ? "off" : v.toFixed(2)) },
  { name: "minP", label: "Min-p", hint: "at least this share of the best one's", max: 1, step: 0.01, at: (v) => v, value: (p) => p, say: (v) => (v === 0 ? "off" : v.toFixed(2)) },
];

class GlassNext extends GlassView {
  /** @type {Topic[]} */ wants = ["trace", "token", "edits", "temperature", "topK", "topP", "minP", "seed", "game", "theme"];
  /** @type {Sampler | null} */ sampler = null;
  /** @type {string[]} */ words = [];
  /** @type {(() => void)[]} */ #unbind = [];
  #row = ""; // which row of logits the sampler holds

  constructor() {
    super();
    this.heading = el("h2", { class: "next-title" });
    this.candidates = el("ol", { class: "candidates" });
    this.rows = Array.from({ length: SHOWN }, (_, i) => this.#candidate(i));
    this.candidates.append(...this.rows.map(({ item }) => item));
    this.sliders = SLIDERS.map((slider) => this.#slider(slider));
    this.picture = el("figure", { class: "next-picture" });
    this.said = el("p", { class: "small quiet said", role: "status" });
    this.seed = el("input", { type: "text", inputmode: "numeric", id: "seed", size: 6, onchange: () => this.#takeSeed() });
    this.drawButton = el("button", { type: "button", class: "primary", title: "s", onclick: () => this.sample() }, "Draw a word");
    this.gameButton = el("button", { type: "button", title: "g", onclick: () => this.#play() }, "Play the game");
    this.acts = el("div", { class: "acts" },
      this.drawButton,
      el("label", { for: "seed", title: "The same seed draws the same words, here and in `glassgpt generate --seed`" }, "seed"),
      this.seed,
      el("button", { type: "button", title: "u, Backspace, or the browser's Back", onclick: undo }, "Undo"),
      this.gameButton,
    );
    this.writer = new Writer(knobs, (words) => put(this.said, words));
    this.game = new Game(this);
    this.normal = el("div", { class: "next-normal" },
      el("div", { class: "next-columns" },
        el("div", {}, this.candidates, el("p", { class: "small quiet legend" }, el("i", { "aria-hidden": "true" }), "the model alone, before the knobs")),
        el("div", { class: "next-knobs" }, this.sliders.map(({ row }) => row), this.picture),
      ),
      this.acts, this.writer.element, this.said,
    );
  }

  connectedCallback() {
    if (!this.firstChild) this.append(this.heading, this.normal, this.game.element);
    super.connectedCallback();
    const digits = [..."1234567890"];
    this.#unbind = [
      bind(digits, "go on with that candidate (in Next words)", (event) => this.pick(digits.indexOf(event.key))),
      bind(["u", "Backspace"], "take the last word back", undo),
      bind(["s"], "draw a word by lot", () => void this.sample()),
      bind(["g"], "the phone-keyboard game", () => this.#play()),
    ];
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.writer.stop();
    for (const unbind of this.#unbind) unbind();
  }

  /** @param {number} i */
  #candidate(i) {
    const word = el("span", { class: "word" });
    const bar = el("i", { class: "fill" });
    const plain = el("i", { class: "plain" });
    const share = el("span", { class: "share" });
    const key = el("kbd", { "aria-hidden": "true" }, (i + 1) % 10);
    const button = el("button", { type: "button", class: "candidate", onclick: () => this.pick(i) }, key, word, el("span", { class: "track", "aria-hidden": "true" }, bar, plain), share);
    return { item: el("li", {}, button), button, word, bar, plain, share };
  }

  /** @param {Slider} slider */
  #slider(slider) {
    const id = `knob-${slider.name}`;
    const value = el("output", { for: id });
    const left = el("span", { class: "left", id: `${id}-left` });
    const input = el("input", { type: "range", id, min: 0, max: slider.max, step: slider.step, "aria-describedby": left.id });
    input.addEventListener("input", () => store.set({ [slider.name]: slider.value(Number(input.value), this.sampler?.size ?? 2) }));
    const row = el("div", { class: "knob", title: slider.hint }, el("label", { for: id }, slider.label), value, left, input);
    return { row, input, value, left };
  }

  render() {
    const { token } = store.cursor;
    const { edits, game } = store.get();
    const trace = /** @type {Trace} */ (store.trace);
    const row = JSON.stringify([trace.id, token, edits]);
    this.normal.hidden = game;
    this.game.element.hidden = !game;
    if (row === this.#row) this.#show();
    else void this.#load(row, trace, token, edits);
  }

  /** @param {string} row @param {Trace} trace @param {number} token @param {Edit[]} edits */
  async #load(row, trace, token, edits) {
    try {
      const [{ logits }, { texts }] = await Promise.all([
        edits.length > 0 ? api.post("/intervene", { id: trace.id, edits, token }, { slot: "next" }) : api.get(`/trace/${trace.id}/next?token=${token}`, { slot: "next" }),
        api.get(`/vocabulary?model=${trace.model}`),
      ]);
      this.sampler = new Sampler(logits.data);
      this.words = texts;
      this.#row = row;
      this.#show();
      this.game.turn();
    } catch (error) {
      if (!isAbort(error)) put(this.said, error instanceof Error ? error.message : String(error));
    }
  }

  #show() {
    const sampler = this.sampler;
    if (!sampler) return;
    sampler.apply(knobs());
    this.#showHeading(sampler);
    const top = Math.max(sampler.probability(0), sampler.plain[0]);
    this.rows.forEach(({ item, button, word, bar, plain, share }, rank) => {
      item.hidden = rank >= sampler.size;
      if (item.hidden) return;
      const p = sampler.probability(rank);
      const shown = visible(this.words[sampler.order[rank]] ?? "");
      word.textContent = shown;
      share.textContent = p === 0 ? "cut" : percent(p);
      bar.style.width = `${(100 * p) / top}%`;
      plain.style.left = `${(100 * sampler.plain[rank]) / top}%`;
      button.classList.toggle("cut", p === 0);
      button.title = `token ${sampler.order[rank]}; the model alone: ${percent(sampler.plain[rank])}`;
    });
    const state = store.get();
    SLIDERS.forEach((slider, i) => {
      const { input, value, left } = this.sliders[i];
      const now = state[slider.name];
      const place = String(slider.at(now, sampler.size));
      if (input.value !== place) input.value = place;
      value.textContent = slider.say(now);
      input.setAttribute("aria-valuetext", slider.say(now));
      const cut = sampler.cuts[i];
      left.textContent = i === 0 ? `${count(sampler.size)} tokens` : `${count(cut.count)} left, ${percent(cut.mass)}`;
    });
    this.seed.value = String(state.seed);
    put(this.picture, curve(sampler, 300, 108));
    this.drawButton.disabled = api.offline;
    this.gameButton.disabled = api.offline;
    this.writer.show();
  }

  /** @param {Sampler} sampler */
  #showHeading(sampler) {
    const { token } = store.cursor;
    const { edits } = store.get();
    const tokens = /** @type {Trace} */ (store.trace).tokens;
    const next = tokens[token + 1];
    const changed = edits.length > 0 ? `, with ${edits.length} change${edits.length > 1 ? "s" : ""} inside the model` : "";
    if (!next) return put(this.heading, "What comes after ", el("b", { class: "token" }, visible(tokens[token].text)), `?${changed}`);
    const rank = sampler.rankOf[next.id];
    put(this.heading, "After ", el("b", { class: "token" }, visible(tokens[token].text)), " came ", el("b", { class: "token" }, visible(next.text)),
      `: number ${count(rank + 1)}, ${percent(sampler.plain[rank])}${changed}. A pick goes on from here.`);
  }

  /** Go on with a candidate. @param {number} rank */
  pick(rank) {
    if (!this.sampler || rank >= this.sampler.size) return;
    if (store.get().game) this.game.choose(rank);
    else if (api.offline) put(this.said, "An exported page holds one text only. Start `glassgpt explore` to go on.");
    else goOn([this.sampler.order[rank]]);
  }

  /** Draw a word by lot: the number that `glassgpt generate` would use for this seed at this place. */
  sample() {
    const sampler = this.sampler;
    if (!sampler || api.offline || store.get().game) return;
    const { seed } = store.get();
    const step = Math.max(0, store.cursor.token + 1 - promptLength());
    const number = uniform(seed, step);
    const rank = sampler.draw(number);
    const id = sampler.order[rank];
    put(this.said, `Seed ${seed}, draw ${step + 1}: the number ${number.toFixed(4)} fell on `, el("b", { class: "token" }, visible(this.words[id] ?? "")),
      `, number ${count(rank + 1)} of ${count(sampler.kept)} (${percent(sampler.probability(rank))}).`);
    goOn([id]);
  }

  #takeSeed() {
    const seed = Number(this.seed.value);
    if (Number.isSafeInteger(seed) && seed >= 0) store.set({ seed });
    else put(this.said, `The seed is ${this.seed.value}; write a whole number from 0 on.`);
    this.seed.value = String(store.get().seed);
  }

  #play() {
    if (api.offline) return;
    store.set({ game: !store.get().game, token: -1 });
    if (store.get().game) this.game.start();
    else this.gameButton.focus();
  }

  toSVG() {
    return figure(/** @type {Sampler} */ (this.sampler), this.words, this.heading.textContent ?? "", SLIDERS.map((slider) => `${slider.label} ${slider.say(store.get()[slider.name])}`).join(", "));
  }
}

customElements.define("glass-next", GlassNext);
