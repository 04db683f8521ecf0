// The phone-keyboard game: three suggestions, no numbers. Which does the model like best? Then its answer is shown.

import { el, percent, put, visible } from "../draw.js";
import { uniform } from "../sampling.js";
import { store } from "../store.js";
import { goOn, promptLength } from "../text.js";

const ROUNDS = 10;
const PLACES = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

export class Game {
  /** @type {{word: string, points: number, best: boolean}[]} */ #past = [];
  #order = PLACES[0]; // place on the keyboard -> rank

  /** @param {{sampler: import("../sampling.js").Sampler | null, words: string[]}} view */
  constructor(view) {
    this.view = view;
    this.keys = [0, 1, 2].map((i) => el("button", { type: "button", onclick: () => this.choose(i) }));
    this.told = el("p", { class: "told", role: "status" });
    this.score = el("p", { class: "score" });
    this.again = el("button", { type: "button", onclick: () => this.start() }, "Once more");
    this.element = el("div", { class: "game", hidden: true },
      el("p", {}, "Which of the three would the model write next? The nearer your word comes to its favourite, the more points: 100 for the favourite itself, fewer in proportion to its probability. Keys 1, 2, 3."),
      this.score,
      el("div", { class: "suggestions", role: "group", "aria-label": "Suggestions" }, this.keys),
      this.told,
      el("div", { class: "acts" }, this.again, el("button", { type: "button", onclick: () => store.set({ game: false }) }, "End the game")),
    );
  }

  start() {
    this.#past = [];
    put(this.told);
    this.turn();
    this.keys[0].focus();
  }

  get over() {
    return this.#past.length >= ROUNDS;
  }

  /** Lay out three suggestions; the seed mixes them, so that a game can be played again. */
  turn() {
    const { sampler, words } = this.view;
    if (!sampler) return;
    const length = store.trace?.tokens.length ?? 0;
    this.#order = PLACES[Math.floor(6 * uniform(store.get().seed, 1000 + length - promptLength()))];
    this.keys.forEach((key, i) => {
      key.disabled = this.over;
      put(key, el("kbd", { "aria-hidden": "true" }, i + 1), el("span", { class: "word" }, visible(words[sampler.order[this.#order[i]]] ?? "")));
    });
    const points = this.#past.reduce((sum, { points }) => sum + points, 0);
    const agreed = this.#past.filter(({ best }) => best).length;
    put(this.score, this.over ? el("b", {}, `${points} of ${100 * ROUNDS} points. `) : `Round ${this.#past.length + 1} of ${ROUNDS}. ${points} points. `,
      this.over ? `You and the model agreed ${agreed} times in ${ROUNDS}.` : "");
    this.again.hidden = !this.over;
  }

  /** @param {number} place */
  choose(place) {
    const { sampler, words } = this.view;
    if (!sampler || place > 2 || this.over) return;
    const rank = this.#order[place];
    const points = Math.round((100 * sampler.plain[rank]) / sampler.plain[0]);
    const name = (/** @type {number} */ r) => visible(words[sampler.order[r]] ?? "");
    this.#past.push({ word: name(rank), points, best: rank === 0 });
    put(this.told, rank === 0 ? `Yes: ` : "", el("b", { class: "token" }, name(rank)), ` has ${percent(sampler.plain[rank])}`,
      rank === 0 ? `, the most of all. ` : `; the favourite was ${name(0)} with ${percent(sampler.plain[0])}. `, el("b", {}, `${points} points.`));
    goOn([sampler.order[rank]], (store.trace?.tokens.length ?? 1) - 1);
  }
}
