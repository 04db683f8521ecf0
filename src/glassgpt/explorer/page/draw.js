// Helpers to make elements, pictures and numbers. Text enters the page only as text nodes.

const SVG = "http://www.w3.org/2000/svg";


/**
 * An element with attributes and children. `on...` adds a listener, `style` takes an object, `true` an empty attribute;
 * false, null and undefined leave an attribute out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * The same for SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @template {HTMLElement | SVGElement} E
 * @param {E} element
 * @param {Record<string, any>} attributes
 * @param {(Child | Child[])[]} children
 * @returns {E}
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, v] of Object.entries(value)) element.style.setProperty(property, String(v));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** @param {(Child | Child[])[]} children @returns {(Node | string)[]} */
function nodes(children) {
  /** @type {(Node | string)[]} */
  const found = [];
  for (const child of children.flat()) {
    if (child === false || child === null || child === undefined) continue;
    found.push(child instanceof Node ? child : String(child));
  }
  return found;
}

/** Put other children in an element. @param {Element} element @param {...(Child | Child[])} children */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/** The same, and the focus stays on the button that is now in the place of the one that had it. @param {Element} box @param {...(Child | Child[])} children */
export function exchange(box, ...children) {
  const at = [...box.querySelectorAll("button")].indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
  put(box, ...children);
  if (at >= 0) box.querySelectorAll("button")[at]?.focus();
}

/** A scale with a word at either end. @param {string} from @param {string} kind @param {string} to */
export function ramp(from, kind, to) {
  return el("div", { class: "shades" }, from, el("span", { class: `ramp ${kind}`, "aria-hidden": "true" }), to);
}

/** The named one of the page's colours, as the present theme has it. @param {string} name such as "ink" */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** @typedef {[number, number, number]} Rgb */

/** @param {string} hex such as #0f6b7a @returns {Rgb} */
function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** @type {Map<string, Rgb[]>} the stops of each scale, read once for a theme */
const stops = new Map();

/** Forget the colours: the theme has changed. */
export function forgetColours() {
  stops.clear();
}

/** @param {string[]} names @returns {Rgb[]} */
function stopsOf(names) {
  const key = names.join();
  const known = stops.get(key);
  if (known) return known;
  const found = names.map((name) => rgb(colour(name)));
  stops.set(key, found);
  return found;
}

/** @param {Rgb[]} between @param {number} at from 0 to 1 @returns {Rgb} */
function mix(between, at) {
  const place = Math.max(0, Math.min(1, Number.isFinite(at) ? at : 0)) * (between.length - 1);
  const low = Math.min(Math.floor(place), between.length - 2);
  const share = place - low;
  const [a, b] = [between[low], between[low + 1]];
  /** @param {0 | 1 | 2} i */
  const part = (i) => Math.round(a[i] + (b[i] - a[i]) * share);
  return [part(0), part(1), part(2)];
}

/** @param {Rgb} colour */
const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

/** Black or white, whichever can be read on this. @param {Rgb} colour */
function ink([r, g, b]) {
  const linear = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light > 0.19 ? "#0b1418" : "#ffffff";
}

/** Each scale is three colours of style.css: nothing, some, much. */
const SCALES = {
  probability: ["p-0", "p-1", "p-2"],
  surprise: ["s-0", "s-1", "s-2"],
  attention: ["a-0", "a-1", "a-2"],
};

/**
 * A colour for a share from 0 to 1, and the ink to write on it.
 * @param {keyof typeof SCALES} name
 * @param {number} share
 */
export function shade(name, share) {
  const found = mix(stopsOf(SCALES[name]), share);
  return { fill: css(found), ink: ink(found), rgb: found };
}

/** A colour for a number between -limit and limit: blue below zero, orange above. @param {number} value @param {number} limit */
export function diverging(value, limit) {
  const found = mix(stopsOf(["d-minus", "d-zero", "d-plus"]), limit > 0 ? 0.5 + value / (2 * limit) : 0.5);
  return { fill: css(found), ink: ink(found), rgb: found };
}

/** How surprising a probability is, from 0 (sure) to 1 (16 bits or more). @param {number} p */
export function surpriseShare(p) {
  return Math.min(1, -Math.log2(Math.max(p, 1e-30)) / 16);
}

/** A number in a few characters. @param {number | null | undefined} value @param {number} [digits] */
export function format(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 10 ** -digits || size >= 1e6) ? value.toExponential(1) : value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : digits);
  return text.replace("-", "−");
}

/** A probability as a percentage that never claims 0 or 100 for what is neither. @param {number} p */
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

/** A token with its white space visible. @param {string} text */
export function visible(text) {
  if (text === "") return "∅";
  return text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

/** A token for a narrow place. @param {string} text @param {number} most characters */
export function short(text, most) {
  const shown = [...visible(text)];
  return shown.length > most ? `${shown.slice(0, most - 1).join("")}…` : shown.join("");
}

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
  context.clearRect(0, 0, width, height);
  return context;
}

/**
 * A picture as a file of its own: the nodes on the page's background, with its fonts.
 * @param {number} width @param {number} height @param {Node[]} children
 */
export function svgText(width, height, children) {
  const root = svg(
    "svg",
    { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif", "font-size": 12 },
    svg("rect", { width, height, fill: colour("ground") }),
    children,
  );
  return new XMLSerializer().serializeToString(root);
}
