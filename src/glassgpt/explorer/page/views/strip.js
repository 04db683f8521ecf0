// View 1: the text as tokens, coloured by how much each one surprised the model; on each, how BPE put it together.

import { colour, el, format, percent, put, shade, surpriseShare, svg, svgText, visible } from "../draw.js";
import { store } from "../store.js";
import { GlassView } from "../view.js";

/** A new trace is asked for when no key was struck for this long. */
const TYPED_MS = 250;

class GlassStrip extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "status", "text", "ids"];
  #field = el("textarea", { id: "text", rows: 1, spellcheck: "false", autocomplete: "off", maxlength: 20000 });
  #summary = el("p", { class: "summary quiet small" });
  #tokens = el("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  #card = el("div", { class: "card", id: "token-card", role: "tooltip", hidden: true });
  /** @type {HTMLButtonElement[]} */ #chips = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #typing;
  #typed = false;
  #at = -1;

  connectedCallback() {
    const legend = el("div", { class: "legend" }, el("span", {}, "expected"), el("span", { class: "ramp surprise", "aria-hidden": "true" }), el("span", {}, "surprising"));
    put(
      this,
      el("div", { class: "field" }, el("label", { for: "text" }, "Text"), this.#field, el("div", { class: "aside" }, this.#summary, legend)),
      this.#tokens,
      this.#card,
    );
    this.#field.addEventListener("input", () => this.#onInput());
    this.#field.addEventListener("blur", () => this.#send());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#field.blur();
    });
    this.#tokens.addEventListener("click", (event) => this.#choose(event));
    for (const name of ["mouseover", "focusin"]) this.#tokens.addEventListener(name, (event) => this.#showCard(event));
    for (const name of ["mouseleave", "focusout", "scroll"]) this.#tokens.addEventListener(name, () => this.#hideCard());
    this.#tokens.addEventListener("keydown", (event) => event.key === "Escape" && this.#hideCard());
    super.connectedCallback();
  }

  #onInput() {
    this.#fit();
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.#send(), TYPED_MS);
  }

  /** The first change of an edit is a step of history; those after it replace it. */
  #send() {
    clearTimeout(this.#typing);
    const text = this.#field.value;
    if (text === this.#shown()) {
      if (document.activeElement !== this.#field) this.#typed = false;
      return;
    }
    store.set({ text, ids: null, token: -1, edits: [] }, { push: !this.#typed });
    this.#typed = document.activeElement === this.#field;
  }

  /** The text that the store has: of the ids, when tokens were appended. */
  #shown() {
    const { text, ids } = store.get();
    return ids && store.trace ? store.trace.words.map((word) => word.text).join("") : text;
  }

  /** As high as the text needs, up to three lines. */
  #fit() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${Math.min(this.#field.scrollHeight + 2, 76)}px`;
  }

  /** @param {Event} event @returns {number} the token an event happened on, or -1 */
  #tokenOf(event) {
    return event.target instanceof Element ? this.#chips.findIndex((chip) => chip.contains(/** @type {Node} */ (event.target))) : -1;
  }

  /** @param {Event} event */
  #choose(event) {
    const token = this.#tokenOf(event);
    if (token >= 0) store.set({ token });
  }

  /** @param {Event} event */
  #showCard(event) {
    const place = this.#tokenOf(event);
    if (place < 0 || !store.trace) return;
    put(this.#card, cardOf(store.trace, place));
    this.#card.hidden = false;
    const chip = this.#chips[place].getBoundingClientRect();
    const card = this.#card.getBoundingClientRect();
    this.#card.style.left = `${Math.max(8, Math.min(chip.left, innerWidth - card.width - 8))}px`;
    const below = chip.bottom + 6;
    this.#card.style.top = `${below + card.height > innerHeight ? Math.max(8, chip.top - card.height - 6) : below}px`;
  }

  #hideCard() {
    this.#card.hidden = true;
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace } = store;
    if (!trace) return;
    const editing = document.activeElement === this.#field && this.#typed;
    if (!editing && this.#field.value !== this.#shown()) {
      this.#field.value = this.#shown();
      this.#fit();
    }
    this.#field.setAttribute("aria-invalid", String(store.status === "error"));
    if (changed.has("trace") || changed.has("theme")) this.#build(trace);
    this.#mark();
  }

  /** @param {Trace} trace */
  #build(trace) {
    const hadFocus = this.#tokens.contains(document.activeElement);
    this.#hideCard();
    this.#at = -1;
    this.#chips = trace.tokens.map((token, place) => {
      const surprise = trace.surprise[place];
      const { fill, ink } = surprise ? shade("surprise", surpriseShare(surprise.p)) : { fill: "transparent", ink: "inherit" };
      const startsWord = trace.words[token.word]?.first === place;
      return el(
        "button",
        { type: "button", class: startsWord ? "token" : "token joined", tabindex: -1, "aria-describedby": "token-card" },
        el("span", { class: "piece", style: { background: fill, color: ink } }, visible(token.text)),
        el("span", { class: "id" }, token.id),
      );
    });
    put(this.#tokens, this.#chips);
    put(this.#summary, summaryOf(trace));
    if (hadFocus) this.#chips[store.cursor.token]?.focus();
  }

  #mark() {
    const { token } = store.cursor;
    if (token === this.#at) return;
    const before = this.#chips[this.#at];
    const hadFocus = before !== undefined && before === document.activeElement;
    before?.removeAttribute("aria-current");
    before?.setAttribute("tabindex", "-1");
    this.#at = token;
    const chip = this.#chips[token];
    if (!chip) return;
    chip.setAttribute("aria-current", "true");
    chip.tabIndex = 0;
    if (hadFocus) chip.focus();
    const top = chip.offsetTop - this.#tokens.offsetTop;
    const box = this.#tokens;
    if (top < box.scrollTop || top + chip.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top - 8;
  }

  /** The strip as a picture: the tokens in lines, with their ids. */
  toSVG() {
    const { trace } = store;
    if (!trace) return svgText(10, 10, []);
    const width = 1000;
    /** @type {SVGElement[]} */
    const drawn = [];
    let [x, y] = [10, 10];
    trace.tokens.forEach((token, place) => {
      const surprise = trace.surprise[place];
      const { fill, ink } = surprise ? shade("surprise", surpriseShare(surprise.p)) : shade("surprise", 0);
      const text = visible(token.text);
      const wide = Math.max(30, [...text].length * 8 + 12);
      if (x + wide > width - 10) [x, y] = [10, y + 48];
      drawn.push(
        svg("rect", { x, y, width: wide, height: 24, rx: 4, fill }),
        svg("text", { x: x + wide / 2, y: y + 16, "text-anchor": "middle", fill: ink, "font-size": 13 }, text),
        svg("text", { x: x + wide / 2, y: y + 36, "text-anchor": "middle", fill: colour("soft"), "font-size": 10 }, token.id),
      );
      x += wide + 3;
    });
    return svgText(width, y + 48, drawn);
  }
}

/** @param {Trace} trace */
function summaryOf(trace) {
  const known = trace.surprise.filter((surprise) => surprise !== null);
  const bits = known.reduce((sum, surprise) => sum - Math.log2(Math.max(surprise.p, 1e-30)), 0);
  const count = `${trace.tokens.length} ${trace.tokens.length === 1 ? "token" : "tokens"}`;
  return known.length ? `${count}, ${(bits / known.length).toFixed(2)} bits each` : count;
}

/**
 * What there is to know about a token: its id and bytes, how surprising it was, and the merges of its word.
 * @param {Trace} trace @param {number} place
 */
function cardOf(trace, place) {
  const token = trace.tokens[place];
  const surprise = trace.surprise[place];
  const word = trace.words[token.word];
  const bytes = token.bytes.map((byte) => byte.toString(16).padStart(2, "0").toUpperCase()).join(" ");
  /** @type {[string, string][]} */
  const facts = [
    ["position", `${place}`],
    ["id", String(token.id)],
    ["bytes", bytes],
  ];
  if (surprise) {
    const bits = -Math.log2(Math.max(surprise.p, 1e-30));
    facts.push(["probability", `${percent(surprise.p)} (${format(bits, 1)} bits)`]);
    facts.push(["rank", `${surprise.rank.toLocaleString("en")} of ${(store.config?.vocab_size ?? 0).toLocaleString("en")}`]);
    facts.push(["entropy before it", `${format(surprise.entropy / Math.LN2, 2)} bits`]);
  }
  return [
    el("div", { class: "card-token" }, visible(token.text)),
    el("dl", {}, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    surprise ? null : el("p", { class: "quiet small" }, "The first token: nothing came before it, so nothing predicted it."),
    mergesOf(word),
  ];
}

/** @param {Word | undefined} word */
function mergesOf(word) {
  const states = word?.merges ?? [];
  if (!word || states.length === 0) return null;
  const shown = states.length > 12 ? [...states.slice(0, 6), null, ...states.slice(-5)] : states;
  const title = states.length > 1 ? `How “${visible(word.text)}” was put together: ${states.length - 1} merges` : `“${visible(word.text)}” is in the vocabulary as it is`;
  const lines = shown.map((pieces) => (pieces ? el("li", {}, pieces.map((piece) => el("span", { class: "bit" }, visible(piece)))) : el("li", { class: "quiet" }, "…")));
  return el("div", { class: "merges" }, el("h3", {}, title), el("ol", {}, lines));
}

customElements.define("glass-strip", GlassStrip);
