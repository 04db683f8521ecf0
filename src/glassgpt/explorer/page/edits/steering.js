// Steering: a direction towards one word and away from another, added to the stream after the cursor's block.

import { api, isAbort, messageOf } from "../state/api.js";
import { el, format, put, visible } from "../draw/draw.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

/** @typedef {{word: string, ids: number[]}} Direction a word, and the tokens whose mean direction it is */

export class Steering {
  #towards = el("input", { type: "text", id: "towards", size: 10, autocomplete: "off", spellcheck: "false", onchange: () => void this.#steer() });
  #away = el("input", { type: "text", id: "away", size: 10, autocomplete: "off", spellcheck: "false", onchange: () => void this.#steer() });
  #strength = el("input", { type: "range", id: "strength", min: -2, max: 2, step: 0.1, value: 0, oninput: () => void this.#steer() });
  #strengthSays = el("output", { for: "strength" }, "0");
  #says = el("p", { class: "small", role: "status" });
  /** How often it was used: of two answers the later question's counts. */ #uses = 0;
  /** @type {string[]} the text of every token */ words = [];
  element = el("section", {}, el("h3", {}, t("steer.title")),
    el("p", { class: "says" }, say("steer.says")),
    el("div", { class: "acts" }, el("label", { for: "towards" }, t("steer.toward")), this.#towards, el("label", { for: "away" }, t("steer.away")), this.#away),
    el("div", { class: "acts" }, el("label", { for: "strength" }, t("steer.strength")), this.#strength, this.#strengthSays),
    this.#says);

  /**
   * The tokens of a word: one, with a space before it if there is such a token; else those it is made of.
   * @param {string} word @returns {Promise<Direction>}
   */
  async #find(word) {
    for (const whole of [` ${word}`, word]) {
      const found = this.words.indexOf(whole);
      if (found >= 0) return { word, ids: [found] };
    }
    const { ids } = await api.post("/tokenize", { model: store.get().model, parts: [` ${word}`] }, { slot: `steer ${word}` });
    return { word, ids };
  }

  async #steer() {
    const strength = Number(this.#strength.value);
    const layer = Math.max(0, store.cursor.layer);
    put(this.#strengthSays, format(strength, 1));
    put(this.#says, t("computing"));
    const [use, { textKey }] = [++this.#uses, store];
    try {
      const fields = /** @type {[HTMLInputElement, number][]} */ ([[this.#towards, 1], [this.#away, -1]]).filter(([input]) => input.value.trim() !== "");
      const found = await Promise.all(fields.map(async ([input, sign]) => ({ sign, ...(await this.#find(input.value.trim())) })));
      if (use !== this.#uses) return;
      if (store.textKey !== textKey) return put(this.#says); // another text was opened meanwhile
      // Of a word of several tokens each has its share: together they are the mean of their directions.
      const made = strength === 0 ? [] : found.flatMap(({ sign, ids }) =>
        ids.map((token) => /** @type {Edit} */ ({ kind: "steer_token", layer, token, strength: Number(((sign * strength) / ids.length).toFixed(3)) })));
      put(this.#says, found.filter(({ ids }) => ids.length > 1).map(({ word, ids }) => t("steer.tokens", { word, n: ids.length,
        tokens: ids.map((id) => t("steer.token", { token: visible(this.words[id] ?? "") })).join(t("steer.and")) })));
      store.set({ edits: [...store.get().edits.filter((edit) => edit.kind !== "steer_token"), ...made] });
    } catch (error) {
      if (!isAbort(error) && use === this.#uses) put(this.#says, messageOf(error));
    }
  }

  /** What the edits say about steering, in the fields, unless they are being used. @param {Edit[]} edits */
  show(edits) {
    const steers = edits.filter((edit) => edit.kind === "steer_token");
    if (this.words.length === 0 || this.element.contains(document.activeElement)) return;
    if (steers.length === 0 && Number(this.#strength.value) !== 0) {
      this.#strength.value = "0"; // the edits were removed; the words stay
      put(this.#says);
    }
    for (const [input, sign] of /** @type {[HTMLInputElement, number][]} */ (steers.length > 0 ? [[this.#towards, 1], [this.#away, -1]] : [])) {
      const own = steers.filter(({ strength = 1 }) => Math.sign(strength) === sign);
      input.value = own.map(({ token = -1 }) => this.words[token] ?? "").join("").trim();
      if (own.length > 0) this.#strength.value = String(Math.abs(own.reduce((sum, { strength = 1 }) => sum + strength, 0)).toFixed(1));
    }
    put(this.#strengthSays, format(Number(this.#strength.value), 1));
  }
}
