// Next token: the distribution after the cursor's token, the sampling parameters, and appending a token.

import { api } from "../state/api.js";
import { el, percent, put, visible } from "../draw/draw.js";
import { describe, effectNow } from "../edits/edits.js";
import { eventLabel } from "../music/music-events.js";
import { count, named, Panel, current, slider } from "../panel.js";
import { Sampler, uniform } from "../next/sampling.js";
import { store } from "../state/store.js";
import { appendTokens, promptLength, undo } from "../text/text.js";
import { Game } from "../next/next-game.js";
import { curve } from "../next/next-chart.js";
import { FromVector } from "../next/next-table.js";
import { Writer } from "../next/next-writer.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const SHOWN = 10;
const DIGITS = [..."1234567890"];

/** The sampling parameters of the state; a filter without effect is off. @returns {SamplingParams} */
function samplingParams() {
  const { temperature, topK, topP, minP } = store.get();
  return { temperature, topK: topK > 0 ? topK : null, topP: topP < 1 ? topP : null, minP: minP > 0 ? minP : null };
}

/** @type {{name: SamplingParam, range: Record<string, number>, say: (value: number) => string}[]} */
const SLIDERS = [
  { name: "temperature", range: { max: 2, step: 0.05 }, say: (v) => (v === 0 ? t("next.greedy") : v.toFixed(2)) },
  { name: "topK", range: { max: 200 }, say: (v) => (v === 0 ? t("next.off") : count(v)) },
  { name: "topP", range: { min: 0.01, max: 1, step: 0.01 }, say: (v) => (v >= 1 ? t("next.off") : v.toFixed(2)) },
  { name: "minP", range: { max: 1, step: 0.01 }, say: (v) => (v === 0 ? t("next.off") : v.toFixed(2)) },
];

/** The slider of top-k is logarithmic, from 1 to the whole vocabulary, which is off. @param {number} k @param {number} size */
const placeOfK = (k, size) => (k === 0 ? 200 : Math.round((199 * Math.log(k)) / Math.log(size)));
/** @param {number} place @param {number} size */
const kAtPlace = (place, size) => (place >= 200 ? 0 : Math.round(size ** (place / 199)));

