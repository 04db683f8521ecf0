// <glass-scores>: one query against every key. Columns are tokens; rows go from their keys to the weighted values.

import { color, diverging, el, format, percent, pixels, prepare, put, shade, short, svg, visible } from "../draw/draw.js";
import { hover } from "../state/hover.js";
import { math } from "../draw/math.js";
import { limitOf } from "../draw/vector.js";
import { Drawn } from "../view.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const PITCH = 54;
const GUTTER = 96;
const STRIP = 44;
const MARGIN = 8;

/**
 * @typedef {{head: HeadSteps, z: number[], weights: number[], tokens: Token[], token: number, mask: boolean, scale: string, name: string,
   frame: import("./player.js").Frame | null}} ScoreData
 * @typedef {{text: string, fill?: string, ink?: string, dim?: boolean}} Score
 * @typedef {{formula: string, key?: string, high: number, cell?: (shown: ScoreData, key: number) => Score}} Line
 */

/** @type {Line[]} */
const LINES = [
  { formula: "token", key: "scores.token", high: 24, cell: ({ tokens }, key) => ({ text: short(tokens[key].text, 7) }) },
  { formula: "k_j", high: STRIP + 6 },
  { formula: "q · k_j", high: 22, cell: ({ head }, key) => ({ text: format(head["attn.scores"][key], 2) }) },
  { formula: "÷ √d", high: 22, cell: ({ head }, key) => ({ text: format(head["attn.scaled"][key], 2) }) },
  { formula: "mask", key: "scores.mask", high: 22, cell: (shown, key) => (isHidden(shown, key) ? { text: "−∞", dim: true } : { text: format(shown.head["attn.scaled"][key], 2) }) },
  { formula: "softmax", high: 26, cell: ({ weights }, key) => ({ text: percent(weights[key]), ...shade("attention", weights[key]) }) },
  { formula: "a_j v_j", high: STRIP + 6 },
];

/** Whether the player has come to this cell. @param {ScoreData} shown @param {number} line @param {number} key */
const isReached = ({ frame }, line, key) => frame === null || line < frame.line || (line === frame.line && key <= frame.key);

/**
 * Whether it came there with this frame.
 * @param {ScoreData} shown @param {number} line @param {number} key @param {number} before the last key of the frame before
 */
const isFresh = ({ frame }, line, key, before) => frame !== null && line === frame.line && key <= frame.key && key > before;

/** Whether the mask hides this key from the query. @param {ScoreData} shown @param {number} key */
const isHidden = ({ head, mask }, key) => mask && head["attn.masked"][key] === null;

export class GlassScores extends Drawn {
  /** @type {ScoreData | null} */ #shown = null;
  #table = el("div", { class: "table", role: "table", "aria-label": t("scores.label") });
  #readout = el("p", { class: "small", "aria-live": "polite" });
  #query = el("canvas", { "aria-hidden": "true" });
  #sum = el("canvas", { "aria-hidden": "true" });
  #keys = el("canvas", { "aria-hidden": "true" });
  #values = el("canvas", { "aria-hidden": "true" });
  #figures = [this.#figure(t("scores.keys"), this.#keys), this.#figure(t("scores.values"), this.#values)];
  #highlight = el("div", { class: "highlight", "aria-hidden": "true" });
  /** @type {HTMLElement[]} */ #lines = [];
  /** @type {[number, number]} the columns that are drawn */ #range = [0, -1];
  #left = 0;
  #key = 0;
  /** @type {import("./player.js").Frame | null} the frame drawn before */ #before = null;
  #subject = "";

