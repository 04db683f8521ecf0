// The tokens that cannot be typed, as buttons: one that is pressed goes into the text where the caret was.

import { api, isAbort, messageOf } from "../state/api.js";
import { el, put } from "../draw/draw.js";
import { examplesOf, knownExamples } from "./examples.js";
import { midi, midiButton } from "../music/midi-files.js";
import { edited, partsOf, spansOf } from "./prompt.js";
import { store } from "../state/store.js";
import { t } from "../languages/language.js";

/** @typedef {import("./prompt.js").Span} Span */

export class Inserts {
  #buttons = el("div", { class: "inserts", role: "group", "aria-label": t("insert.label") });
  #says = el("p", { class: "small", role: "status" });
  element = el("div", { class: "insert-row" }, this.#buttons, this.#says);
  #field;
  #listed = "";

  /** @param {HTMLTextAreaElement} field */
  constructor(field) {
    this.#field = field;
    midi.say = (words, failed = false) => this.#say(words, failed);
  }

  /** Show those of the current model. */
  render() {
    const { model } = store.get();
    const { inserts, kind } = knownExamples(model);
    if (!api.offline && inserts.length === 0) void examplesOf(model).then(({ inserts: found }) => found.length > 0 && this.#list(), () => {});
    this.#list();
    this.element.dataset.kind = kind;
  }

  #list() {
    const { inserts, kind } = knownExamples();
    const names = JSON.stringify([kind, inserts]);
    if (names === this.#listed) return;
    this.#listed = names;
    put(
      this.#buttons,
      inserts.length > 0 && el("span", { class: "quiet small" }, t("insert")),
      inserts.map((one) => el("button", { class: one.special ? "insert special" : "insert", title: one.special
        ? t("insert.special") : "", onclick: () => void this.insert(one.name, one.ids) }, one.name)),
      kind === "music" && midiButton(),
    );
  }

  /** @param {string} words @param {boolean} [failed] */
  #say(words, failed = false) {
    this.#says.classList.toggle("problem", failed);
    put(this.#says, words);
  }

  /** The special tokens in the text that is shown. @returns {Span[]} */
  get spans() {
    const special = new Set(knownExamples().inserts.filter((one) => one.special).map(({ ids }) => ids[0]));
    return store.trace && store.get().ids ? spansOf(store.trace, special) : [];
  }

  /**
   * Take a text that was typed over another one with special tokens in it.
   * @param {string} before @param {string} after @param {boolean} push
   * @returns {Promise<void> | null} null if it is plain text
   */
  take(before, after, push) {
    const { spans } = this;
    if (spans.length === 0) return null;
    const now = edited(before, spans, after);
    if (now.text !== after && document.activeElement === this.#field) {
      this.#field.value = now.text; // the rest of a token that was cut into
      this.#field.setSelectionRange(now.caret, now.caret);
    }
    return now.spans.length === 0 && now.text === after ? null : this.#send(now.text, now.spans, push);
  }

  /** Insert tokens where the caret is, or at the end. @param {string} name @param {number[]} ids */
  async insert(name, ids) {
    const before = store.trace && store.get().ids ? store.trace.words.map((word) => word.text).join("") : store.get().text;
    const touched = this.#field.dataset.touched === "true" && this.#field.value === before;
    const { spans } = this;
    let caret = touched ? this.#field.selectionStart : before.length;
    for (const { start, end } of spans) if (start < caret && caret < end) caret = end;
    const text = before.slice(0, caret) + name + before.slice(caret);
    const moved = spans.map((span) => (span.start < caret ? span : { ...span, start: span.start + name.length, end: span.end + name.length }));
    const added = { start: caret, end: caret + name.length, ids };
    await this.#send(text, [...moved, added].sort((a, b) => a.start - b.start), true);
  }

  /** @param {string} text @param {Span[]} spans @param {boolean} push */
  async #send(text, spans, push) {
    this.#say("");
    const { textKey } = store;
    try {
      const { ids } = await api.post("/tokenize", { model: store.get().model, parts: partsOf(text, spans) }, { slot: "tokenize" });
      if (store.textKey === textKey) store.set({ ids, prompt: null, token: -1, edits: [] }, { push }); // else another text was opened meanwhile
    } catch (error) {
      if (!isAbort(error)) this.#say(messageOf(error), true);
    }
  }
}