class GlassNext extends Panel {
  /** @type {Topic[]} */ wants = ["trace", "token", "edits", "intervention", "temperature", "topK", "topP", "minP", "seed", "game", "theme"];
  foresee = (/** @type {number} */ token) => [`/next?position=${token}`, `/final?position=${token}`];
  /** @type {Sampler | null} */ sampler = null;
  /** @type {string[]} */ words = [];
  #row = ""; // the key of the sampler's logits
  #title = el("h2");
  #rows = Array.from({ length: SHOWN }, (_, i) => this.#candidate(i));
  #params = SLIDERS.map(({ name, range }) => {
    const left = el("span", { class: "left", id: `left-${name}` });
    const made = slider(`param-${name}`, t(`next.${name}`), { ...range, "aria-describedby": left.id }, (value) =>
      store.set({ [name]: name === "topK" ? kAtPlace(value, this.sampler?.size ?? 2) : value }));
    return { ...made, left, row: el("div", { class: "param", title: t(`next.${name}.hint`) }, made.label, made.says, left, made.input) };
  });
  #figure = el("figure");
  #saidOf = ""; // the text that it is about
  #said = el("p", { class: "small quiet said", role: "status" });
  #seed = el("input", { type: "text", inputmode: "numeric", id: "seed", size: 6, onchange: () => this.#takeSeed() });
  #gameButton = el("button", { title: "g", onclick: () => this.#play() }, t("next.play"));
  #writer = new Writer(samplingParams, (words) => this.#say(words));
  #game = new Game(this);
  #table = new FromVector((response, use) => this.load(response, use, this.#table.element));
  #normal = el("div", {},
    el("div", { class: "next-columns" },
      el("div", {}, el("ol", { class: "candidates" }, this.#rows.map(({ item }) => item)),
        el("p", { class: "small quiet plain-note" }, el("i", { "aria-hidden": "true" }), t("next.plain"))),
      el("div", {}, this.#params.map(({ row }) => row), this.#figure)),
    el("div", { class: "acts" },
      el("button", { class: "primary", title: "s", disabled: api.offline, onclick: () => this.sample() }, t("next.sample")),
      el("label", { for: "seed", title: t("next.seed.hint") }, t("next.seed")), this.#seed,
      el("button", { title: t("next.undo.hint"), disabled: api.offline, onclick: undo }, t("next.undo")),
      this.#gameButton),
    this.#writer.element, this.#said, this.#table.element);

  parts = [this.#title, this.#normal, this.#game.element];
  /** @type {Panel["keys"]} */ keys = [
    [DIGITS, t("keys.append"), (event) => this.pick(DIGITS.indexOf(event.key))],
    [["u", "Backspace"], t("keys.undo"), undo],
    [["s"], t("keys.sample"), () => this.sample()],
    [["g"], t("keys.game"), () => this.#play()],
  ];

  disconnectedCallback() {
    super.disconnectedCallback();
    this.#writer.stop();
  }

  /** @param {number} i */
  #candidate(i) {
    const [word, share] = [el("span", { class: "word" }), el("span", { class: "share" })];
    const [bar, plain] = [el("i", { class: "fill" }), el("i", { class: "plain" })];
    const button = el("button", { class: "candidate", onclick: () => this.pick(i) },
      el("kbd", { "aria-hidden": "true" }, (i + 1) % 10), word, el("span", { class: "track", "aria-hidden": "true" }, bar, plain), share);
    const why = el("button", { class: "why", title: t("view.why"), onclick: () => this.sampler
      && store.set({ view: "why", target: this.sampler.order[i] }) }, t("next.why"));
    return { item: el("li", {}, button, why), button, why, word, bar, plain, share };
  }

  render() {
    const { game, edits } = store.get();
    this.#normal.hidden = game;
    this.#game.element.hidden = !game;
    this.#gameButton.disabled = api.offline;
    this.#writer.render();
    if (this.#saidOf !== store.textKey && this.#said.firstChild) this.#writer.clear();
    const { id, model } = current().trace;
    const wanted = this.#wanted;
    if (this.#row === wanted) {
      this.gray(false);
      return this.#show();
    }
    if (edits.length > 0 && !effectNow()) return this.gray(true); // it is loading
    const logits = edits.length > 0 ? effectNow() : api.get(`/trace/${id}/next?position=${store.cursor.token}`, { slot: "next" });
    this.#table.load(); // in the same request
    void this.load(Promise.all([logits, api.get(`/vocabulary?model=${model}`)]), ([{ logits }, { texts }]) => {
      this.sampler = new Sampler(logits.data);
      [this.words, this.#row] = [texts, wanted];
      this.#show();
      this.#game.turn();
    });
  }

  /** The key of the logits to show: trace, position and edits. */
  get #wanted() {
    return JSON.stringify([store.trace?.id, store.cursor.token, store.get().edits]);
  }

  /** Whether the candidates are those of the current text, and can be picked. */
  get fresh() {
    return store.status === "ready" && this.#row === this.#wanted;
  }

  #show() {
    const sampler = this.sampler;
    if (!sampler) return;
    const state = store.get();
    sampler.apply(samplingParams());
    this.#showTitle(sampler);
    const top = Math.max(sampler.probability(0), sampler.plain[0]);
    this.#rows.forEach(({ item, button, why, word, bar, plain, share }, rank) => {
      item.hidden = rank >= sampler.size;
      const p = sampler.probability(rank);
      word.textContent = eventLabel(this.words[sampler.order[rank]] ?? "") ?? this.word(rank); // an event's full name is in the title
      share.textContent = p === 0 ? t("next.cut") : percent(p);
      bar.style.width = `${(100 * p) / top}%`;
      plain.style.left = `${(100 * sampler.plain[rank]) / top}%`;
      button.classList.toggle("cut", p === 0);
      why.setAttribute("aria-label", t("next.why.label", { word: this.word(rank) }));
      button.title = t("next.candidate", { word: this.word(rank), id: String(sampler.order[rank]), share: percent(sampler.plain[rank]) });
    });
    SLIDERS.forEach(({ name, say }, i) => {
      this.#params[i].show(name === "topK" ? placeOfK(state.topK, sampler.size) : state[name], say(state[name]));
      const { count: n, mass } = sampler.cuts[i];
      this.#params[i].left.textContent = i === 0 ? t("next.all", { n: sampler.size }) : t("next.left", { n, share: percent(mass) });
    });
    this.#seed.value = String(state.seed);
    put(this.#figure, curve(sampler, 300, 108));
    this.#table.show(sampler, state.temperature, (rank) => this.word(rank));
  }

  /** Say something about the text, until there is another. @param {...Child} words */
  #say(...words) {
    put(this.#said, ...words);
    this.#saidOf = store.textKey;
  }

  /** The text of the token at a rank. @param {number} rank */
  word(rank) {
    return visible(this.words[this.sampler?.order[rank] ?? -1] ?? "");
  }

  /** @param {Sampler} sampler */
  #showTitle(sampler) {
    const { token } = store.cursor;
    const { edits } = store.get();
    const { tokens } = current().trace;
    const next = tokens[token + 1];
    const changed = edits.length > 0 ? t("next.edits", { edits: edits.map(describe).join(", ") }) : "";
    if (!next) return put(this.#title, say("next.after", { word: named(tokens[token].text), edits: changed }));
    const rank = sampler.rankOf[next.id];
    put(this.#title, say("next.came", { word: named(tokens[token].text), next: named(next.text), rank: rank + 1,
      share: percent(sampler.plain[rank]), edits: changed }));
  }

  /** Append a candidate. @param {number} rank */
  pick(rank) {
    if (!this.sampler || !this.fresh || rank >= this.sampler.size) return;
    if (store.get().game) this.#game.choose(rank);
    else if (api.offline) this.#say(t("error.file.go"));
    else appendTokens([this.sampler.order[rank]]);
  }

  /** Sample a token, with the random number that `glassgpt generate` has for this seed and step. */
  sample() {
    const sampler = this.sampler;
    const { seed, game } = store.get();
    if (!sampler || !this.fresh || api.offline || game) return;
    const step = Math.max(0, store.cursor.token + 1 - promptLength());
    const number = uniform(seed, step);
    const rank = sampler.draw(number);
    const [word, kept] = [this.words[sampler.order[rank]] ?? "", sampler.kept];
    const share = percent(sampler.probability(rank));
    appendTokens([sampler.order[rank]]);
    this.#say(...say("next.sampled", { seed: String(seed), step: step + 1, number: number.toFixed(4), word: named(word), rank: rank + 1, kept, share }));
  }

  #takeSeed() {
    const seed = Number(this.#seed.value);
    if (Number.isSafeInteger(seed) && seed >= 0) store.set({ seed });
    else this.#say(t("next.seed.wrong", { seed: this.#seed.value }));
    this.#seed.value = String(store.get().seed);
  }

  #play() {
    if (api.offline) return;
    store.set({ game: !store.get().game, token: -1 });
    if (store.get().game) this.#game.start();
    else this.#gameButton.focus();
  }
}

customElements.define("glass-next", GlassNext);
