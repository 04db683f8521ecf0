// The phone-keyboard game: three suggestions without probabilities; guess the model's favorite.

import { el, percent, put } from "../draw/draw.js";
import { uniform } from "./sampling.js";
import { store } from "../state/store.js";
import { appendTokens, promptLength } from "../text/text.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const ROUNDS = 10;
const PLACES = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

export class Game {
  /** @type {number[]} the points of each round */ #past = [];
  #order = PLACES[0]; // place on the keyboard -> rank
  #keys = [0, 1, 2].map((i) => el("button", { onclick: () => this.choose(i) }));
  #result = el("p", { role: "status" });
  #score = el("p");
  #again = el("button", { onclick: () => this.start() }, t("game.again"));
  element = el("div", { class: "game", hidden: true },
    el("p", {}, t("game.says")),
    this.#score,
    el("div", { class: "suggestions", role: "group", "aria-label": t("game.suggestions") }, this.#keys),
    this.#result,
    el("div", { class: "acts" }, this.#again, el("button", { onclick: () => store.set({ game: false }) }, t("game.end"))));

  /** @param {{fresh: boolean, sampler: import("./sampling.js").Sampler | null, word: (rank: number) => string}} view */
  constructor(view) {
    this.view = view;
  }

  start() {
    this.#past = [];
    put(this.#result);
    this.turn();
    this.#keys[0].focus();
  }

  get #over() {
    return this.#past.length >= ROUNDS;
  }

  /** Lay out three suggestions; the seed mixes them, so that a game can be played again. */
  turn() {
    const length = store.trace?.tokens.length ?? 0;
    this.#order = PLACES[Math.floor(6 * uniform(store.get().seed, 1000 + length - promptLength()))];
    this.#keys.forEach((key, i) => {
      key.disabled = this.#over;
      put(key, el("kbd", { "aria-hidden": "true" }, i + 1), el("span", { class: "word" }, this.view.word(this.#order[i])));
    });
    const points = this.#past.reduce((sum, n) => sum + n, 0);
    const agreed = this.#past.filter((n) => n === 100).length;
    put(this.#score, el("b", {}, this.#over ? t("game.over", { points, most: 100 * ROUNDS, agreed, rounds: ROUNDS })
      : t("game.round", { round: this.#past.length + 1, rounds: ROUNDS, points })));
    this.#again.hidden = !this.#over;
  }

  /** @param {number} place */
  choose(place) {
    const { sampler } = this.view;
    if (!sampler || !this.view.fresh || place > 2 || this.#over) return;
    const rank = this.#order[place];
    const points = Math.round((100 * sampler.plain[rank]) / sampler.plain[0]);
    const [word, best] = [rank, 0].map((r) => this.view.word(r));
    const [share, most] = [rank, 0].map((r) => percent(sampler.plain[r]));
    this.#past.push(points);
    put(this.#result, say(rank === 0 ? "game.yes" : "game.no", { word, share, best, most, points }));
    appendTokens([sampler.order[rank]], (store.trace?.tokens.length ?? 1) - 1);
  }
}
