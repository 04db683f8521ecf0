// The text as tokens, colored by loss; on hover, the BPE merges of each.

import { el, format, percent, put, ramp, shade, lossLevel, visible } from "../draw/draw.js";
import { Arcs } from "../draw/arcs.js";
import { Inserts } from "../text/inserts.js";
import { eventLabel } from "../music/music-events.js";
import { PianoRoll } from "../music/piano-roll.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { afterRender, GlassView } from "../view.js";
import { t } from "../languages/language.js";

/** A new trace is requested after this long without typing. */
const TYPED_MS = 250;

/** @param {number} p */
const bits = (p) => -Math.log2(Math.max(p, 1e-30));

class GlassStrip extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "arcs", "status", "text", "ids", "model", "info"];
  #field = el("textarea", { id: "text", rows: 1, spellcheck: "false", autocomplete: "off", maxlength: 20000 });
  #summary = el("p", { class: "quiet small" });
  #box = el("div", { class: "chips", role: "group", "aria-label": t("strip.tokens") });
  #roll = new PianoRoll(); // of a model of music; else hidden
  #card = el("div", { class: "card", id: "token-card", role: "tooltip", hidden: true });
  /** @type {HTMLButtonElement[]} */ #chips = [];
  /** @type {string[]} what each of them says */ #said = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #typing;
  #typed = false;
  #at = -1;
  #inserts = new Inserts(this.#field);
  #arcs = new Arcs(this.#box, () => this.#chips, (weights, token) => this.#roll.attend(weights, token));

  build() {
    const aside = el("div", { class: "aside" }, this.#summary, ramp(t("strip.low"), "loss", t("strip.high")));
    put(this, el("div", { class: "field" }, el("label", { for: "text" }, t("strip.text")), this.#field, aside), this.#roll,
      el("div", { class: "line" }, this.#box, el("div", { class: "beside" }, this.#arcs.controls, this.#inserts.element)), this.#card);
    this.#roll.hidden = true;
    this.#box.append(this.#arcs.picture);
    this.#field.addEventListener("focus", () => (this.#field.dataset.touched = "true"));
    this.#roll.addEventListener("pick", (event) => store.set({ token: /** @type {CustomEvent} */ (event).detail }));
    const stop = store.subscribe(() => {
      if (store.trace) stop();
      else if (document.activeElement !== this.#field) {
        this.#field.value = store.get().text; // before its numbers, which may take a while
        this.#fit();
      }
    });
    this.#field.addEventListener("input", () => {
      this.#fit();
      store.update({ typing: this.#field.value !== this.#shown() }, "status");
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#send(), TYPED_MS);
    });
    this.#field.addEventListener("blur", () => this.#send());
    this.#field.addEventListener("keydown", ({ key }) => key === "Escape" && this.#field.blur());
    this.#box.addEventListener("click", (event) => {
      const token = this.#tokenOf(event);
      if (token >= 0) store.set({ token });
    });
    for (const name of ["mouseover", "focusin"]) this.#box.addEventListener(name, (event) => this.#showCard(this.#tokenOf(event)));
    for (const name of ["mouseleave", "focusout", "scroll"]) this.#box.addEventListener(name, () => this.#showCard(-1));
    this.#box.addEventListener("keydown", ({ key }) => key === "Escape" && this.#showCard(-1));
  }

  /** The first change of an edit adds a history entry; later ones replace it. */
  #send() {
    clearTimeout(this.#typing);
    const text = this.#field.value;
    const editing = document.activeElement === this.#field;
    const before = this.#shown();
    if (text !== before) {
      const push = !this.#typed;
      if (!this.#inserts.take(before, text, push)) store.set({ text, ids: null, prompt: null, token: -1, edits: [] }, { push });
    } else if (editing) return;
    this.#typed = editing;
  }

  /** The text of the store; when tokens were appended, that of the ids. */
  #shown() {
    const { text, ids } = store.get();
    return ids && store.trace ? store.trace.words.map((word) => word.text).join("") : text;
  }

  /** As high as the text needs, up to three lines. */
  #fit = () => {
    this.#field.style.height = "auto";
    this.#field.style.height = `${Math.min(this.#field.scrollHeight + 2, 72)}px`;
  };

  /** @param {Event} event @returns {number} the token an event happened on, or -1 */
  #tokenOf({ target }) {
    return this.#chips.findIndex((chip) => chip.contains(/** @type {Node} */ (target)));
  }

  /** @param {number} place */
  #showCard(place) {
    this.#card.hidden = place < 0 || !store.trace;
    if (this.#card.hidden || !store.trace) return;
    put(this.#card, cardOf(store.trace, place));
    const chip = this.#chips[place].getBoundingClientRect();
    const { width, height } = this.#card.getBoundingClientRect();
    const below = chip.bottom + 6;
    this.#card.style.left = `${Math.max(8, Math.min(chip.left, innerWidth - width - 8))}px`;
    this.#card.style.top = `${below + height > innerHeight ? Math.max(8, chip.top - height - 6) : below}px`;
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace } = store;
    if (!trace) return;
    const editing = document.activeElement === this.#field && (this.#typed || store.typing);
    if (!editing && this.#field.value !== this.#shown()) {
      this.#field.value = this.#shown();
      afterRender(this.#fit);
    }
    this.#field.setAttribute("aria-invalid", String(store.status === "error"));
    if (changed.has("trace") || changed.has("theme")) {
      this.#fill(trace);
      this.#arcs.moved();
    }
    this.#inserts.render();
    this.#mark();
    this.#arcs.draw();
  }

  /** @param {Trace} trace */
  #fill(trace) {
    const hadFocus = this.#box.contains(document.activeElement);
    this.#showCard(-1);
    this.#unmark();
    // Chips that say the same stay: often only the last one is new.
    const said = trace.tokens.map((token, place) => {
      const { fill, ink } = shadeOf(trace.token_loss[place]);
      return JSON.stringify([token.text, token.id, fill, ink, trace.words[token.word]?.first !== place]);
    });
    const same = said.findIndex((what, place) => what !== this.#said[place]);
    const kept = same < 0 ? Math.min(said.length, this.#chips.length) : same;
    this.#chips.splice(kept).forEach((chip) => chip.remove());
    const added = trace.tokens.slice(kept).map((token, i) => chipOf(trace, token, kept + i));
    this.#chips.push(...added);
    this.#said = said;
    this.#box.append(...added);
    this.#roll.show(trace.tokens);
    const known = trace.token_loss.filter((loss) => loss !== null);
    const mean = known.reduce((sum, { p }) => sum + bits(p), 0) / known.length;
    const { length } = trace.tokens;
    put(this.#summary, length === 1 ? say("strip.one", { n: 1 }) : say("strip.summary", { n: length, bits: mean.toFixed(2) }));
    if (hadFocus) this.#chips[store.cursor.token]?.focus();
  }

  #mark() {
    const { token } = store.cursor;
    if (token === this.#at) return;
    const before = this.#unmark();
    const chip = this.#chips[token];
    this.#at = token;
    this.#roll.mark(token);
    if (before && before === document.activeElement) chip?.focus();
    if (!chip) return;
    chip.setAttribute("aria-current", "true");
    chip.tabIndex = 0;
    afterRender(() => {
      const [top, { scrollTop, clientHeight }] = [chip.offsetTop, this.#box];
      if (top < scrollTop || top + chip.offsetHeight > scrollTop + clientHeight) this.#box.scrollTop = top - 3;
    });
  }

  /** The chip that was the cursor's is one of the others again. */
  #unmark() {
    const before = this.#chips[this.#at];
    before?.removeAttribute("aria-current");
    if (before) before.tabIndex = -1;
    this.#at = -1;
    return before;
  }
}

/** The color of a token's loss; the first token has none. @param {TokenLoss | null} loss */
const shadeOf = (loss) => (loss ? shade("loss", lossLevel(loss.p)) : { fill: "", ink: "" });

/** @param {Trace} trace @param {Token} token @param {number} place */
function chipOf(trace, token, place) {
  const { fill, ink } = shadeOf(trace.token_loss[place]);
  const joined = trace.words[token.word]?.first !== place;
  return el("button", { class: joined ? "chip joined" : "chip", "data-token": place, tabindex: -1, "aria-describedby": "token-card" },
    el("b", { style: { background: fill, color: ink } }, eventLabel(token.text) ?? visible(token.text)), token.id);
}

/**
 * The card of a token: its id and bytes, its loss, and the merges of its word.
 * @param {Trace} trace @param {number} place
 */
function cardOf(trace, place) {
  const token = trace.tokens[place];
  const loss = trace.token_loss[place];
  const size = store.config?.vocab_size ?? 0;
  /** @type {[string, string][]} */
  const facts = [["position", String(place)], ["id", String(token.id)],
    ["bytes", token.bytes.map((byte) => byte.toString(16).padStart(2, "0").toUpperCase()).join(" ")]];
  if (loss) {
    facts.push(["probability", t("aside", { name: percent(loss.p), words: t("token.bits", { bits: format(bits(loss.p), 1) }) })],
      ["rank", t("token.rank.of", { rank: loss.rank, size })], ["entropy", t("token.bits", { bits: format(loss.entropy / Math.LN2, 2) })]);
  } else facts.push(["probability", t("token.first")]);
  return [el("div", { class: "piece" }, visible(token.text)),
    el("dl", {}, facts.flatMap(([name, value]) => [el("dt", {}, t(`token.${name}`)), el("dd", {}, value)])), ...mergesOf(trace.words[token.word], token)];
}

/** @param {Word | undefined} word @param {Token} token of it */
function mergesOf(word, token) {
  const states = word?.merges ?? [];
  const isEvent = states.length === 1 && states[0].length === 1 && token.bytes.length > 1; // of music: nothing was merged
  if (!word || states.length === 0 || isEvent) return [];
  const shows = visible(word.text);
  const title = states.length > 1 ? t("merges.some", { word: shows, n: states.length - 1 })
    : t(states[0].length > 1 ? "merges.none" : "merges.byte", { word: shows });
  const shown = states.length > 12 ? [...states.slice(0, 6), ["…"], ...states.slice(-5)] : states;
  return [el("h3", {}, title), el("ol", {}, shown.map((pieces) => el("li", {}, pieces.map((piece) => el("span", {}, visible(piece))))))];
}

customElements.define("glass-strip", GlassStrip);
