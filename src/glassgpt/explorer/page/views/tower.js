// View 2: the tower. Columns are tokens, rows the stack; in each cell what the model would say there.

import { brief, el, format, percent, put, shade, short, surpriseShare, svg, svgText, visible } from "../draw.js";
import { api, isAbort } from "../api.js";
import { store } from "../store.js";
import { GlassView } from "../view.js";
import { curves, layout, streams } from "./tower-draw.js";

/** @typedef {import("./tower-draw.js").Layout} Layout */

/** Longer texts have patterns too large to fetch for a few curves; the opened block's own row serves then. */
const PATTERN_TOKENS = 200;

/** Columns drawn beyond the visible ones, on either side. */
const MARGIN = 6;

class GlassTower extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "intervention"];
  #readout = el("p", { class: "readout", id: "tower-readout", "aria-live": "polite" });
  #note = el("p", { class: "quiet small" });
  #grid = el("div", { class: "grid", role: "grid", tabindex: 0, "aria-label": "The tower: what the model would say after each block", "aria-describedby": "tower-help" });
  #inner = el("div", { class: "inner", role: "presentation" });
  #flow = svg("svg", { class: "flow", "aria-hidden": "true" });
  #band = el("div", { class: "band", "aria-hidden": "true" });
  /** @type {HTMLElement[]} */ #rows = [];
  /** @type {Layout} */ #layout = layout(600, 400, 1, 1);
  /** @type {[number, number]} the columns that are drawn */ #range = [0, -1];
  /** @type {ResizeObserver | null} */ #watch = null;
  #seen = "";

  connectedCallback() {
    const legend = el("div", { class: "legend" }, el("span", {}, "0%"), el("span", { class: "ramp probability", "aria-hidden": "true" }), el("span", {}, "100%"));
    put(
      this,
      el("div", { class: "pane-head" }, el("h2", {}, "The tower"), this.#note, legend),
      this.#grid,
      this.#readout,
      el("p", { class: "unseen", id: "tower-help" }, "Arrow keys move the cursor, Enter opens the block."),
    );
    this.#inner.append(this.#band, this.#flow, el("div", { class: "gutter-back", "aria-hidden": "true" }));
    this.#grid.append(this.#inner);
    this.#grid.addEventListener("scroll", () => this.#drawColumns());
    this.#grid.addEventListener("click", (event) => this.#choose(event, false));
    this.#grid.addEventListener("dblclick", (event) => this.#choose(event, true));
    this.#grid.addEventListener("mouseover", (event) => this.#read(this.#placeOf(event)));
    this.#grid.addEventListener("mouseleave", () => this.#read(null));
    this.#grid.addEventListener("keydown", (event) => {
      if (event.key === "Enter") store.set({ view: "block" });
    });
    this.#watch = new ResizeObserver(() => store.trace && this.#rebuild());
    this.#watch.observe(this.#grid);
    super.connectedCallback();
  }

  disconnectedCallback() {
    this.#watch?.disconnect();
    super.disconnectedCallback();
  }

  /** @param {Event} event @returns {{token: number, layer: number} | null} the cell an event happened on */
  #placeOf(event) {
    const cell = event.target instanceof Element ? event.target.closest("[data-token]") : null;
    if (!(cell instanceof HTMLElement)) return null;
    return { token: Number(cell.dataset.token), layer: Number(cell.dataset.layer) };
  }

  /** @param {Event} event @param {boolean} open */
  #choose(event, open) {
    const place = this.#placeOf(event);
    if (!place) return;
    const top = (store.config?.n_layer ?? 1) - 1;
    const layer = Math.max(-1, Math.min(place.layer, top));
    store.set(open ? { token: place.token, layer, view: "block" } : { token: place.token, layer });
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    if (changed.has("trace") || changed.has("theme") || changed.has("intervention")) this.#rebuild();
    this.#moveCursor();
  }

  /** Lay everything out anew: another text, another size, other colours. */
  #rebuild() {
    const { trace, config } = store;
    if (!trace || !config) return;
    this.#layout = layout(this.#grid.clientWidth, this.#grid.clientHeight, trace.tokens.length, config.n_layer);
    const { width, height, rows, labelWidth } = this.#layout;
    this.#inner.style.width = `${width}px`;
    this.#inner.style.height = `${height}px`;
    this.#grid.setAttribute("aria-rowcount", String(rows.length));
    this.#grid.setAttribute("aria-colcount", String(trace.tokens.length + 1));
    this.#rows.forEach((row) => row.remove());
    this.#rows = rows.map(({ name, title, top, high }, place) => {
      const label = el("div", { class: "label", role: "rowheader", title, style: { width: `${labelWidth}px`, "line-height": `${high}px` } }, name);
      return el("div", { class: "row", role: "row", "aria-rowindex": place + 1, style: { top: `${top}px`, height: `${high}px` } }, label);
    });
    this.#inner.append(...this.#rows);
    this.#range = [0, -1];
    put(this.#note, store.intervention ? "with your edits: a dot marks what they changed" : "what it would say next, read after each block");
    this.#seen = "";
    this.#moveCursor();
  }

  /** Draw the cells of the columns in sight, if other ones than before are. */
  #drawColumns() {
    const { trace } = store;
    if (!trace) return;
    const { pitch, labelWidth } = this.#layout;
    const first = Math.max(0, Math.floor((this.#grid.scrollLeft - labelWidth) / pitch) - MARGIN);
    const last = Math.min(trace.tokens.length - 1, Math.ceil((this.#grid.scrollLeft + this.#grid.clientWidth) / pitch) + MARGIN);
    const [from, to] = this.#range;
    if (first >= from && last <= to && to - from < last - first + 4 * MARGIN) return;
    this.#range = [first, last];
    this.#rows.forEach((row, place) => {
      const label = /** @type {Element} */ (row.firstElementChild);
      const cells = [];
      for (let token = first; token <= last; token++) cells.push(this.#cell(trace, place, token));
      row.replaceChildren(label, ...cells);
    });
    put(this.#flow, ...this.#flowOf(trace));
    this.#markCell();
  }

  /** @param {Trace} trace @param {number} place of the row @param {number} token */
  #cell(trace, place, token) {
    const { rows, pitch, labelWidth, cellWidth, letters } = this.#layout;
    const { layer, kind, high } = rows[place];
    const said = contentOf(trace, kind, layer, token);
    const tall = high >= 34 && said.detail !== "";
    return el(
      "div",
      {
        class: `cell ${kind}${said.changed ? " changed" : ""}`,
        role: "gridcell",
        id: `cell-${kind}-${layer}-${token}`,
        "aria-colindex": token + 2,
        "aria-label": said.label,
        "data-token": token,
        "data-layer": layer,
        style: { left: `${labelWidth + token * pitch + (pitch - cellWidth) / 2}px`, width: `${cellWidth}px`, background: said.fill, color: said.ink },
      },
      el("span", { class: [...said.text].length >= letters ? "say tight" : "say" }, short(said.text, letters + 1)),
      tall ? el("span", { class: "how" }, said.detail) : null,
    );
  }

  #moveCursor() {
    const { trace } = store;
    if (!trace || this.#rows.length === 0) return;
    const { token, layer, head } = store.cursor;
    const { pitch, labelWidth } = this.#layout;
    const x = labelWidth + token * pitch;
    const seen = `${trace.id} ${token}`;
    if (this.#seen !== seen) {
      const grid = this.#grid;
      if (x - labelWidth < grid.scrollLeft) grid.scrollLeft = x - labelWidth - pitch;
      else if (x + pitch > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = x + 2 * pitch - grid.clientWidth;
      this.#seen = seen;
    }
    this.#band.style.left = `${x}px`;
    this.#band.style.width = `${pitch}px`;
    this.#drawColumns();
    put(this.#flow, ...this.#flowOf(trace));
    this.#markCell();
    this.#read(null);
    this.#grid.setAttribute("aria-activedescendant", `cell-lens-${layer}-${token}`);
    if (layer >= 0) void this.#askPattern(trace.id, layer, head);
  }

  /** The curves need the head's weights; draw them when they have come. @param {string} id @param {number} layer @param {number} head */
  async #askPattern(id, layer, head) {
    const path = `/trace/${id}/patterns?layer=${layer}`;
    if (api.peek(path) || (store.trace?.tokens.length ?? 0) > PATTERN_TOKENS) return;
    try {
      await api.get(path, { slot: "tower" });
    } catch (error) {
      if (!isAbort(error)) throw error;
      return;
    }
    const now = store.cursor;
    if (store.trace?.id === id && now.layer === layer && now.head === head) put(this.#flow, ...this.#flowOf(store.trace));
  }

  /** The streams in sight and the cursor's attention. @param {Trace} trace */
  #flowOf(trace) {
    const { token, layer, head } = store.cursor;
    const [first, last] = this.#range;
    const drawn = streams(this.#layout, trace, first, last);
    if (layer >= 0) drawn.push(...curves(this.#layout, weightsOf(trace, { token, layer, head }), { token, layer }));
    return drawn;
  }

  #markCell() {
    const { token, layer } = store.cursor;
    for (const cell of this.#inner.querySelectorAll("[aria-selected]")) cell.removeAttribute("aria-selected");
    this.#inner.querySelector(`#cell-lens-${layer}-${token}`)?.setAttribute("aria-selected", "true");
    this.#rows.forEach((row, place) => row.classList.toggle("here", this.#layout.rows[place].kind === "lens" && this.#layout.rows[place].layer === layer));
  }

  /** Say in words what a cell shows; without one, the cursor's. @param {{token: number, layer: number} | null} place */
  #read(place) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const { token, layer } = place ?? store.cursor;
    const kind = layer >= config.n_layer ? "next" : layer < -1 ? "token" : "lens";
    const said = contentOf(trace, kind, layer, token);
    const norm = kind === "lens" ? [" Length of the stream: ", el("b", {}, format(trace.norms[layer + 1][token], 2)), "."] : [];
    put(this.#readout, el("span", { class: "where" }, `${visible(trace.tokens[token].text)} `), said.label, ".", norm);
  }

  /** The tower as a picture, all columns. */
  toSVG() {
    const { trace, config } = store;
    if (!trace || !config) return svgText(10, 10, []);
    const plan = layout(0, 520, trace.tokens.length, config.n_layer);
    const drawn = streams(plan, trace, 0, trace.tokens.length - 1);
    const ink = getComputedStyle(this).color;
    for (const { kind, layer, name, top, high } of plan.rows) {
      drawn.push(svg("text", { x: 8, y: top + high / 2 + 4, fill: ink }, name));
      trace.tokens.forEach((_, token) => {
        const said = contentOf(trace, kind, layer, token);
        const x = plan.labelWidth + token * plan.pitch + (plan.pitch - plan.cellWidth) / 2;
        drawn.push(
          svg("rect", { x, y: top, width: plan.cellWidth, height: high, rx: 5, fill: said.fill === "" ? "none" : said.fill }),
          svg("text", { x: x + plan.cellWidth / 2, y: top + high / 2 + 4, "text-anchor": "middle", fill: said.ink === "" ? ink : said.ink }, short(said.text, plan.letters)),
        );
      });
    }
    return svgText(plan.width, plan.height, drawn);
  }
}

/**
 * The attention of the cursor's head as far as it is known by now.
 * @param {Trace} trace @param {{token: number, layer: number, head: number}} cursor
 * @returns {number[]}
 */
function weightsOf(trace, { token, layer, head }) {
  const known = api.peek(`/trace/${trace.id}/head?layer=${layer}&head=${head}&token=${token}`);
  if (known) return known.weights;
  const pattern = api.peek(`/trace/${trace.id}/patterns?layer=${layer}`);
  if (!pattern) return [];
  const count = trace.tokens.length;
  return Array.from(pattern.weights.data.subarray((head * count + token) * count, (head * count + token + 1) * count), (weight) => weight / 255);
}

/**
 * What stands in a cell: the token itself, what the model would say there, or what really came next.
 * @param {Trace} trace @param {string} kind @param {number} layer @param {number} token
 */
function contentOf(trace, kind, layer, token) {
  const plain = { fill: "", ink: "", changed: false };
  if (kind === "token") {
    const { text, id } = trace.tokens[token];
    return { ...plain, text, detail: String(token), label: `token ${token}, id ${id}` };
  }
  if (kind === "next") {
    const surprise = trace.surprise[token + 1];
    if (!surprise) return { ...plain, text: "?", detail: "", label: "what comes next is open" };
    const { fill, ink } = shade("surprise", surpriseShare(surprise.p));
    const { text } = trace.tokens[token + 1];
    return { fill, ink, changed: false, text, detail: brief(surprise.p), label: `what came next: ${visible(text)}, which had ${percent(surprise.p)}` };
  }
  const lens = store.intervention?.lens ?? trace.lens;
  const row = layer + 1;
  const [text, p] = [lens.texts[row][token], lens.p[row][token]];
  const { fill, ink } = shade("probability", p);
  const where = layer < 0 ? "after the embedding" : `after block ${layer}`;
  const changed = lens.ids[row][token] !== trace.lens.ids[row][token];
  return { fill, ink, changed, text, detail: brief(p), label: `${where} it would say ${visible(text)} with ${percent(p)}` };
}

customElements.define("glass-tower", GlassTower);
