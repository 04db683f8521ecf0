// <glass-scores>: what one query meets. Columns are tokens; rows go from their keys to the mix of their values.

import { colour, diverging, el, format, percent, prepare, put, shade, short, visible } from "./draw.js";
import { math } from "./math.js";
import { limitOf } from "./vector.js";

const PITCH = 54;
const GUTTER = 96;
const STRIP = 64;
const MARGIN = 8;

/**
 * @typedef {{head: Head, z: number[], tokens: Token[], token: number, mask: boolean, scale: string, dHead: number}} Shown
 * @typedef {{name: string, formula: string, high: number, cell?: (shown: Shown, key: number) => {text: string, fill?: string, ink?: string, dim?: boolean}}} RowPlan
 */

/** The weight that token `key` has in what is shown. @param {Shown} shown @param {number} key */
const weight = ({ head, mask }, key) => (mask ? head.weights[key] : head.unmasked[key]);

/** @type {RowPlan[]} */
const ROWS = [
  { name: "token", formula: "", high: 24, cell: ({ tokens }, key) => ({ text: short(tokens[key].text, 7) }) },
  { name: "keys", formula: "k_j", high: STRIP + 6 },
  { name: "score", formula: "q · k_j", high: 22, cell: ({ head }, key) => ({ text: format(head.scores[key], 2) }) },
  { name: "scaled", formula: "÷ √d", high: 22, cell: ({ head }, key) => ({ text: format(head.scaled[key], 2) }) },
  {
    name: "masked",
    formula: "mask",
    high: 22,
    cell: ({ head, mask }, key) => {
      const hidden = mask && head.masked[key] === null;
      return { text: hidden ? "−∞" : format(head.scaled[key], 2), dim: hidden };
    },
  },
  {
    name: "weight",
    formula: "softmax",
    high: 26,
    cell: (shown, key) => ({ text: percent(weight(shown, key)), ...shade("attention", weight(shown, key)) }),
  },
  { name: "values", formula: "a_j v_j", high: STRIP + 6 },
];

class GlassScores extends HTMLElement {
  /** @type {Shown | null} */ #shown = null;
  #scroller = el("div", { class: "scores-scroll", tabindex: 0, role: "group", "aria-label": "The query and every key; arrow keys go from key to key" });
  #table = el("div", { class: "scores-table", role: "table", "aria-label": "Scores of the query against every key" });
  #readout = el("p", { class: "scores-readout small", "aria-live": "polite" });
  #query = el("canvas", { "aria-hidden": "true", class: "gutter-strip" });
  #sum = el("canvas", { "aria-hidden": "true", class: "gutter-strip" });
  #keys = el("canvas", { "aria-hidden": "true" });
  #values = el("canvas", { "aria-hidden": "true" });
  #focus = el("div", { class: "key-focus", "aria-hidden": "true" });
  /** @type {HTMLElement[]} */ #rows = [];
  /** @type {[number, number]} */ #range = [0, -1];
  #key = 0;
  #for = "";
  /** @type {ResizeObserver | null} */ #watch = null;

