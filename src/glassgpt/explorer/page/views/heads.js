// View 4: the attention pattern of every head. Click to enlarge, shift-click to ablate, drop one of the second text to patch.

import { api } from "../api.js";
import { el, exchange, put } from "../draw.js";
import { ablateHead, editButton, hasEdit, patchHead, toggleEdit } from "../edits.js";
import { THRESHOLD, KINDS, mainKind, attentionByKind } from "../head-kinds.js";
import { bind } from "../keys.js";
import { GlassPattern, thumbnail } from "../pattern.js";
import { store } from "../store.js";
import { GlassView } from "../view.js";

/** @typedef {{layer: number, head: number}} Place */

const TYPED_MS = 300;
const DRAGGED = "text/x-glass-head";

class GlassHeads extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "pattern", "least", "filter", "edits", "secondTrace"];
  #grid = el("div", { class: "all", role: "group", "aria-label": "All heads, one row per block, the last block on top" });
  #from = el("div", { class: "all from", role: "group", "aria-label": "The heads of the second text", hidden: true });
  #second = el("input", { type: "text", id: "second", placeholder: "another text", autocomplete: "off", spellcheck: "false" });
  #large = new GlassPattern();
  #title = el("h3");
  #edits = el("div", { class: "edits" });
  #how = el("div", { class: "choice", role: "group", "aria-label": "Draw as" });
  #filter = el("select", { id: "filter", onchange: () => store.set({ filter: this.#filter.value }) }, el("option", { value: "" }, "all heads"), KINDS.map(({ name, title }) => el("option", { value: name }, title)));
  #least = el("input", { type: "range", id: "least", min: 0, max: 0.5, step: 0.01, oninput: () => store.set({ least: Number(this.#least.value) }) });
  #leastSays = el("output", { for: "least" });
  #leastLabel = el("label", { for: "least" }, "Hide below", this.#least, this.#leastSays);
  /** @type {Map<string, Record<string, number>>} */ #kinds = new Map();
  /** @type {(() => void)[]} */ #keys = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #typing;

  connectedCallback() {
    super.connectedCallback();
    this.#keys = [
      bind(["o"], "ablate the head at the cursor, or restore it (in Heads)", () => toggleEdit(ablateHead(cursorHead()))),
      bind(["p"], "patch the head at the cursor from the second text (in Heads)", () => this.#patch(cursorHead())),
    ];
  }

  disconnectedCallback() {
    this.#keys.forEach((undo) => undo());
    super.disconnectedCallback();
  }

  build() {
    this.#second.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => store.set({ second: this.#second.value }), TYPED_MS);
    });
    for (const grid of [this.#grid, this.#from]) {
      grid.addEventListener("click", (event) => {
        const place = placeOf(event);
        if (place) event.shiftKey ? toggleEdit(ablateHead(place)) : store.set(place);
      });
      grid.addEventListener("keydown", (event) => this.#step(event));
    }
    this.#from.addEventListener("dragstart", (event) => event.dataTransfer?.setData(DRAGGED, JSON.stringify(placeOf(event))));
    this.#grid.addEventListener("dragover", (event) => event.dataTransfer?.types.includes(DRAGGED) && event.preventDefault());
    this.#grid.addEventListener("drop", (event) => {
      const dragged = event.dataTransfer?.getData(DRAGGED);
      if (!dragged) return;
      event.preventDefault();
      this.#patch(JSON.parse(dragged));
    });
    put(
      this,
      el("p", { class: "says" }, "Strong colours are high attention weights. Click a head to enlarge it, shift-click to ablate it."),
      el("div", { class: "controls" }, this.#how, el("label", { for: "filter" }, "Show", this.#filter), this.#leastLabel),
      this.problem,
      el(
        "div",
        { class: "side" },
        this.#grid,
        el("section", { class: "large" }, el("div", { class: "headed" }, this.#title, this.#edits), this.#large),
        el(
          "section",
          {},
          el("label", { for: "second" }, el("b", {}, "Second text"), this.#second),
          el("p", { class: "says" }, "Drag one of its heads onto the grid above (or press p) to patch it: at each position the head’s output is taken from the second text."),
          this.#from,
        ),
      ),
    );
  }

  /** @param {Place} place */
  #patch(place) {
    if (store.secondTrace) toggleEdit(patchHead(place));
    else this.#second.focus();
  }

  /** In the grid, left and right go from head to head. @param {KeyboardEvent} event */
  #step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const { layer, head } = cursorHead();
    store.set({ layer, head: Math.max(0, Math.min((store.config?.n_head ?? 1) - 1, head + by)) });
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace } = store;
    if (!trace) return;
    const { pattern, filter, least, second } = store.get();
    const hows = /** @type {const} */ (["matrix", "lines"]);
    exchange(this.#how, hows.map((how) => el("button", { type: "button", "aria-pressed": String(how === pattern), onclick: () => store.set({ pattern: how }) }, how)));
    this.#filter.value = filter;
    this.#least.value = String(least);
    put(this.#leastSays, `${Math.round(100 * least)}%`);
    this.#leastLabel.hidden = pattern !== "lines";
    if (document.activeElement !== this.#second) this.#second.value = second;
    const redraw = changed.has("trace") || changed.has("theme") || changed.has("pattern");
    if (redraw) void this.#fill(this.#grid, trace, true);
    this.#from.hidden = !store.secondTrace;
    if (store.secondTrace && (redraw || changed.has("secondTrace"))) void this.#fill(this.#from, store.secondTrace, false);
    this.#mark();
    this.#showLarge();
  }

  /**
   * Draw the thumbnails of a grid, block by block, starting at the cursor's: one request at a time, so that others get through.
   * @param {HTMLElement} grid @param {Trace} trace @param {boolean} main
   */
  async #fill(grid, trace, main) {
    const { n_layer, n_head } = /** @type {ModelConfig} */ (store.config);
    const layers = Array.from({ length: n_layer }, (_, up) => n_layer - 1 - up);
    if (grid.dataset.shape !== `${n_layer} ${n_head}`) {
      grid.dataset.shape = `${n_layer} ${n_head}`;
      this.toggleAttribute("data-few", n_head <= 6);
      grid.style.setProperty("--heads", String(n_head));
      grid.style.setProperty("--layers", String(n_layer));
      const heads = Array.from({ length: n_head }, (_, head) => head);
      put(grid, layers.flatMap((layer) => [el("span", { class: "quiet small" }, layer), ...heads.map((head) => thumbOf(layer, head, main))]));
    }
    const { layer: here } = cursorHead();
    layers.sort((a, b) => Math.abs(a - here) - Math.abs(b - here));
    for (const layer of layers) {
      await this.load(api.get(`/trace/${trace.id}/patterns?layer=${layer}`), ({ "attn.weights": weights }) => {
        if (trace === (main ? store.trace : store.secondTrace) && this.isConnected) this.#draw(grid, trace, layer, weights.data, main);
      });
      if (trace !== (main ? store.trace : store.secondTrace) || !this.isConnected) return;
    }
  }

  /** @param {HTMLElement} grid @param {Trace} trace @param {number} layer @param {Uint8Array} weights @param {boolean} main */
  #draw(grid, trace, layer, weights, main) {
    const area = trace.tokens.length ** 2;
    const ids = trace.tokens.map(({ id }) => id);
    const thumbs = /** @type {NodeListOf<HTMLElement>} */ (grid.querySelectorAll(`[data-layer="${layer}"]`));
    thumbs.forEach((thumb, head) => {
      const own = weights.subarray(head * area, (head + 1) * area);
      const shares = attentionByKind(own, ids);
      if (main) this.#kinds.set(`${layer}.${head}`, shares);
      const kind = mainKind(shares);
      thumb.setAttribute("aria-label", `head ${layer}.${head}${kind ? `, attends to ${kind.says}` : ""}`);
      thumbnail(/** @type {HTMLCanvasElement} */ (thumb.firstElementChild), { weights: own, tokens: trace.tokens, token: 0 }, store.get().pattern, thumb.clientWidth - 2);
    });
    if (!main) return;
    this.#mark();
    if (layer === cursorHead().layer) this.#showLarge();
  }

  /** Mark the cursor, the edits, and what passes the filter. */
  #mark() {
    const here = cursorHead();
    const { filter } = store.get();
    const hadFocus = this.#grid.contains(document.activeElement);
    for (const thumb of /** @type {NodeListOf<HTMLElement>} */ (this.querySelectorAll(".thumb"))) {
      const place = { layer: Number(thumb.dataset.layer), head: Number(thumb.dataset.head) };
      const isHere = place.layer === here.layer && place.head === here.head;
      const main = this.#grid.contains(thumb);
      if (isHere) thumb.setAttribute("aria-current", "true");
      else thumb.removeAttribute("aria-current");
      thumb.tabIndex = isHere ? 0 : -1;
      if (isHere && hadFocus && main) thumb.focus();
      thumb.classList.toggle("faint", filter !== "" && (this.#kinds.get(`${place.layer}.${place.head}`)?.[filter] ?? 0) < THRESHOLD);
      const is = !main ? "" : hasEdit(ablateHead(place)) ? "out" : hasEdit(patchHead(place)) ? "2nd" : "";
      if (is) thumb.dataset.is = is;
      else delete thumb.dataset.is;
    }
  }

  /** The head of the cursor, large. */
  #showLarge() {
    const { trace } = store;
    if (!trace) return;
    const place = cursorHead();
    const name = `${place.layer}.${place.head}`;
    const shares = this.#kinds.get(name);
    const kind = shares && mainKind(shares);
    put(this.#title, `Head ${name}`, kind ? el("span", { class: "quiet" }, ` mostly attends to ${kind.says}`) : null);
    exchange(this.#edits, editButton(ablateHead(place), "ablate"), editButton({ ...ablateHead(place), how: "mean" }, "mean-ablate"), editButton(patchHead(place), "patch", undefined, () => this.#patch(place)));
    const found = api.peek(`/trace/${trace.id}/patterns?layer=${place.layer}`);
    if (!found) return;
    const area = trace.tokens.length ** 2;
    const { pattern, least } = store.get();
    this.#large.show({ weights: found["attn.weights"].data.subarray(place.head * area, (place.head + 1) * area), tokens: trace.tokens, token: store.cursor.token }, pattern, least, `pattern of head ${name}`);
  }
}

/** The head of the cursor; at the embedding, that of block 0. @returns {Place} */
function cursorHead() {
  const { layer, head } = store.cursor;
  return { layer: Math.max(0, layer), head };
}

/** @param {number} layer @param {number} head @param {boolean} main */
function thumbOf(layer, head, main) {
  return el("button", { type: "button", class: "thumb", "data-layer": layer, "data-head": head, draggable: main ? null : "true", tabindex: -1, title: `Head ${layer}.${head}` }, el("canvas", { "aria-hidden": "true" }));
}

/** @param {Event} event @returns {Place | null} the head an event happened on */
function placeOf({ target }) {
  const thumb = target instanceof Element ? target.closest(".thumb") : null;
  return thumb instanceof HTMLElement ? { layer: Number(thumb.dataset.layer), head: Number(thumb.dataset.head) } : null;
}

customElements.define("glass-heads", GlassHeads);
