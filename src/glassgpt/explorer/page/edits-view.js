// <glass-edits>: the edits that are made, and what they do to the next word; hidden while there are none.

import { el, exchange, format, percent, visible } from "./draw.js";
import { describe, toggleEdit } from "./edits.js";
import { bind } from "./keys.js";
import { store } from "./store.js";
import { GlassView } from "./view.js";

const MOVED = 6;

class GlassEdits extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "edits", "intervention"];

  build() {
    bind(["Delete"], "undo all edits", () => store.set({ edits: [] }));
  }

  render() {
    const { edits } = store.get();
    this.hidden = edits.length === 0;
    if (this.hidden) return;
    const chips = edits.map((edit) => el("button", { type: "button", class: "edit", "aria-label": `take back: ${describe(edit)}`, onclick: () => toggleEdit(edit) }, `${describe(edit)} ×`));
    if (edits.length > 1) chips.push(el("button", { type: "button", class: "edit", onclick: () => store.set({ edits: [] }) }, "undo all"));
    exchange(this, el("div", {}, chips), el("div", { "aria-live": "polite" }, effect()));
  }
}

/** What the edits do, in numbers. */
function effect() {
  const found = store.intervention;
  if (!found || !store.trace) return el("p", { class: "small" }, store.problem || "computing…");
  const { token } = store.cursor;
  const moved = found.moved.slice(0, MOVED).map(({ text, before, after }) =>
    el("li", { class: after > before ? "up" : "down" }, el("b", {}, visible(text)), ` ${percent(before)} → ${percent(after)}`),
  );
  return [
    el("p", { class: "small" }, "After ", el("b", {}, visible(store.trace.tokens[token].text)), ", the next word moves by ", el("b", {}, `${format(found.kl, 4)} nats`), " (KL divergence). It moved most for"),
    el("ul", {}, moved),
  ];
}

customElements.define("glass-edits", GlassEdits);