  connectedCallback() {
    if (this.#rows.length === 0) this.#build();
    this.#watch = new ResizeObserver(() => this.#columns(true));
    this.#watch.observe(this.#scroller);
    document.addEventListener("glass-theme", this.#onTheme);
  }

  disconnectedCallback() {
    this.#watch?.disconnect();
    document.removeEventListener("glass-theme", this.#onTheme);
  }

  #onTheme = () => this.#columns(true);

  #build() {
    this.#rows = ROWS.map(({ name, formula, high }) => {
      const label = el("div", { class: "gutter", role: "rowheader", style: { width: `${GUTTER}px`, height: `${high}px` } }, formula ? math(formula) : el("span", { class: "quiet" }, "token j"));
      if (name === "keys") label.append(el("span", { class: "beside" }, math("q"), this.#query));
      if (name === "values") label.append(el("span", { class: "beside" }, math("z"), this.#sum));
      return el("div", { class: `score-row row-${name}`, role: "row", style: { height: `${high}px` } }, label);
    });
    this.#table.append(this.#focus, ...this.#rows);
    this.#scroller.append(this.#table);
    this.append(this.#scroller, this.#readout);
    this.#scroller.addEventListener("scroll", () => this.#columns(false));
    this.#scroller.addEventListener("mousemove", (event) => {
      const x = event.clientX - this.#table.getBoundingClientRect().left - GUTTER;
      const inGutter = event.clientX - this.#scroller.getBoundingClientRect().left < GUTTER;
      if (!inGutter) this.#look(Math.floor(x / PITCH));
    });
    this.#scroller.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      this.#look(this.#key + by);
      this.#reveal(this.#key);
    });
  }

  /** @param {Shown} shown */
  show(shown) {
    this.#shown = shown;
    const { head, tokens, token } = shown;
    this.#table.style.width = `${GUTTER + tokens.length * PITCH}px`;
    this.#table.setAttribute("aria-colcount", String(tokens.length + 1));
    drawStrip(this.#query, head.q);
    drawStrip(this.#sum, shown.z);
    const subject = `${tokens.map(({ id }) => id).join()} ${token}`;
    if (subject !== this.#for) {
      this.#for = subject;
      this.#key = best(shown);
      this.#reveal(token);
    }
    this.#columns(true);
    this.#look(this.#key);
  }

  /** Bring a column into sight. @param {number} key */
  #reveal(key) {
    const { scrollLeft, clientWidth } = this.#scroller;
    const x = key * PITCH;
    if (x < scrollLeft) this.#scroller.scrollLeft = x - PITCH;
    else if (x + PITCH > scrollLeft + clientWidth - GUTTER) this.#scroller.scrollLeft = x + 2 * PITCH - clientWidth + GUTTER;
  }

  /** Draw the columns in sight. @param {boolean} anew even if they are drawn already */
  #columns(anew) {
    const shown = this.#shown;
    if (!shown) return;
    const { scrollLeft, clientWidth } = this.#scroller;
    const first = Math.max(0, Math.floor(scrollLeft / PITCH) - MARGIN);
    const last = Math.min(shown.tokens.length - 1, Math.ceil((scrollLeft + clientWidth) / PITCH) + MARGIN);
    const [from, to] = this.#range;
    if (!anew && first >= from && last <= to) return;
    this.#range = [first, last];
    this.#rows.forEach((row, place) => {
      const { cell, name } = ROWS[place];
      const label = /** @type {Element} */ (row.firstElementChild);
      row.replaceChildren(label, ...(cell ? this.#cells(cell) : [this.#picture(name)]));
    });
    this.#drawKeys(this.#keys, shown.head.k, () => 1);
    this.#drawKeys(this.#values, shown.head.v, (key) => weight(shown, key));
  }

  /** @param {NonNullable<RowPlan["cell"]>} content */
  #cells(content) {
    const shown = /** @type {Shown} */ (this.#shown);
    const cells = [];
    for (let key = this.#range[0]; key <= this.#range[1]; key++) {
      const { text, fill, ink, dim } = content(shown, key);
      const style = { left: `${GUTTER + key * PITCH}px`, width: `${PITCH - 4}px`, ...(fill ? { background: fill, color: ink ?? "" } : {}) };
      const kind = `${dim ? " dim" : ""}${key === shown.token ? " self" : ""}`;
      cells.push(el("div", { class: `score${kind}`, role: "cell", "aria-colindex": key + 2, style }, text));
    }
    return cells;
  }

  /** @param {string} name */
  #picture(name) {
    const label = name === "keys" ? "the key of each token, as colours" : "the value of each token times its weight, as colours";
    const canvas = name === "keys" ? this.#keys : this.#values;
    return el("div", { class: "strips", role: "cell", "aria-label": label, style: { left: `${GUTTER + this.#range[0] * PITCH}px` } }, canvas);
  }

  /** @param {HTMLCanvasElement} canvas @param {number[][]} vectors @param {(key: number) => number} share */
  #drawKeys(canvas, vectors, share) {
    const [first, last] = this.#range;
    const context = prepare(canvas, (last - first + 1) * PITCH, STRIP);
    const limit = limitOf(vectors.slice(first, last + 1).flat());
    const shown = /** @type {Shown} */ (this.#shown);
    for (let key = first; key <= last; key++) {
      const vector = vectors[key];
      const high = STRIP / vector.length;
      const hidden = shown.mask && key > shown.token;
      context.globalAlpha = hidden ? 0.25 : 1;
      vector.forEach((value, i) => {
        context.fillStyle = diverging(value * share(key), limit).fill;
        context.fillRect((key - first) * PITCH, i * high, PITCH - 4, high + 0.3);
      });
    }
    context.globalAlpha = 1;
  }

  /** Tell how the weight of one key came about. @param {number} wanted */
  #look(wanted) {
    const shown = this.#shown;
    if (!shown) return;
    const key = Math.max(0, Math.min(shown.tokens.length - 1, wanted));
    this.#key = key;
    this.#focus.style.left = `${GUTTER + key * PITCH - 2}px`;
    this.#focus.style.width = `${PITCH}px`;
    const { head, tokens, token, mask, scale } = shown;
    const names = [el("b", {}, visible(tokens[token].text)), " asks ", el("b", {}, visible(tokens[key].text)), ": "];
    const scores = `${format(head.scores[key], 3)} ÷ ${scale} = ${format(head.scaled[key], 3)}`;
    const fate = mask && head.masked[key] === null ? "; it lies ahead, so the mask makes it −∞ and its weight 0" : `; its share after the softmax is ${percent(weight(shown, key))}`;
    put(this.#readout, names, math("q · k"), ` = ${scores}${fate}.`);
  }
}

/** The key that is looked at most. @param {Shown} shown */
function best(shown) {
  let found = 0;
  for (let key = 1; key < shown.tokens.length; key++) if (weight(shown, key) > weight(shown, found)) found = key;
  return found;
}

/** A vector upright, beside the rows it belongs to. @param {HTMLCanvasElement} canvas @param {number[]} vector */
function drawStrip(canvas, vector) {
  const context = prepare(canvas, 22, STRIP);
  const limit = limitOf(vector);
  const high = STRIP / vector.length;
  vector.forEach((value, i) => {
    context.fillStyle = diverging(value, limit).fill;
    context.fillRect(0, i * high, 22, high + 0.3);
  });
  context.strokeStyle = colour("line-strong");
  context.strokeRect(0.5, 0.5, 21, STRIP - 1);
}

customElements.define("glass-scores", GlassScores);
export { GlassScores };
