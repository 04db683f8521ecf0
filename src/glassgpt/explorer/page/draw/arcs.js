// Attention as arcs over the token strip: from one token to those it looks at, as strong as their weights.

import { api } from "../state/api.js";
import { attentionRow, patternPath, PATTERN_TOKENS, wordsAttended } from "./attention-row.js";
import { el, exchange, put, svg, visible, wholePercent } from "./draw.js";
import { hovered, onHover } from "../state/hover.js";
import { eventLabel } from "../music/music-events.js";
import { store } from "../state/store.js";
import { afterRender } from "../view.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const LEAST = 0.015; // weights below this are not drawn
const MOST = 40; // arcs
const LABELLED = 0.08; // weights from here on are written down
const HALF = 12; // half the width of a label, in pixels
const HOWS = /** @type {const} */ (["head", "mean", "off"]);

/** @typedef {{x: number, top: number, bottom: number}} Place of a chip, in pixels of the box */

export class Arcs {
  picture = svg("svg", { class: "arcs", role: "img" });
  #choice = el("div", { class: "choice", role: "group", "aria-label": t("arcs.label") });
  #says = el("p", { class: "small", "aria-live": "off" });
  controls = el("div", { class: "looks" }, this.#says, this.#choice);
  #box;
  #chips;
  /** @type {(weights: number[], token: number) => boolean} draws it elsewhere, on the piano roll, if there is one */ #elsewhere;
  /** @type {Place[]} */ #places = [];
  #drawn = "";
  #watch = new ResizeObserver(() => this.moved());

  /** @param {HTMLElement} box of the chips @param {() => HTMLElement[]} chips @param {(weights: number[], token: number) => boolean} elsewhere */
  constructor(box, chips, elsewhere) {
    this.#box = box;
    this.#chips = chips;
    this.#elsewhere = elsewhere;
    this.#watch.observe(box);
    onHover(() => this.draw());
    document.addEventListener("glass-computing", () => box.isConnected && this.draw()); // the row of the head has come: the pattern is coarser
  }

  /** The chips may have moved. */
  moved() {
    this.#places = [];
    this.#drawn = "";
    this.draw();
  }

  /** Draw the cursor's attention; of a token under the pointer, its own. */
  draw() {
    const { trace } = store;
    if (!trace) return;
    const { arcs } = store.get();
    const { layer, head, token: at } = store.cursor;
    const pointed = hovered();
    const token = pointed !== null && pointed < trace.tokens.length ? pointed : at;
    const weights = arcs === "off" ? [] : attentionRow(trace, token, arcs === "mean");
    const what = JSON.stringify([trace.id, layer, head, token, arcs, weights]);
    if (what === this.#drawn) return;
    this.#drawn = what;
    const onRoll = this.#elsewhere(weights, token);
    this.#box.classList.toggle("has-arcs", arcs !== "off" && layer >= 0 && !onRoll);
    this.#control(layer, head, arcs);
    this.#say(trace, weights, token);
    if (weights.length === 0 || onRoll) put(this.picture);
    else afterRender(() => this.#paint(trace, weights, token));
    if (weights.length === 0 && arcs !== "off" && layer >= 0 && trace.tokens.length <= PATTERN_TOKENS && !api.peek(patternPath(trace, layer))) {
      void api.get(patternPath(trace, layer)).then(() => this.draw(), () => {}); // the tower says what is wrong
    }
  }

  /** @param {number} layer @param {number} head @param {State["arcs"]} arcs */
  #control(layer, head, arcs) {
    const names = { head: t("arcs.head", { head: `${layer}.${head}` }), mean: t("arcs.mean", { layer }), off: t("arcs.off") };
    this.controls.hidden = layer < 0;
    exchange(this.#choice, HOWS.map((how) => el("button", { "aria-pressed": String(how === arcs), onclick: () => store.set({ arcs: how }) }, names[how])));
  }

  /** @param {Trace} trace @param {number[]} weights @param {number} token */
  #say(trace, weights, token) {
    const found = wordsAttended(trace, weights, 3);
    const name = (/** @type {string} */ text) => eventLabel(text) ?? visible(text).replace(/^␣/, "");
    const from = name(trace.tokens[token].text);
    const words = found.flatMap(({ text, share }, i) => [i ? ", " : "", el("b", {}, name(text)), ` ${wholePercent(share)}`]);
    put(this.#says, found.length > 0 && say("arcs.says", { from: el("b", {}, from), words }));
    const attended = found.map(({ text, share }) => `“${name(text)}” ${wholePercent(share)}`).join(", ");
    this.picture.setAttribute("aria-label", attended ? t("arcs.picture", { from, words: attended }) : t("arcs.none"));
  }

  /** Where the chips are; reading it lays out the page, so it is done once for each text and size. */
  #measure() {
    if (this.#places.length === 0) this.#places = this.#chips().map(({ offsetLeft, offsetTop, offsetWidth, offsetHeight }) =>
      ({ x: offsetLeft + offsetWidth / 2, top: offsetTop, bottom: offsetTop + offsetHeight }));
    return this.#places;
  }

  /** @param {Trace} trace @param {number[]} weights @param {number} token */
  #paint(trace, weights, token) {
    if (trace !== store.trace) return;
    const places = this.#measure();
    const from = places[token];
    if (!from) return;
    const [width, height] = [Math.max(...places.map(({ x }) => x)) + 60, Math.max(...places.map(({ bottom }) => bottom))];
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) this.picture.setAttribute(name, String(value));
    const room = Math.min(...places.map(({ top }) => top)); // above the first line
    const strongest = weights.map((weight, key) => ({ weight, key })).filter(({ weight, key }) => weight >= LEAST && places[key]).sort((a, b) =>
      b.weight - a.weight).slice(0, MOST).reverse();
    const farthest = Math.max(1, ...strongest.filter(({ key }) => places[key]?.top === from.top).map(({ key }) => Math.abs(places[key].x - from.x)));
    const paths = strongest.map(({ weight, key }) => {
      const self = key === token;
      return svg("path", { d: curve(from, places[key], self, room, farthest), "data-token": key, "stroke-width": 1 + (self ? 2 : 5) * weight,
        "stroke-opacity": 0.22 + 0.78 * weight });
    });
    put(this.picture, paths, labels(strongest.filter(({ key }) => key !== token).reverse(), places, from));
  }
}

