// View 4: every head's pattern. Click one to look closer, shift-click to take it out, drop one of the second text to patch it.

import { api, isAbort } from "../api.js";
import { el, put, svg, svgText } from "../draw.js";
import { cutHead, hasEdit, patchHead, toggleEdit } from "../edits.js";
import { ENOUGH, KINDS, mainKind, sharesOf } from "../head-kinds.js";
import { bind } from "../keys.js";
import { GlassPattern, thumbnail } from "../pattern.js";
import { store } from "../store.js";
import { GlassView } from "../view.js";

const TYPED_MS = 300;
const DRAGGED = "text/x-glass-head";

class GlassHeads extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "pattern", "least", "filter", "edits", "secondTrace"];
  #controls = el("div", { class: "controls" });
  #grid = el("div", { class: "head-grid", role: "group", "aria-label": "All heads: a row for each block, the last one on top" });
  #second = el("div", { class: "head-grid second", role: "group", "aria-label": "The heads of the second text", hidden: true });
  #secondField = el("input", { type: "text", id: "second", placeholder: "another text, to patch heads from", autocomplete: "off", spellcheck: "false" });
  #large = new GlassPattern();
  #title = el("h3", {});
  #actions = el("div", { class: "cuts" });
  #error = el("p", { class: "problem", role: "alert" });
  /** @type {Map<string, Record<string, number>>} */ #shares = new Map();
  /** @type {(() => void)[]} */ #keys = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #typing;
  #how = this.#chooser();
  #least = el("input", { type: "range", id: "least", min: 0, max: 0.5, step: 0.01 });
  #filter = el("select", { id: "filter" }, el("option", { value: "" }, "all heads"), KINDS.map(({ name, title }) => el("option", { value: name }, title)));

  connectedCallback() {
    if (!this.firstChild) this.#build();
    super.connectedCallback();
    const { head } = { head: () => store.cursor };
    this.#keys = [
      bind(["x"], "take out the head of the cursor (or put it back)", () => head().layer >= 0 && toggleEdit(cutHead(head().layer, head().head))),
      bind(["p"], "patch the head of the cursor from the second text", () => head().layer >= 0 && this.#patch(head().layer, head().head)),
    ];
  }

  disconnectedCallback() {
    this.#keys.forEach((undo) => undo());
    super.disconnectedCallback();
  }

  #chooser() {
    const buttons = /** @type {const} */ (["matrix", "lines"]).map((pattern) => el("button", { type: "button", "data-how": pattern, onclick: () => store.set({ pattern }) }, pattern));
    return el("div", { class: "choice", role: "group", "aria-label": "Draw as" }, buttons);
  }

  #build() {
    this.#filter.addEventListener("change", () => store.set({ filter: this.#filter.value }));
    this.#least.addEventListener("input", () => store.set({ least: Number(this.#least.value) }));
    this.#secondField.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => store.set({ second: this.#secondField.value }), TYPED_MS);
    });
    for (const grid of [this.#grid, this.#second]) {
      grid.addEventListener("click", (event) => this.#click(/** @type {MouseEvent} */ (event)));
      grid.addEventListener("keydown", (event) => this.#step(/** @type {KeyboardEvent} */ (event)));
    }
    this.#second.addEventListener("dragstart", (event) => {
      const place = placeOf(event);
      if (place) /** @type {DragEvent} */ (event).dataTransfer?.setData(DRAGGED, JSON.stringify(place));
    });
    this.#grid.addEventListener("dragover", (event) => {
      if (/** @type {DragEvent} */ (event).dataTransfer?.types.includes(DRAGGED)) event.preventDefault();
    });
    this.#grid.addEventListener("drop", (event) => {
      const dragged = /** @type {DragEvent} */ (event).dataTransfer?.getData(DRAGGED);
      if (!dragged) return;
      event.preventDefault();
      const { layer, head } = JSON.parse(dragged);
      this.#patch(layer, head);
    });
    put(
      this.#controls,
      this.#how,
      el("label", { for: "filter" }, "Show ", this.#filter),
      el("label", { for: "least", class: "only-lines" }, "Hide below ", this.#least, el("output", { id: "least-says", for: "least" })),
    );
    put(
      this,
      el("p", { class: "says" }, "A row for each token, dark where it looks. Click: look closer. Shift-click: take the head out."),
      this.#controls,
      this.#error,
      el("div", { class: "side" }, this.#grid, el("section", { class: "closer" }, el("div", { class: "block-head" }, this.#title, this.#actions), this.#large)),
      el("section", { class: "closer" }, el("label", { for: "second", class: "second-label" }, el("b", {}, "Second text"), this.#secondField), el("p", { class: "says" }, "Drag one of its heads onto the grid above (or press p): that head then says what it said in the second text, and the rest of the model goes on from there."), this.#second),
    );
  }

  /** @param {number} layer @param {number} head */
  #patch(layer, head) {
    if (store.secondTrace) toggleEdit(patchHead(layer, head));
    else this.#secondField.focus();
  }

  /** @param {MouseEvent} event */
  #click(event) {
    const place = placeOf(event);
    if (!place) return;
    if (event.shiftKey) toggleEdit(cutHead(place.layer, place.head));
    else store.set(place);
  }

  /** In the grid, left and right go from head to head. @param {KeyboardEvent} event */
  #step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const heads = store.config?.n_head ?? 1;
    if (by === undefined) return;
    event.preventDefault();
    store.set({ head: Math.max(0, Math.min(heads - 1, store.cursor.head + by)), layer: Math.max(0, store.cursor.layer) });
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const state = store.get();
    for (const button of this.#how.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.how === state.pattern));
    this.#filter.value = state.filter;
    this.#least.value = String(state.least);
    put(/** @type {Element} */ (this.querySelector("#least-says")), `${Math.round(100 * state.least)}%`);
    /** @type {HTMLElement} */ (this.querySelector(".only-lines")).hidden = state.pattern !== "lines";
    if (document.activeElement !== this.#secondField) this.#secondField.value = state.second;
    const redraw = ["trace", "theme", "pattern"].some((topic) => changed.has(/** @type {any} */ (topic)));
    if (redraw) this.#fill(this.#grid, trace, true);
    if (redraw || changed.has("secondTrace")) {
      this.#second.hidden = !store.secondTrace;
      if (store.secondTrace) this.#fill(this.#second, store.secondTrace, false);
    }
    this.#mark();
    this.#look();
  }

  /** Make the grid's pictures and draw each block's when its weights have come. @param {HTMLElement} grid @param {Trace} trace @param {boolean} main */
  #fill(grid, trace, main) {
    const { n_layer, n_head } = /** @type {ModelConfig} */ (store.config);
    grid.style.setProperty("--heads", String(n_head));
    grid.style.setProperty("--layers", String(n_layer));
    if (grid.dataset.shape !== `${n_layer} ${n_head}`) {
      const rows = Array.from({ length: n_layer }, (_, up) => n_layer - 1 - up);
      put(grid, rows.flatMap((layer) => [el("span", { class: "quiet small" }, layer), ...Array.from({ length: n_head }, (_, head) => this.#thumb(layer, head, main))]));
      grid.dataset.shape = `${n_layer} ${n_head}`;
    }
    for (let layer = n_layer - 1; layer >= 0; layer--) void this.#drawLayer(grid, trace, layer, main);
  }

  /** @param {number} layer @param {number} head @param {boolean} main */
  #thumb(layer, head, main) {
    return el("button", { type: "button", class: "thumb", "data-layer": layer, "data-head": head, draggable: main ? null : "true", tabindex: -1, title: `Head ${layer}.${head}` }, el("canvas", { "aria-hidden": "true" }));
  }

  /** @param {HTMLElement} grid @param {Trace} trace @param {number} layer @param {boolean} main */
  async #drawLayer(grid, trace, layer, main) {
    try {
      const { weights } = await api.get(`/trace/${trace.id}/patterns?layer=${layer}`);
      if (trace !== (main ? store.trace : store.secondTrace) || !this.isConnected) return;
      const count = trace.tokens.length;
      const ids = trace.tokens.map(({ id }) => id);
      const thumbs = /** @type {NodeListOf<HTMLElement>} */ (grid.querySelectorAll(`[data-layer="${layer}"]`));
      thumbs.forEach((thumb, head) => {
        const own = weights.data.subarray(head * count * count, (head + 1) * count * count);
        const shares = sharesOf(own, ids);
        if (main) this.#shares.set(`${layer}.${head}`, shares);
        const kind = mainKind(shares);
        thumb.setAttribute("aria-label", `head ${layer}.${head}${kind ? `, looks at ${kind.says}` : ""}`);
        thumbnail(/** @type {HTMLCanvasElement} */ (thumb.firstElementChild), { weights: own, tokens: trace.tokens, token: 0 }, store.get().pattern, thumb.clientWidth - 4);
      });
      put(this.#error);
      if (main) this.#mark();
      if (main && layer === Math.max(0, store.cursor.layer)) this.#look();
    } catch (error) {
      if (!isAbort(error)) put(this.#error, error instanceof Error ? error.message : String(error));
    }
  }

  /** Mark the cursor, what is edited, and what the filter leaves. */
  #mark() {
    const { layer, head } = store.cursor;
    const { filter } = store.get();
    const hadFocus = this.#grid.contains(document.activeElement);
    for (const thumb of /** @type {NodeListOf<HTMLElement>} */ (this.querySelectorAll(".thumb"))) {
      const place = { layer: Number(thumb.dataset.layer), head: Number(thumb.dataset.head) };
      const here = place.layer === Math.max(0, layer) && place.head === head;
      const shares = this.#shares.get(`${place.layer}.${place.head}`);
      thumb.toggleAttribute("aria-current", here);
      if (here) thumb.setAttribute("aria-current", "true");
      thumb.tabIndex = here ? 0 : -1;
      if (here && hadFocus && this.#grid.contains(thumb)) thumb.focus();
      thumb.classList.toggle("faint", filter !== "" && (shares?.[filter] ?? 0) < ENOUGH);
      if (!this.#grid.contains(thumb)) continue;
      thumb.classList.toggle("out", hasEdit(cutHead(place.layer, place.head)));
      thumb.classList.toggle("patched", hasEdit(patchHead(place.layer, place.head)));
    }
  }

  /** The head of the cursor, large. */
  #look() {
    const { trace } = store;
    if (!trace) return;
    const { token, head, layer } = { ...store.cursor, layer: Math.max(0, store.cursor.layer) };
    const found = api.peek(`/trace/${trace.id}/patterns?layer=${layer}`);
    const shares = this.#shares.get(`${layer}.${head}`);
    const kind = shares ? mainKind(shares) : null;
    put(this.#title, `Head ${layer}.${head}`, kind ? el("span", { class: "quiet" }, ` mostly looks at ${kind.says}`) : "");
    this.#showActions(layer, head);
    if (!found) return;
    const count = trace.tokens.length;
    const weights = found.weights.data.subarray(head * count * count, (head + 1) * count * count);
    const { pattern, least } = store.get();
    this.#large.show({ weights, tokens: trace.tokens, token }, pattern, least, `pattern of head ${layer}.${head}`);
  }

  /** @param {number} layer @param {number} head */
  #showActions(layer, head) {
    const edits = [
      { edit: cutHead(layer, head), off: "take out", on: "is out" },
      { edit: { ...cutHead(layer, head), how: /** @type {const} */ ("mean") }, off: "set to mean", on: "is its mean" },
      { edit: patchHead(layer, head), off: "patch", on: "is patched" },
    ];
    const focused = [...this.#actions.children].indexOf(/** @type {Element} */ (document.activeElement));
    const buttons = edits.map(({ edit, off, on }) => {
      const made = hasEdit(edit);
      const run = edit.kind === "patch" ? () => this.#patch(layer, head) : () => toggleEdit(edit);
      return el("button", { type: "button", "aria-pressed": String(made), onclick: run }, made ? on : off);
    });
    put(this.#actions, buttons);
    if (focused >= 0) buttons[focused]?.focus();
  }

  /** All patterns as one picture. */
  toSVG() {
    const ink = getComputedStyle(this).color;
    const size = 60;
    const { n_head = 1, n_layer = 1 } = store.config ?? {};
    const drawn = [...this.#grid.querySelectorAll("canvas")].flatMap((canvas) => {
      const { layer, head } = /** @type {HTMLElement} */ (canvas.parentElement).dataset;
      const [x, y] = [30 + Number(head) * (size + 6), 24 + (n_layer - 1 - Number(layer)) * (size + 6)];
      return [svg("image", { x, y, width: size, height: size, href: canvas.toDataURL() }), svg("text", { x: 8, y: y + size / 2, fill: ink }, layer), svg("text", { x: x + size / 2, y: 16, fill: ink }, head)];
    });
    return svgText(40 + n_head * (size + 6), 34 + n_layer * (size + 6), drawn);
  }
}

/** @param {Event} event @returns {{layer: number, head: number} | null} the head an event happened on */
function placeOf(event) {
  const thumb = event.target instanceof Element ? event.target.closest(".thumb") : null;
  return thumb instanceof HTMLElement ? { layer: Number(thumb.dataset.layer), head: Number(thumb.dataset.head) } : null;
}

customElements.define("glass-heads", GlassHeads);
