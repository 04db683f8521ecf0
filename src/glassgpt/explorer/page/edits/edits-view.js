// <glass-edits>: the active edits and their effect on the next token; hidden while there are none.

import { el, exchange, format, percent, put, visible } from "../draw/draw.js";
import { describe, effectNow, toggleEdit } from "./edits.js";
import { bind } from "../keys.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { GlassView } from "../view.js";
import { t } from "../languages/language.js";

const SHOWN = 6;

class GlassEdits extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "edits", "intervention", "secondTrace"];

  /** @type {() => void} */ #unbind = () => {};
  #chips = el("div");
  #effect = el("div", { "aria-live": "polite" });
  #which = el("p", { class: "small quiet" }, t("edits.says"));

  build() {
    this.append(this.#chips, this.#effect, this.#which);
  }

  connectedCallback() {
    super.connectedCallback();
    this.#unbind = bind(["Delete"], t("keys.edits"), () => store.set({ edits: [] }));
  }

  disconnectedCallback() {
    this.#unbind();
    super.disconnectedCallback();
  }

  render() {
    const { edits } = store.get();
    this.hidden = edits.length === 0;
    if (this.hidden) return;
    const chips = edits.map((edit) => el("button", { class: "edit", "aria-label": t("edits.remove", { edit: describe(edit) }), onclick: () => toggleEdit(edit) },
      `${describe(edit)} ×`));
    if (edits.length > 1) chips.push(el("button", { class: "edit", onclick: () => store.set({ edits: [] }) }, t("edits.remove.all")));
    // Until the new effect is there, the old one stays, and is seen to be old: nothing jumps.
    const was = store.intervention !== null && !effectNow();
    this.#effect.ariaBusy = String(was);
    if (!was) put(this.#effect, effect());
    this.#effect.classList.toggle("was", was);
    exchange(this.#chips, chips);
  }
}

/** The effect of the edits, in numbers. */
function effect() {
  const found = store.intervention;
  if (!found || !store.trace) return el("p", { class: "small" }, store.problem || t("computing"));
  const { token } = store.cursor;
  const changes = found.changes.slice(0, SHOWN).map(({ text, before, after }) =>
    el("li", { class: after > before ? "up" : "down" }, el("b", {}, visible(text)), ` ${percent(before)} → ${percent(after)}`),
  );
  return [
    el("p", { class: "small" }, say("edits.effect", { word: visible(store.trace.tokens[token].text), kl: format(found.kl, 4) })),
    el("ul", {}, changes),
  ];
}

customElements.define("glass-edits", GlassEdits);