/**
 * The largest weights, each at the end of its arc, where there is room. @param {{weight: number, key: number}[]} strongest
 * @param {Place[]} places @param {Place} from
 */
function labels(strongest, places, from) {
  /** @type {{x: number, y: number}[]} */ const taken = [];
  return strongest.map(({ weight, key }) => {
    const to = places[key];
    const x = Math.max(HALF, to.x); // the number is not cut off at the edge
    const y = to.top === from.top ? to.top - 4 : to.bottom + 10;
    if (weight < LABELLED || taken.some((other) => other.y === y && Math.abs(other.x - x) < 2 * HALF)) return null;
    taken.push({ x, y });
    return svg("text", { x, y, "text-anchor": "middle", "data-token": key }, wholePercent(weight));
  });
}

/**
 * On one line an arc above it, the wider the higher; from another line a curve that enters from below.
 * @param {Place} from @param {Place} to @param {boolean} self @param {number} room @param {number} farthest
 */
function curve(from, to, self, room, farthest) {
  const y = from.top - 1;
  if (self) return `M${from.x + 4} ${y}c10 -${room * 0.8} -18 -${room * 0.8} -8 0`;
  if (to.top !== from.top) {
    const middle = (y + to.bottom + 1) / 2;
    return `M${from.x} ${y}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.bottom + 1}`;
  }
  const high = (room - 4) * (0.45 + 0.85 * Math.sqrt(Math.abs(to.x - from.x) / farthest));
  return `M${from.x} ${y}C${from.x} ${y - high} ${to.x} ${y - high} ${to.x} ${y}`;
}
