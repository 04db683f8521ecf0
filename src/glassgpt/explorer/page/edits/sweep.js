// The sweep: this text runs once for each block and token, with the residual stream there patched from the second text.

import { diverging, el, percent, put, visible } from "../draw/draw.js";
import { SECOND, hasEdit, secondNow, toggleEdit } from "./edits.js";
import { api, isAbort, messageOf } from "../state/api.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const MOST = 40; // tokens: of longer texts the last ones

/** Patch the stream after a block, at one token. @param {number} layer @param {number} position @returns {Edit} */
const patchStream = (layer, position) => ({ kind: "patch", step: `h.${layer}.resid_post`, source: SECOND, positions: [position] });

/** The probability of a token. @param {Float32Array} logits @param {number} id */
function probabilityOf(logits, id) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  return Math.exp(logits[id] - most) / logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0);
}

/** @typedef {{of: string, first: number, last: number, target: number, word: string, before: number, after: Map<string, number>}} Found */

export class Sweep {
  /** @type {Found | null} */ #found = null;
  #running = false;
  #problem = "";
  #button = el("button", { disabled: api.offline, onclick: () => (this.#running ? this.#stop() : void this.#start()) });
  #count = el("progress", { hidden: true, max: 1 });
  #grid = el("div", { class: "sweep", role: "group", "aria-label": t("sweep.grid") });
  #words = el("p", { class: "small", "aria-live": "polite" });
  element = el("section", { hidden: true }, el("div", { class: "acts" }, this.#button, this.#count), el("p", { class: "says" }, say("sweep.says")), this.#words, this.#grid);

  /** What a sweep belongs to: both texts, the token after which is measured, and the word that is. */
  #subject() {
    return JSON.stringify([store.trace?.id, secondNow()?.id, store.cursor.token, store.get().target]);
  }

  #stop() {
    this.#running = false;
    this.render();
  }

  async #start() {
    const [trace, second] = [store.trace, secondNow()];
    const layers = store.config?.n_layer ?? 0;
    if (!trace || !second || store.isOld) return;
    const of = this.#subject();
    const { token } = store.cursor;
    const last = Math.min(token, second.tokens.length - 1);
    const first = Math.max(0, last + 1 - MOST);
    const { ids, texts } = second.lens;
    const target = store.get().target ?? ids[ids.length - 1][second.tokens.length - 1];
    const word = api.peek(`/vocabulary?model=${trace.model}`)?.texts[target] ?? texts[texts.length - 1][second.tokens.length - 1];
    [this.#running, this.#problem] = [true, ""];
    this.#found = null;
    const places = Array.from({ length: layers }, (_, up) => layers - 1 - up).flatMap((layer) =>
      Array.from({ length: last + 1 - first }, (_, along) => ({ layer, position: first + along })));
    try {
      for (const { layer, position } of places) {
        const edits = [{ ...patchStream(layer, position), source: second.id }];
        const whole = this.#found === null; // the first response also has the logits without edits
        const answer = await api.post("/intervene", { id: trace.id, edits, position: token, ...(whole ? {} : { only: "next" }) }, { slot: "sweep" });
        if (!this.#running || this.#subject() !== of) break;
        this.#found ??= { of, first, last, target, word, before: probabilityOf(answer.logits_before.data, target), after: new Map() };
        this.#found.after.set(`${layer} ${position}`, probabilityOf(answer.logits.data, target));
        this.#count.value = this.#found.after.size / places.length;
        this.#draw();
      }
    } catch (error) {
      if (!isAbort(error)) this.#problem = messageOf(error);
    }
    this.#running = false;
    this.render();
  }

  render() {
    this.element.hidden = store.secondTrace === null;
    if (this.#running && this.#found && this.#found.of !== this.#subject()) this.#running = false; // it ends with the response under way
    put(this.#button, t(this.#running ? "sweep.stop" : "sweep.start"));
    this.#button.disabled = api.offline || (!this.#running && secondNow() === null);
    this.#count.hidden = !this.#running;
    this.#draw();
  }

  #draw() {
    const found = this.#found;
    const { trace } = store;
    this.#grid.hidden = !found || !trace;
    put(this.#words, this.#problem);
    if (!found || !trace) return;
    const now = found.of === this.#subject();
    this.#grid.classList.toggle("was", !now);
    if (!this.#problem) put(this.#words, say("sweep.measure", { word: visible(found.word), before: percent(found.before) }));
    this.#words.classList.toggle("was", !now);
    const columns = Array.from({ length: found.last + 1 - found.first }, (_, along) => found.first + along);
    const layers = Array.from({ length: store.config?.n_layer ?? 0 }, (_, up) => (store.config?.n_layer ?? 0) - 1 - up);
    const limit = Math.max(0.01, ...[...found.after.values()].map((p) => Math.abs(p - found.before)));
    this.#grid.style.setProperty("--tokens", String(columns.length));
    const cell = (/** @type {number} */ layer, /** @type {number} */ position) => {
      const p = found.after.get(`${layer} ${position}`);
      if (p === undefined) return el("span", {});
      const edit = patchStream(layer, position);
      const says = t("sweep.cell", { layer, word: visible(trace.tokens[position]?.text ?? ""), before: percent(found.before), after: percent(p) });
      return el("button", { class: "cell", title: says, "aria-label": says, "aria-pressed": String(hasEdit(edit)), disabled: !now,
        style: { background: diverging(p - found.before, limit).fill }, onclick: () => toggleEdit(edit) });
    };
    put(this.#grid,
      layers.flatMap((layer) => [el("span", { class: "quiet small" }, layer), ...columns.map((position) => cell(layer, position))]),
      el("span", {}), columns.map((position) => el("span", { class: "quiet small word" }, visible(trace.tokens[position]?.text ?? ""))));
  }
}
