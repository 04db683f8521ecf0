// The attention pattern of every head. Point to preview, click to keep, Shift-click to ablate, Ctrl-click to overlay, drop to patch.

import { api } from "../state/api.js";
import { el, exchange, percent, put, ramp } from "../draw/draw.js";
import { ablateHead, editButton, hasEdit, patchHead, secondNow, toggleEdit, typeSecond } from "../edits/edits.js";
import { THRESHOLD, KINDS, mainKind, attentionByKind } from "../heads/head-kinds.js";
import { bind } from "../keys.js";
import { GlassPattern, PAINTS, withoutFirst } from "../heads/pattern.js";
import { store } from "../state/store.js";
import { Sweep } from "../edits/sweep.js";
import { Thumbnails, placeOf, thumbOf } from "../heads/thumbnails.js";
import { GlassView } from "../view.js";
import { t } from "../languages/language.js";

/** @typedef {{layer: number, head: number}} Place */

const touch = matchMedia("(hover: none)");
const DRAGGED = "text/x-glass-head";

/** The patterns of all blocks come in one response, unless the text is long. */
const ALL_TOKENS = 200;

class GlassHeads extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "pattern", "least", "filter", "sort", "skipFirst", "overlay", "edits", "second", "secondTrace", "target"];
  #grid = el("div", { class: "all", role: "group", "aria-label": t("heads.all") });
  #from = el("div", { class: "all from", role: "group", "aria-label": t("heads.from"), hidden: true });
  /** @type {Map<HTMLElement, Thumbnails>} */ #pictures = new Map([this.#grid, this.#from].map((grid) => [grid, new Thumbnails(grid)]));
  #second = el("input", { type: "text", id: "second", placeholder: t("heads.second.empty"), autocomplete: "off", spellcheck: "false" });
  #large = new GlassPattern();
  #sweep = new Sweep();
  #title = el("h2");
  #edits = el("div", { class: "edits" });
  #together = el("div", { class: "choice together", role: "group", "aria-label": t("heads.together") });
  #how = el("div", { class: "choice", role: "group", "aria-label": t("heads.how") });
  #filter = el("select", { id: "filter", onchange: () => store.set({ filter: this.#filter.value }) }, el("option", { value: "" }, t("heads.filter.all")),
    KINDS.map((name) => el("option", { value: name }, t(`kind.${name}`))));
  #sort = el("input", { type: "checkbox", id: "sort", onchange: () => store.set({ sort: this.#sort.checked }) });
  #skip = el("input", { type: "checkbox", id: "skip-first", onchange: () => store.set({ skipFirst: this.#skip.checked }) });
  #least = el("input", { type: "range", id: "least", min: 0, max: 0.5, step: 0.01, oninput: () => store.set({ least: Number(this.#least.value) }) });
  #leastSays = el("output", { for: "least" });
  #leastLabel = el("label", { for: "least" }, t("heads.least"), this.#least, this.#leastSays);
  #rests = el("p", { class: "small quiet" });
  /** @type {Map<string, Record<string, number>>} */ #kinds = new Map();
  /** @type {(() => void)[]} */ #keys = [];
  /** @type {Place | null} the head under the pointer */ #preview = null;
  #watch = new ResizeObserver(() => [...this.#pictures.values()].every(({ fits }) => fits) || this.#redraw());
  #order = "";

  connectedCallback() {
    super.connectedCallback();
    this.#keys = [
      bind(["o"], t("keys.ablate"), () => toggleEdit(ablateHead(cursorHead()))),
      bind(["p"], t("keys.patch"), () => this.#patch(cursorHead())),
      bind(["+"], t("keys.together"), () => toggleOverlay(cursorHead())),
    ];
    for (const grid of this.#pictures.keys()) this.#watch.observe(grid);
  }

  disconnectedCallback() {
    this.#keys.forEach((undo) => undo());
    this.#watch.disconnect();
    super.disconnectedCallback();
  }

  build() {
    this.#second.addEventListener("input", () => typeSecond(this.#second.value));
    for (const grid of [this.#grid, this.#from]) {
      grid.addEventListener("click", (event) => {
        const place = placeOf(event);
        if (!place) return;
        if (event.shiftKey) toggleEdit(ablateHead(place));
        else if (event.ctrlKey || event.metaKey) toggleOverlay(place);
        else store.set(place);
      });
      grid.addEventListener("keydown", (event) => this.#step(event));
    }
    this.#grid.addEventListener("mouseover", (event) => this.#show(placeOf(event)));
    this.#grid.addEventListener("mouseleave", () => this.#show(null));
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
      el("p", { class: "says kept" }, t(touch.matches ? "heads.says.touch" : "heads.says")),
      el("div", { class: "controls kept" }, this.#how, el("label", { for: "filter" }, t("heads.filter"), this.#filter),
        el("label", { for: "sort" }, this.#sort, t("heads.sorted")), el("label", { for: "skip-first" }, this.#skip, t("heads.skip")), this.#leastLabel),
      this.problem,
      el(
        "div",
        { class: "side" },
        el("div", {}, this.#grid, el("div", { class: "color-keys" }, ramp(t("heads.weight"), "attention", "100%")), this.#rests),
        el("section", { class: "large" }, el("div", { class: "headed" }, this.#title, this.#edits), this.#together, this.#large),
        el(
          "section",
          {},
          el("label", { for: "second" }, el("b", {}, t("heads.second")), this.#second),
          el("p", { class: "says" }, t(touch.matches ? "heads.second.says.touch" : "heads.second.says")),
          this.#from,
          this.#sweep.element,
        ),
      ),
    );
  }

  /** @param {Place} place */
  #patch(place) {
    if (secondNow() || hasEdit(patchHead(place))) toggleEdit(patchHead(place));
    else this.#second.focus();
  }

  /** Preview a head, or return to the cursor's. @param {Place | null} place */
  #show(place) {
    if (place?.layer === this.#preview?.layer && place?.head === this.#preview?.head) return;
    this.#preview = place;
    this.#showLarge();
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
    const { pattern, filter, least, second, sort, skipFirst } = store.get();
    const hows = /** @type {const} */ (["matrix", "lines"]);
    exchange(this.#how, hows.map((how) => el("button", { "aria-pressed": String(how === pattern), onclick: () => store.set({ pattern: how }) }, t(`heads.${how}`))));
    this.#filter.value = filter;
    [this.#sort.checked, this.#skip.checked] = [sort && filter !== "", skipFirst];
    this.#sort.disabled = filter === "";
    this.#least.value = String(least);
    put(this.#leastSays, `${Math.round(100 * least)}%`);
    this.#leastLabel.hidden = pattern !== "lines";
    if (document.activeElement !== this.#second) this.#second.value = second;
    if (changed.has("trace")) this.#kinds.clear();
    const redraw = (/** @type {Topic[]} */ ["trace", "theme", "pattern", "skipFirst"]).some((topic) => changed.has(/** @type {Topic} */ (topic)));
    if (redraw) this.#pictures.forEach((pictures) => pictures.reset());
    if (redraw) void this.#fill(this.#grid, trace, true);
    this.#from.hidden = !store.secondTrace;
    this.#from.classList.toggle("was", store.secondTrace !== null && !secondNow());
    if (store.secondTrace && (redraw || changed.has("secondTrace"))) void this.#fill(this.#from, store.secondTrace, false);
    this.#sweep.render();
    this.#arrange();
    this.#mark();
    this.#showLarge();
  }

  /** Draw what is known once more, at the size the grid has now. */
  #redraw() {
    const { trace, secondTrace, config } = store;
    this.#pictures.forEach((pictures) => pictures.reset());
    for (let layer = 0; layer < (config?.n_layer ?? 0); layer++) {
      for (const [grid, one, main] of /** @type {const} */ ([[this.#grid, trace, true], [this.#from, secondTrace, false]])) {
        const known = one && api.peek(`/trace/${one.id}/patterns?layer=${layer}`);
        if (known) this.#draw(grid, one, layer, known["attn.weights"].data, main);
      }
    }
  }

  /**
   * Draw the thumbnails of a grid: of a long text block by block, starting at the cursor's, so that others get through.
   * @param {HTMLElement} grid @param {Trace} trace @param {boolean} main
   */
  async #fill(grid, trace, main) {
    const { n_layer, n_head } = /** @type {ModelConfig} */ (store.config);
    const layers = Array.from({ length: n_layer }, (_, up) => n_layer - 1 - up);
    if (grid.dataset.shape !== `${n_layer} ${n_head}`) {
      grid.dataset.shape = `${n_layer} ${n_head}`;
      grid.style.setProperty("--heads", String(n_head));
      grid.style.setProperty("--layers", String(n_layer));
      const heads = Array.from({ length: n_head }, (_, head) => head);
      put(grid, this.#pictures.get(grid)?.canvas,
        layers.flatMap((layer) => [el("span", { class: "quiet small" }, layer), ...heads.map((head) => thumbOf(layer, head, main))]));
    }
    const part = main ? this : grid; // the large head and the shares are of the main one
    const isCurrent = () => trace === (main ? store.trace : store.secondTrace) && this.isConnected;
    const { layer: here } = cursorHead();
    layers.sort((a, b) => Math.abs(a - here) - Math.abs(b - here));
    const path = (/** @type {number} */ layer) => `/trace/${trace.id}/patterns?layer=${layer}`;
    if (!api.offline && trace.tokens.length <= ALL_TOKENS && layers.some((layer) => !api.peek(path(layer)))) {
      await this.load(api.get(`/trace/${trace.id}/patterns`), ({ "attn.weights": { shape, data } }) => {
        const size = data.length / n_layer;
        for (const layer of layers) api.remember(path(layer),
          { "attn.weights": { shape: shape.slice(1), data: data.subarray(layer * size, (layer + 1) * size) } });
      }, part);
    }
    for (const layer of layers) {
      const known = api.peek(path(layer));
      if (known && isCurrent()) this.#draw(grid, trace, layer, known["attn.weights"].data, main);
      else if (isCurrent()) await this.load(api.get(path(layer)), ({ "attn.weights": weights }) => isCurrent()
        && this.#draw(grid, trace, layer, weights.data, main), part);
      if (!isCurrent()) return;
    }
    if (!main) return;
    const rest = [...this.#kinds.values()].filter((shares) => shares.first > 0.4).length;
    put(this.#rests, rest > 0 ? t("heads.rest", { n: rest, all: this.#kinds.size }) : "");
    this.#arrange();
    this.#mark();
    this.#showLarge();
  }

  /** @param {HTMLElement} grid @param {Trace} trace @param {number} layer @param {Uint8Array} weights @param {boolean} main */
  #draw(grid, trace, layer, weights, main) {
    const { length: count } = trace.tokens;
    const area = count ** 2;
    const ids = trace.tokens.map(({ id }) => id);
    const { pattern, skipFirst } = store.get();
    for (const thumb of /** @type {NodeListOf<HTMLElement>} */ (grid.querySelectorAll(`[data-layer="${layer}"]`))) {
      const head = Number(thumb.dataset.head);
      const own = weights.subarray(head * area, (head + 1) * area);
      const name = `${layer}.${head}`;
      const shares = (main && this.#kinds.get(name)) || attentionByKind(own, ids);
      if (main) this.#kinds.set(name, shares);
      const kind = mainKind(shares);
      thumb.setAttribute("aria-label", kind ? t("heads.name.kind", { head: name, kind: t(`kind.${kind}.says`) }) : t("heads.name", { head: name }));
      this.#pictures.get(grid)?.draw(name, skipFirst ? withoutFirst(own, count) : own, count, pattern);
    }
  }

  /** The order of the heads: by block, or by how much they are of a kind. */
  #arrange() {
    const { sort, filter } = store.get();
    const sorted = sort && filter !== "";
    const thumbs = /** @type {HTMLElement[]} */ ([...this.#grid.querySelectorAll(".thumb")]);
    const was = this.#grid.classList.contains("sorted");
    if (!sorted && !was) return;
    const share = (/** @type {HTMLElement} */ thumb) => this.#kinds.get(`${thumb.dataset.layer}.${thumb.dataset.head}`)?.[filter] ?? 0;
    const order = sorted ? [...thumbs].sort((a, b) => share(b) - share(a)) : [];
    const what = order.map((thumb) => `${thumbs.indexOf(thumb)} ${share(thumb)}`).join();
    if (what === this.#order) return;
    this.#order = what;
    this.#grid.classList.toggle("sorted", sorted);
    for (const thumb of thumbs) {
      thumb.style.order = sorted ? String(order.indexOf(thumb)) : "";
      thumb.dataset.share = sorted ? percent(share(thumb)) : "";
    }
    this.#redraw(); // the squares have moved
  }

  /** Mark the cursor, the edits, and what passes the filter. */
  #mark() {
    const here = cursorHead();
    const { filter, overlay } = store.get();
    const others = overlay.filter((name) => name !== `${here.layer}.${here.head}`);
    const hadFocus = this.#grid.contains(document.activeElement);
    for (const thumb of /** @type {NodeListOf<HTMLElement>} */ (this.querySelectorAll(".thumb"))) {
      const place = { layer: Number(thumb.dataset.layer), head: Number(thumb.dataset.head) };
      const isHere = place.layer === here.layer && place.head === here.head;
      const main = this.#grid.contains(thumb);
      if (isHere) thumb.setAttribute("aria-current", "true");
      else thumb.removeAttribute("aria-current");
      thumb.tabIndex = isHere ? 0 : -1;
      if (isHere && hadFocus && main) thumb.focus();
      const name = `${place.layer}.${place.head}`;
      thumb.classList.toggle("faint", filter !== "" && (this.#kinds.get(name)?.[filter] ?? 0) < THRESHOLD);
      thumb.classList.toggle("together", main && others.includes(name));
      thumb.style.borderColor = main && others.includes(name) ? `var(--${paintOf(others.indexOf(name))})` : "";
      const is = !main ? "" : hasEdit(ablateHead(place)) ? "out" : hasEdit(patchHead(place)) ? "2nd" : "";
      if (is) thumb.dataset.is = is;
      else delete thumb.dataset.is;
    }
  }

  /** The weights of a head, if they are loaded. @param {Place} place @returns {Uint8Array | null} */
  #weights({ layer, head }) {
    const { trace } = store;
    const found = trace && api.peek(`/trace/${trace.id}/patterns?layer=${layer}`);
    if (!found || !trace) return null;
    const area = trace.tokens.length ** 2;
    const own = found["attn.weights"].data.subarray(head * area, (head + 1) * area);
    return store.get().skipFirst ? withoutFirst(own, trace.tokens.length) : own;
  }

  /** The head of the cursor or under the pointer, large, with those drawn over it. */
  #showLarge() {
    const { trace } = store;
    if (!trace) return;
    const place = this.#preview ?? cursorHead();
    const name = `${place.layer}.${place.head}`;
    const shares = this.#kinds.get(name);
    const kind = shares && mainKind(shares);
    put(this.#title, t("heads.head", { head: name }), kind ? el("span", { class: "quiet" }, t("heads.mostly", { kind: t(`kind.${kind}.says`) })) : null);
    const { pattern, least, overlay } = store.get();
    exchange(this.#edits,
      editButton(ablateHead(place), t("heads.ablate")), editButton({ ...ablateHead(place), how: "mean" }, t("heads.mean")),
      editButton(patchHead(place), t("heads.patch"), undefined, () => this.#patch(place)),
      el("button", { class: "edit", "aria-pressed": String(overlay.includes(name)), onclick: () => toggleOverlay(place) }, t("heads.overlay")));
    const others = overlay.filter((other) => other !== name).map((other, i) => ({ name: other, paint: paintOf(i) }));
    this.#together.hidden = others.length === 0;
    exchange(this.#together, others.length === 0 ? []
      : [key(name, PAINTS[0], null), ...others.map(({ name: other, paint }) => key(other, paint, () =>
      store.set({ overlay: overlay.filter((one) => one !== other) })))]);
    const weights = this.#weights(place);
    this.#large.classList.toggle("stale", !weights);
    if (!weights) return;
    const drawn = others.flatMap(({ name: other, paint }) => {
      const [layer, head] = other.split(".").map(Number);
      const found = this.#weights({ layer, head });
      return found ? [{ weights: found, paint }] : [];
    });
    this.#large.show({ weights, tokens: trace.tokens, token: store.cursor.token, others: drawn }, others.length > 0 ? "lines" : pattern, least,
      t("heads.pattern", { heads: [name, ...others.map((other) => other.name)].join(", ") }));
  }
}

/** The color of the i-th head drawn over the cursor's. @param {number} i */
const paintOf = (i) => PAINTS[(i + 1) % PAINTS.length];

/** The color of a head among those drawn together. @param {string} name @param {string} paint @param {(() => void) | null} remove */
function key(name, paint, remove) {
  const dot = el("i", { class: "dot", "aria-hidden": "true", style: { background: `var(--${paint})` } });
  return remove ? el("button", { class: "edit", "aria-label": t("heads.remove", { head: name }), onclick: remove }, dot, `${name} ×`)
    : el("span", { class: "small" }, dot, name);
}

/** Draw a head together with others, or no more. @param {Place} place */
function toggleOverlay({ layer, head }) {
  const name = `${layer}.${head}`;
  const { overlay } = store.get();
  store.set({ overlay: overlay.includes(name) ? overlay.filter((other) => other !== name) : [...overlay, name].slice(-4) });
}

/** The head of the cursor; at the embedding, that of block 0. @returns {Place} */
function cursorHead() {
  const { layer, head } = store.cursor;
  return { layer: Math.max(0, layer), head };
}

customElements.define("glass-heads", GlassHeads);
