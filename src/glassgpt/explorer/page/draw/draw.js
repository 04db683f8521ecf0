// Helpers for elements, colors and number formats. Text enters the page only as text nodes.

import { eventLabel, eventName } from "../music/music-events.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element; a button does not submit. `on...` adds a listener, `style` takes an object, `true` an empty attribute; false, null and undefined leave one out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} [attributes] @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), tag === "button" ? { type: "button", ...attributes } : attributes, children);
}

/**
 * The same for SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} [attributes] @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @template {HTMLElement | SVGElement} E
 * @param {E} element @param {Record<string, any>} attributes @param {(Child | Child[])[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (isNothing(value)) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, v] of Object.entries(value)) element.style.setProperty(property, String(v));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** @param {unknown} value */
const isNothing = (value) => value === false || value === null || value === undefined;

/** @param {(Child | Child[])[]} children */
function nodes(children) {
  return children.flat().filter((child) => !isNothing(child)).map((child) => (child instanceof Node ? child : String(child)));
}

/** Replace the children of an element. @param {Element} element @param {...(Child | Child[])} children */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/** The same, keeping the focus on the button at the same index. @param {Element} box @param {...(Child | Child[])} children */
export function exchange(box, ...children) {
  const at = [...box.querySelectorAll("button")].indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
  put(box, ...children);
  if (at >= 0) box.querySelectorAll("button")[at]?.focus();
}

/** A color scale with a label at either end. @param {string} from @param {string} kind @param {string} to */
export function ramp(from, kind, to) {
  return el("div", { class: "shades" }, from, el("span", { class: `ramp ${kind}`, "aria-hidden": "true" }), to);
}

/** @type {Map<string, string>} the colors of the theme that were asked for: reading one makes the browser compute all styles */
const colors = new Map();

/** A color of the current theme. @param {string} name such as "ink" */
export function color(name) {
  const known = colors.get(name);
  if (known !== undefined) return known;
  const found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  if (found) colors.set(name, found);
  return found;
}

/** @typedef {[number, number, number]} Rgb */
/** @typedef {{fill: string, ink: string, rgb: Rgb}} Shade a color, and what to write on it with */

/** Each scale is three colors of style.css: nothing, some, much; or below, at and above zero. */
const SCALES = {
  probability: ["p-0", "p-1", "p-2"],
  loss: ["s-0", "s-1", "s-2"],
  attention: ["a-0", "a-1", "a-2"],
  diverging: ["d-minus", "d-zero", "d-plus"],
};

/** @type {Map<string, Shade[]>} the 256 shades of each scale, cached for the theme */
const tables = new Map();

/** Clear the cache when the theme changes. */
export function resetColors() {
  colors.clear();
  tables.clear();
}

/** @param {keyof typeof SCALES} name @returns {Shade[]} */
export function shades(name) {
  const known = tables.get(name);
  if (known) return known;
  const stops = SCALES[name].map((stop) => parseInt(color(stop).slice(1), 16)).map((hex) => [hex >> 16, (hex >> 8) & 255, hex & 255]);
  const made = Array.from({ length: 256 }, (_, i) => {
    const [a, b] = i < 128 ? stops : stops.slice(1);
    const share = i < 128 ? i / 127.5 : i / 127.5 - 1;
    const [red, green, blue] = a.map((part, j) => Math.round(part + (b[j] - part) * share));
    return { fill: `rgb(${red} ${green} ${blue})`, ink: inkOn(red, green, blue), rgb: /** @type {Rgb} */ ([red, green, blue]) };
  });
  tables.set(name, made);
  return made;
}

/** Black or white: at this luminance both have a contrast of 4.58 to the color, elsewhere the chosen one has more. @param {...number} parts */
function inkOn(...parts) {
  const [r, g, b] = parts.map((part) => (part / 255 <= 0.04045 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** The color of a value from 0 to 1. @param {"probability" | "loss" | "attention"} name @param {number} value */
export function shade(name, value) {
  return shades(name)[Math.round(255 * Math.max(0, Math.min(1, value || 0)))];
}

/** The color of a number between -limit and limit. @param {number} value @param {number} limit */
export function diverging(value, limit) {
  return shades("diverging")[Math.round(127.5 * (1 + Math.max(-1, Math.min(1, value / limit || 0))))];
}

/** The colors of a model's parts in the tally and the tour, by how the names of their matrices begin. @type {Record<string, () => Shade>} */
export const PARTS = {
  wte: () => shade("probability", 0.55),
  wpe: () => shade("loss", 0.5),
  "attn.": () => shade("attention", 0.55),
  "mlp.": () => diverging(0.6, 1),
  lm_head: () => shade("probability", 0.8),
};

/**
 * A canvas with one pixel per value, to be drawn at any size.
 * @param {number} columns @param {number} rows @param {(i: number) => Rgb | null} colorOf
 */
export function pixels(columns, rows, colorOf) {
  const image = new ImageData(columns, rows);
  for (let i = 0; i < columns * rows; i++) {
    const found = colorOf(i);
    if (!found) continue;
    [image.data[4 * i], image.data[4 * i + 1], image.data[4 * i + 2]] = found;
    image.data[4 * i + 3] = 255;
  }
  const canvas = new OffscreenCanvas(columns, rows);
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** The loss of a token with this probability, from 0 (certain) to 1 (16 bits or more). @param {number} p */
export function lossLevel(p) {
  return Math.min(1, -Math.log2(Math.max(p, 1e-30)) / 16);
}

/** A number with a few digits. @param {number | null | undefined} value @param {number} [digits] */
export function format(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 10 ** -digits || size >= 1e6) ? value.toExponential(1) : value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : digits);
  return text.replace("-", "−");
}

/** A probability as a percentage, never rounded to 0 or 100. @param {number} p */
export function percent(p) {
  const value = 100 * p;
  if (value === 0 || value === 100) return `${value}%`;
  if (value < 0.01) return "<0.01%";
  if (value > 99.99) return ">99.99%";
  return `${value.toFixed(value < 1 ? 2 : value < 10 ? 1 : value > 99 ? 2 : 0)}%`;
}

/** The same in at most four characters. @param {number} p */
export function brief(p) {
  const value = 100 * p;
  if (value >= 99.5) return value === 100 ? "100%" : ">99%";
  if (value < 0.1) return value === 0 ? "0%" : "<.1%";
  return value < 9.95 ? `${value.toFixed(1)}%` : `${Math.round(value)}%`;
}

/** A share in whole percents: for weights that are known as bytes only. @param {number} share */
export function wholePercent(share) {
  const value = Math.round(100 * share);
  return value === 100 && share < 1 ? ">99%" : `${value}%`;
}

/** A token with visible white space; an event of music by its name. @param {string} text */
export function visible(text) {
  if (text === "") return "∅";
  const event = eventName(text);
  if (event) return event;
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

/** A token, truncated. @param {string} text @param {number} most characters */
export function short(text, most) {
  const shown = [...(eventLabel(text, most) ?? visible(text))];
  return shown.length > most ? `${shown.slice(0, most - 1).join("")}…` : shown.join("");
}

/** About how wide a text is at 11 pixels, with letters of 6.2: those of Korean and Chinese are twice as wide as Latin ones. @param {string} text */
export const widthOf = (text) => [...text].reduce((sum, letter) => sum + (letter >= "\u1100" ? 11 : 6.2), 0);

/**
 * A canvas of this many CSS pixels, sharp on every screen, and its context.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 */
export function prepare(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.imageSmoothingEnabled = false;
  return context;
}
