// The tower. Columns are tokens, rows are layers; each cell is the logit lens there.

import { api } from "../state/api.js";
import { attentionRow, patternPath, PATTERN_TOKENS } from "../draw/attention-row.js";
import { brief, el, format, percent, put, ramp, shade, short, lossLevel, svg, visible } from "../draw/draw.js";
import { lensNow, showColumns } from "../edits/edits.js";
import { light } from "../state/hover.js";
import { LensCard } from "../tower/lens-card.js";
import { eventLabel } from "../music/music-events.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { afterRender, GlassView } from "../view.js";
import { curves, layout, streams } from "../tower/tower-draw.js";
import { t } from "../languages/language.js";

/** Columns drawn beyond the visible ones, on either side. */
const MARGIN = 6;

/** @type {Topic[]} */
const CURSOR = ["token", "layer", "head", "pin"];

class GlassTower extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "edits", "intervention", "secondTrace", "pin", "game"];
  foresee = (/** @type {number} */ token) => [`/lens?position=${token}${store.get().pin === null ? "" : `&token=${store.get().pin}`}`,
    ...(store.cursor.layer >= 0 && token < PATTERN_TOKENS ? [`/patterns?layer=${store.cursor.layer}`] : [])];
  #readout = el("p", { class: "readout", "aria-live": "polite" });
  #note = el("p", { class: "quiet small" });
  #grid = el("div", { role: "grid", tabindex: 0, "aria-label": t("tower.label"), "aria-describedby": "tower-help" });
  #all = el("div", { class: "all", role: "presentation" });
  #streams = svg("path", { fill: "var(--line)" });
  #curves = svg("g");
  #band = el("div", { class: "band", "aria-hidden": "true" });
  #back = el("div", { class: "back", "aria-hidden": "true" });
  /** @type {HTMLElement[]} */ #rows = [];
  /** @type {Map<number, HTMLElement>[]} the cells of each row, by token */ #cells = [];
  /** @type {WeakMap<HTMLElement, string>} what each cell says */ #said = new WeakMap();
  #layout = layout(600, 400, 1, 1);
  /** @type {[number, number]} the columns that are drawn */ #range = [0, -1];
  #box = { width: 600, height: 400, left: 0 };
  #watch = new ResizeObserver(([{ contentRect: { width, height } }]) => {
    this.#box = { ...this.#box, width, height };
    this.#rebuild();
  });
  #seen = "";
  #card = new LensCard();
  /** @type {SparseLens | null} the lens that is drawn */ #lens = null;

  /** What it asks for fills the card; the cells are the trace's. */
  get hasNumbers() {
    return false;
  }

  build() {
    put(
      this,
      el("div", { class: "head" }, el("h2", {}, t("tower.title")), this.#note, ramp("0%", "", "100%")),
      this.problem,
      this.#grid,
      this.#readout,
      this.#card.element,
      el("p", { class: "unseen", id: "tower-help" }, t("tower.keys")),
    );
    this.#all.append(this.#band, svg("svg", { "aria-hidden": "true" }, this.#streams, this.#curves), this.#back);
    this.#grid.append(this.#all);
    this.#grid.addEventListener("scroll", () => {
      this.#box.left = this.#grid.scrollLeft;
      this.#drawColumns();
    });
    this.#grid.addEventListener("click", (event) => this.#choose(event, {}));
    this.#grid.addEventListener("dblclick", (event) => this.#choose(event, { view: "block" }));
    this.#grid.addEventListener("mouseover", (event) => this.#read(placeOf(event)));
    this.#grid.addEventListener("mouseleave", () => this.#read(null));
    this.#grid.addEventListener("keydown", ({ key }) => key === "Enter" && store.set({ view: "block" }));
    this.#watch.observe(this.#grid);
  }

  /** @param {Event} event @param {Partial<State>} also */
  #choose(event, also) {
    const place = placeOf(event);
    const top = (store.config?.n_layer ?? 1) - 1;
    if (place) store.set({ token: place.token, layer: Math.max(-1, Math.min(place.layer, top)), ...also });
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const lens = this.#wanted;
    // Until the lens with the new edits is there, what is shown is that of before, and marked so.
    const computing = lens === null;
    const wasComputing = this.classList.contains("computing");
    this.classList.toggle("computing", computing);
    this.#grid.ariaBusy = String(computing);
    if (computing) put(this.#note, t("tower.computing"));
    if (computing && !changed.has("trace") && !changed.has("theme")) {
      if (CURSOR.some((topic) => changed.has(topic))) this.#moveCursor();
      else this.#showCard();
      return;
    }
    if (changed.has("trace") || changed.has("theme") || changed.has("game") || lens !== this.#lens || wasComputing) this.#rebuild();
    else if (changed.has("pin") && changed.size === 1) this.#showCard();
    else this.#moveCursor();
  }

  /** The lens to show: that of the text, or that with the edits, null while it is computed. */
  get #wanted() {
    const plain = store.get().edits.length === 0 || store.problem;
    return plain ? store.trace?.lens ?? null : lensNow();
  }

  /** For another text, size, theme or lens. Rows and cells that stay where they are keep their elements. */
  #rebuild() {
    const { trace, config } = store;
    if (!trace || !config) return;
    this.#layout = layout(this.#box.width, this.#box.height, trace.tokens.length, config.n_layer);
    const { width, height, labelWidth, pitch, rows } = this.#layout;
    this.#all.style.width = `${width}px`;
    this.#all.style.height = `${height}px`;
    this.#back.style.width = `${labelWidth}px`;
    this.#grid.setAttribute("aria-rowcount", String(rows.length));
    this.#grid.setAttribute("aria-colcount", String(trace.tokens.length + 1));
    const plan = JSON.stringify([rows, pitch]);
    if (this.#all.dataset.plan !== plan) this.#buildRows();
    this.#all.dataset.plan = plan;
    this.#seen = "";
    this.#lens = this.#wanted ?? trace.lens;
    const last = Math.min(this.#range[1], trace.tokens.length - 1);
    this.#resize(Math.min(this.#range[0], last + 1), last);
    this.#cells.forEach((cells, place) => cells.forEach((cell, token) => this.#fill(cell, trace, place, token)));
    put(this.#note, this.#lens !== trace.lens ? t("tower.edited") : say("tower.says"));
    this.#drawStreams();
    this.#moveCursor();
  }

  #buildRows() {
    const { rows, labelWidth } = this.#layout;
    this.#rows.forEach((row) => row.remove());
    this.#rows = rows.map(({ name, title, top, high }, place) => {
      const label = el("div", { role: "rowheader", title, style: { width: `${labelWidth}px`, "line-height": `${high}px` } }, name);
      return el("div", { role: "row", "aria-rowindex": place + 1, style: { top: `${top}px`, height: `${high}px` } }, label);
    });
    this.#cells = rows.map(() => new Map());
    this.#range = [0, -1];
    this.#all.append(...this.#rows);
  }

  /** Draw the visible columns, if they changed. */
  #drawColumns() {
    const { trace } = store;
    if (!trace) return;
    const { pitch, labelWidth } = this.#layout;
    const { left, width } = this.#box;
    const first = Math.max(0, Math.floor((left - labelWidth) / pitch));
    const last = Math.min(trace.tokens.length - 1, Math.ceil((left + width) / pitch));
    showColumns(first, last);
    if (first >= this.#range[0] && last <= this.#range[1]) return;
    this.#resize(Math.max(0, first - MARGIN), Math.min(trace.tokens.length - 1, last + MARGIN));
    this.#drawStreams();
    this.#mark();
    light();
  }

  /** Let every row have these columns: those that are there stay. @param {number} from @param {number} to */
  #resize(from, to) {
    const trace = /** @type {Trace} */ (store.trace);
    const [before] = this.#range;
    this.#range = [from, to];
    this.#cells.forEach((cells, place) => {
      for (const [token, cell] of cells) {
        if (token >= from && token <= to) continue;
        cell.remove();
        cells.delete(token);
      }
      const [left, right] = /** @type {HTMLElement[][]} */ ([[], []]);
      for (let token = from; token <= to; token++) {
        if (cells.has(token)) continue;
        const cell = this.#cell(place, token);
        this.#fill(cell, trace, place, token);
        cells.set(token, cell);
        (token < before ? left : right).push(cell);
      }
      this.#rows[place].firstElementChild?.after(...left);
      this.#rows[place].append(...right);
    });
  }

  /** An empty cell. @param {number} place of the row @param {number} token */
  #cell(place, token) {
    const { rows, pitch, labelWidth, cellWidth } = this.#layout;
    const { layer, kind } = rows[place];
    const style = { left: `${labelWidth + token * pitch + (pitch - cellWidth) / 2}px`, width: `${cellWidth}px` };
    return el("div", { role: kind === "token" ? "columnheader" : "gridcell", id: `cell-${kind}-${layer}-${token}`, "aria-colindex": token + 2,
      "data-token": token, "data-layer": layer, style });
  }

  /** What a cell says, unless it says so already. @param {HTMLElement} cell @param {Trace} trace @param {number} place of its row @param {number} token */
  #fill(cell, trace, place, token) {
    const { rows, letters } = this.#layout;
    const { layer, kind, high } = rows[place];
    const said = contentOf(trace, this.#lens ?? trace.lens, kind, layer, token);
    const what = JSON.stringify(said);
    if (this.#said.get(cell) === what) return;
    this.#said.set(cell, what);
    cell.className = `cell is-${kind}${said.changed ? " changed" : ""}`;
    cell.setAttribute("aria-description", said.label);
    cell.style.background = said.fill;
    cell.style.color = said.ink;
    put(cell, el("span", { class: [...said.text].length >= letters ? "tight" : null }, short(said.text, letters + 1)), high >= 30 && said.detail
      ? el("span", { class: "how" }, said.detail) : null);
  }

  #drawStreams() {
    const what = JSON.stringify([store.trace?.id, this.#range, this.#all.dataset.plan]);
    if (!store.trace || this.#streams.dataset.of === what) return;
    this.#streams.dataset.of = what;
    this.#streams.setAttribute("d", streams(this.#layout, store.trace, ...this.#range));
  }

  #moveCursor() {
    const { trace } = store;
    if (!trace || this.#rows.length === 0) return;
    const { token, layer } = store.cursor;
    const { pitch, labelWidth } = this.#layout;
    const x = labelWidth + token * pitch;
    const seen = `${trace.id} ${token}`;
    if (this.#seen !== seen) {
      this.#seen = seen;
      const { left, width } = this.#box;
      const hidden = x - labelWidth < left ? x - labelWidth - pitch : x + pitch > left + width ? x + 2 * pitch - width : null;
      if (hidden !== null) {
        const to = (this.#box.left = Math.max(0, Math.min(hidden, this.#layout.width - width)));
        afterRender(() => (this.#grid.scrollLeft = to));
      }
    }
    this.#band.style.left = `${x}px`;
    this.#band.style.width = `${pitch}px`;
    this.#drawColumns();
    this.#drawCurves();
    this.#mark();
    this.#read(null);
    this.#grid.setAttribute("aria-activedescendant", `cell-lens-${layer}-${token}`);
    this.#showCard();
    const path = patternPath(trace, layer);
    if (layer >= 0 && !api.peek(path) && trace.tokens.length <= PATTERN_TOKENS) void api.get(path).then(() => this.#drawCurves(), () => {});
      // until then there are none
  }

  #showCard() {
    this.#card.element.hidden = store.get().game; // it would give the answer away
    this.#card.render((response, use) => this.load(response, use, this.#card.element));
  }

  /** The attention of the cursor's head. */
  #drawCurves() {
    if (store.trace) put(this.#curves, curves(this.#layout, attentionRow(store.trace), store.cursor));
  }

  #mark() {
    const { token, layer } = store.cursor;
    for (const cell of this.#all.querySelectorAll("[aria-selected]")) cell.removeAttribute("aria-selected");
    this.#all.querySelector(`#cell-lens-${layer}-${token}`)?.setAttribute("aria-selected", "true");
    this.#rows.forEach((row, place) => row.classList.toggle("here", this.#layout.rows[place].layer === layer));
  }

  /** Describe a cell; by default, the cursor's. @param {{token: number, layer: number} | null} place */
  #read(place) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const { token, layer } = place ?? store.cursor;
    const kind = layer >= config.n_layer ? "next" : layer < -1 ? "token" : "lens";
    const norm = kind === "lens" ? say("tower.norm", { norm: el("b", {}, format(trace.norms[layer + 1][token], 2)) }) : [];
    const { text } = trace.tokens[token];
    put(this.#readout, el("b", {}, eventLabel(text) ?? visible(text)), t("tower.read", { cell: contentOf(trace, this.#lens ?? trace.lens, kind, layer, token).label }), ...norm);
  }
}

/** @param {Event} event @returns {{token: number, layer: number} | null} the cell an event happened on */
function placeOf({ target }) {
  const cell = target instanceof Element ? target.closest("[data-token]") : null;
  return cell instanceof HTMLElement ? { token: Number(cell.dataset.token), layer: Number(cell.dataset.layer) } : null;
}

/**
 * The content of a cell: the token, the logit lens, or the actual next token.
 * @param {Trace} trace @param {SparseLens} lens @param {string} kind @param {number} layer @param {number} token
 */
function contentOf(trace, lens, kind, layer, token) {
  const plain = { fill: "", ink: "", changed: false, detail: "" };
  if (kind === "token") {
    const { text, id } = trace.tokens[token];
    return { ...plain, text, detail: String(token), label: t("cell.token", { token, id: String(id) }) };
  }
  if (kind === "next") {
    const loss = trace.token_loss[token + 1];
    if (!loss) return { ...plain, text: "?", label: t("cell.last") };
    const { text } = trace.tokens[token + 1];
    return { ...plain, ...shade("loss", lossLevel(loss.p)), text, detail: brief(loss.p),
      label: t("cell.next", { word: visible(text), share: percent(loss.p) }) };
  }
  if (store.get().game && token === trace.tokens.length - 1) return { ...plain, text: "?", label: t("cell.game") };
  const row = layer + 1;
  const [text, p] = [lens.texts[row][token], lens.p[row][token]];
  if (text === undefined || p === undefined) return { ...plain, text: "…", label: t("cell.computing") };
  const changed = lens.ids[row][token] !== trace.lens.ids[row][token];
  const label = t(layer < 0 ? "cell.embedding" : "cell.block", { layer, word: visible(text), share: percent(p) });
  return { ...shade("probability", p), changed, text, detail: brief(p), label };
}

customElements.define("glass-tower", GlassTower);