  build() {
    this.#lines = LINES.map(({ formula, key, high }) => {
      const label = el("div", { class: "gutter", role: "rowheader", style: { width: `${GUTTER}px`, height: `${high}px` } }, math(key ? t(key) : formula));
      if (formula === "k_j") label.append(el("span", { class: "beside" }, math("q"), this.#query));
      if (formula === "a_j v_j") label.append(el("span", { class: "beside" }, math("z"), this.#sum));
      const figure = { k_j: this.#figures[0], "a_j v_j": this.#figures[1] }[formula];
      return el("div", { class: "line", role: "row", style: { height: `${high}px` } }, label, figure ?? []);
    });
    this.#table.append(this.#highlight, ...this.#lines);
    this.box.setAttribute("aria-label", t("scores.box"));
    this.box.append(this.#table);
    this.append(this.box, this.#readout);
    this.box.addEventListener("scroll", () => {
      this.#left = this.box.scrollLeft;
      this.#columns(false);
    });
    this.box.addEventListener("mousemove", ({ clientX }) => {
      const inGutter = clientX - this.box.getBoundingClientRect().left < GUTTER;
      if (inGutter) return;
      this.#describe(Math.floor((clientX - this.#table.getBoundingClientRect().left - GUTTER) / PITCH));
      hover(this.#key);
    });
    this.box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      this.#describe(this.#key + by);
      this.#reveal(this.#key);
    });
  }

  /** @param {number | null} token */
  light(token) {
    if (token !== null) this.#describe(token);
  }

  /** @param {ScoreData} shown */
  show(shown) {
    this.#shown = shown;
    const { tokens, token, weights } = shown;
    this.#table.style.width = `${GUTTER + tokens.length * PITCH}px`;
    const subject = `${tokens.map(({ id }) => id).join()} ${token} ${shown.name}`;
    if (subject !== this.#subject) {
      this.#subject = subject;
      this.#key = weights.indexOf(Math.max(...weights));
      for (const key of [token, this.#key]) this.#reveal(key); // if not both have room, the one that is read
    }
    this.draw();
    this.#describe(this.#key);
  }

  /** Scroll a column into view. @param {number} key */
  #reveal(key) {
    const x = key * PITCH;
    if (x < this.#left) this.#left = x - PITCH;
    else if (x + PITCH > this.#left + this.width - GUTTER) this.#left = x + 2 * PITCH - this.width + GUTTER;
    else return;
    this.#left = Math.max(0, this.#left);
    requestAnimationFrame(() => (this.box.scrollLeft = this.#left)); // now, it would lay out the page once more
  }

  draw() {
    if (!this.#shown) return;
    upright(this.#query, this.#shown.head["attn.q"]);
    upright(this.#sum, sumSoFar(this.#shown));
    this.#columns(true);
  }

  /** Draw the visible columns. @param {boolean} force even if they are drawn */
  #columns(force) {
    const shown = this.#shown;
    if (!shown) return;
    const first = Math.max(0, Math.floor(this.#left / PITCH) - MARGIN);
    const last = Math.min(shown.tokens.length - 1, Math.ceil((this.#left + this.width) / PITCH) + MARGIN);
    if (!force && first >= this.#range[0] && last <= this.#range[1]) return;
    this.#range = [first, last];
    LINES.forEach(({ cell }, place) => cell && this.#cells(shown, cell, place));
    for (const figure of this.#figures) figure.style.left = `${GUTTER + first * PITCH}px`;
    this.#strips(this.#keys, shown, shown.head["attn.k"], 1, () => 1);
    this.#strips(this.#values, shown, shown.head["attn.v"], 6, (key) => shown.weights[key]);
    this.#flow(shown);
    this.#before = shown.frame;
  }

  /** Fill a line; its elements stay, for other keys. @param {ScoreData} shown @param {NonNullable<Line["cell"]>} content @param {number} place of the line */
  #cells(shown, content, place) {
    const [first, last] = this.#range;
    const line = this.#lines[place];
    const before = this.#before?.line === place && this.#before.stage === shown.frame?.stage ? this.#before.key : -1;
    while (line.childElementCount > last - first + 2) line.lastElementChild?.remove();
    for (let key = first; key <= last; key++) {
      const { text, fill, ink, dim } = isReached(shown, place, key) ? content(shown, key) : { text: "" };
      const fresh = isFresh(shown, place, key, before) ? ` fresh is-${shown.frame?.stage}` : "";
      const cell = /** @type {HTMLElement} */ (line.children[key - first + 1]
        ?? line.appendChild(el("div", { role: "cell", style: { width: `${PITCH - 4}px` } })));
      cell.className = `score${dim ? " dim" : ""}${key === shown.token ? " self" : ""}${fresh}`;
      cell.dataset.token = String(key);
      cell.style.left = `${GUTTER + key * PITCH}px`;
      cell.style.background = fill ?? "";
      cell.style.color = ink ?? "";
      cell.textContent = text;
    }
  }

  /** Lines from the values that the player has just added, to z. @param {ScoreData} shown */
  #flow(shown) {
    const { frame, weights } = shown;
    this.#lines[6].querySelector(".flow")?.remove();
    if (frame?.stage !== "values") return;
    const [first, last] = this.#range;
    const paths = [];
    for (let key = first; key <= Math.min(last, frame.key); key++) {
      const from = GUTTER + (key + 0.5) * PITCH;
      const now = isFresh(shown, 6, key, this.#before?.stage === "values" ? this.#before.key : -1);
      paths.push(svg("path", { class: now ? "fresh" : "", d: `M${from} 4 C${from} -12 ${GUTTER - 19} -14 ${GUTTER - 19} 4`,
        "stroke-width": 1 + 6 * weights[key], "stroke-opacity": (now ? 0.35 : 0.12) + 0.5 * weights[key] }));
    }
    this.#lines[6].append(svg("svg", { class: "flow", "aria-hidden": "true" }, paths));
  }

  /** @param {string} label @param {HTMLCanvasElement} canvas */
  #figure(label, canvas) {
    return el("div", { class: "strips", role: "cell", "aria-label": label }, canvas);
  }

  /**
   * Vectors side by side. A value is drawn with the colors of its weighted numbers; a frame keeps small ones in sight.
   * @param {HTMLCanvasElement} canvas @param {ScoreData} shown @param {number[][]} vectors @param {number} line @param {(key: number) => number} share
   */
  #strips(canvas, shown, vectors, line, share) {
    const [first, last] = this.#range;
    const context = prepare(canvas, (last - first + 1) * PITCH, STRIP);
    const seen = vectors.slice(first, last + 1);
    const [count, long, limit] = [seen.length, seen[0].length, limitOf(seen.flat())];
    // The root lets small weights be seen, as in the patterns.
    const limits = seen.map((_, i) => limit / (Math.sqrt(share(first + i)) || 1e-9));
    const image = pixels(count, long, (i) => diverging(seen[i % count][Math.floor(i / count)], limits[i % count]).rgb);
    context.strokeStyle = color("line-strong");
    for (let i = 0; i < count; i++) {
      if (!isReached(shown, line, first + i)) continue;
      context.globalAlpha = isHidden(shown, first + i) ? 0.25 : 1;
      context.drawImage(image, i, 0, 1, long, i * PITCH, 0, PITCH - 4, STRIP);
      context.strokeRect(i * PITCH + 0.5, 0.5, PITCH - 5, STRIP - 1);
    }
  }

  /** Describe how the weight of one key is computed. @param {number} wanted */
  #describe(wanted) {
    const shown = this.#shown;
    if (!shown) return;
    const { head, tokens, token, weights, scale } = shown;
    const key = Math.max(0, Math.min(tokens.length - 1, wanted));
    this.#key = key;
    this.#highlight.style.left = `${GUTTER + key * PITCH - 2}px`;
    this.#highlight.style.width = `${PITCH}px`;
    const fate = isHidden(shown, key) ? t("scores.later") : t("scores.weight", { share: percent(weights[key]) });
    put(this.#readout, say("scores.says", { from: el("b", {}, visible(tokens[token].text)), to: el("b", {}, visible(tokens[key].text)),
      product: math("q · k"), score: format(head["attn.scores"][key]), scale, scaled: format(head["attn.scaled"][key]), fate }));
  }
}

/** z, or what the player has added up of it. @param {ScoreData} shown @returns {number[]} */
export function sumSoFar({ frame, z, weights, head }) {
  if (frame === null || frame.line > 6 || (frame.line === 6 && frame.key === weights.length - 1)) return z;
  const last = frame.line < 6 ? -1 : frame.key;
  return z.map((_, i) => weights.slice(0, last + 1).reduce((sum, weight, key) => sum + weight * head["attn.v"][key][i], 0));
}

/** A vector upright in a frame, one number below the other, next to the rows it belongs to. @param {HTMLCanvasElement} canvas @param {number[]} vector */
function upright(canvas, vector) {
  const context = prepare(canvas, 22, STRIP);
  const limit = limitOf(vector);
  context.drawImage(pixels(1, vector.length, (i) => diverging(vector[i], limit).rgb), 0, 0, 22, STRIP);
  context.strokeStyle = color("line-strong");
  context.strokeRect(0.5, 0.5, 21, STRIP - 1);
}

customElements.define("glass-scores", GlassScores);
