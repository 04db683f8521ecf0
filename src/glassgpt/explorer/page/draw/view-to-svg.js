// A view as an SVG file: rectangles, text and images, as the page shows them.

import { color, svg } from "./draw.js";

const CLEAR = "rgba(0, 0, 0, 0)";
const MARGIN = 12;

/**
 * @typedef {{left: number, top: number, right: number, bottom: number}} Box
 * @typedef {{z: number, shape: SVGElement}} Layer
 * @typedef {{append: (...shapes: SVGElement[]) => void}} Root
 */

/** @param {Element} view @returns {string} an SVG file */
export function viewToSVG(view) {
  const whole = view.getBoundingClientRect();
  const [x, y, width, height] = [whole.left - MARGIN, whole.top - MARGIN, Math.ceil(whole.width) + 2 * MARGIN, Math.ceil(whole.height) + 2 * MARGIN];
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `${x} ${y} ${width} ${height}` });
  root.append(svg("rect", { x, y, width, height, fill: color("pane") }));
  /** @type {Layer[]} */
  const layers = [];
  add(layers, view, whole, 0);
  layers.sort((a, b) => a.z - b.z); // stable: what is on one level stays in order
  root.append(...layers.map(({ shape }) => shape));
  return new XMLSerializer().serializeToString(root);
}

/**
 * Add an element and its children, clipped to `seen`. A z-index lifts it above its parent's level.
 * @param {Layer[]} layers @param {Element} element @param {Box} seen @param {number} level
 */
function add(layers, element, seen, level) {
  const style = getComputedStyle(element);
  const z = style.position !== "static" && style.zIndex !== "auto" ? Number(style.zIndex) : level;
  const root = { append: (/** @type {SVGElement[]} */ ...shapes) => void layers.push(...shapes.map((shape) => ({ z, shape }))) };
  const box = element.getBoundingClientRect();
  const part = { left: Math.max(box.left, seen.left), top: Math.max(box.top, seen.top), right: Math.min(box.right, seen.right),
    bottom: Math.min(box.bottom, seen.bottom) };
  const place = { x: part.left, y: part.top, width: part.right - part.left, height: part.bottom - part.top };
  if (style.display === "none" || style.visibility === "hidden" || style.clipPath !== "none" || place.width <= 0 || place.height <= 0) return;
  if (element.matches("[type=checkbox]")) return checkbox(root, /** @type {HTMLInputElement} */ (element), box);
  if (element.matches("[type=range]")) return slider(root, /** @type {HTMLInputElement} */ (element), box);
  const opacity = style.opacity === "1" ? null : style.opacity;
  const framed = style.borderLeftWidth !== "0px" && style.borderTopWidth !== "0px";
  if (style.backgroundColor !== CLEAR || framed) {
    root.append(svg("rect", { ...place, rx: parseFloat(style.borderTopLeftRadius) || null, fill: style.backgroundColor.replace(CLEAR, "none"),
      stroke: framed ? style.borderTopColor : null, opacity }));
  }
  const ring = parseFloat(style.outlineWidth);
  if (style.outlineStyle !== "none" && ring > 0) {
    const gap = parseFloat(style.outlineOffset) + ring / 2;
    root.append(svg("rect", { x: place.x - gap, y: place.y - gap, width: place.width + 2 * gap, height: place.height + 2 * gap, rx: 6, fill: "none",
      stroke: style.outlineColor, "stroke-width": ring }));
  }
  const ramp = style.backgroundImage.match(/rgba?\([^)]*\)/g) ?? [];
  if (ramp.length > 0) {
    const id = `ramp-${ramp.join("").replace(/[^\d.]+/g, "-")}`;
    root.append(svg("linearGradient", { id },
      ramp.map((color, i) => svg("stop", { offset: i / Math.max(1, ramp.length - 1), "stop-color": color }))),
      svg("rect", { ...place, rx: parseFloat(style.borderTopLeftRadius) || null, fill: `url(#${id})`, opacity }));
  }
  if (element instanceof HTMLCanvasElement) {
    root.append(svg("image", { x: box.left, y: box.top, width: box.width, height: box.height, href: element.toDataURL(), opacity }));
  } else if (element instanceof SVGSVGElement) {
    root.append(copyOf(element, box, place));
  } else if (element.matches("[type=text], textarea, select")) {
    const words = element instanceof HTMLSelectElement ? element.selectedOptions[0]?.text : /** @type {HTMLInputElement} */ (element).value;
    root.append(svg("text", { x: box.left + 10, y: box.top + box.height / 2 + 5, fill: style.color, "font-size": style.fontSize,
      "font-family": style.fontFamily }, words));
  } else {
    const inner = style.overflowX === "visible" ? seen : part;
    for (const child of element.childNodes) {
      if (child instanceof Element) add(layers, child, inner, z);
      else if (child instanceof Text) write(root, child, style, inner);
    }
  }
}

/** A checkbox, with its tick. @param {Root} root @param {HTMLInputElement} input @param {DOMRect} box */
function checkbox(root, { checked }, { left, top, width, height }) {
  root.append(svg("rect", { x: left, y: top, width, height, rx: 3, fill: checked ? color("accent") : "none",
    stroke: color(checked ? "accent" : "line-strong") }));
  if (checked) root.append(svg("path", { d: `M${left + 0.22 * width} ${top + 0.52 * height}l${0.2 * width} ${0.22 * height}l${0.36 * width} ` +
    `${-0.46 * height}`, fill: "none", stroke: color("pane"), "stroke-width": 2 }));
}

/** A slider: its track and its thumb. @param {Root} root @param {HTMLInputElement} input @param {DOMRect} box */
function slider(root, { min, max, value }, box) {
  const cx = box.left + 8 + ((box.width - 16) * (Number(value) - Number(min))) / (Number(max) - Number(min) || 1);
  const cy = box.top + box.height / 2;
  root.append(svg("line", { x1: box.left, x2: box.right, y1: cy, y2: cy, stroke: color("line-strong"), "stroke-width": 4 }),
    svg("circle", { cx, cy, r: 7, fill: color("accent") }));
}

/**
 * An SVG inside the view, with its computed colors, clipped to the visible part.
 * @param {SVGSVGElement} element @param {DOMRect} box @param {{x: number, y: number, width: number, height: number}} place
 */
function copyOf(element, box, place) {
  const copy = /** @type {SVGElement} */ (element.cloneNode(true));
  const shapes = copy.querySelectorAll("*");
  element.querySelectorAll("*").forEach((shape, i) => {
    const { fill, stroke, strokeWidth, paintOrder, fontSize, fontFamily } = getComputedStyle(shape);
    for (const [name, value] of Object.entries({ fill, stroke, "stroke-width": strokeWidth, "paint-order": paintOrder, "font-size": fontSize,
      "font-family": fontFamily })) shapes[i].setAttribute(name, value);
  });
  for (const [name, value] of Object.entries({ x: box.left, y: box.top, width: box.width, height: box.height })) copy.setAttribute(name, String(value));
  return svg("svg", clip({ left: place.x, top: place.y, right: place.x + place.width, bottom: place.y + place.height }), copy);
}

/** The attributes of an SVG that shows a part of the view where it is. @param {Box} part */
function clip({ left, top, right, bottom }) {
  const place = { x: left, y: top, width: right - left, height: bottom - top };
  return { ...place, viewBox: `${left} ${top} ${place.width} ${place.height}` };
}

/** Add a text, line by line as it wraps. @param {Root} root @param {Text} text @param {CSSStyleDeclaration} style @param {Box} seen */
function write(root, text, style, seen) {
  const range = document.createRange();
  /** @type {(Box & {words: string})[]} */
  const lines = [];
  for (let i = 0; i < text.data.length; i++) {
    range.setStart(text, i);
    range.setEnd(text, i + 1);
    const { left, top, right, bottom, width } = range.getBoundingClientRect();
    const last = lines.at(-1);
    if (last && Math.abs(last.top - top) < 2) {
      last.words += text.data[i];
      last.right = Math.max(last.right, right);
    } else if (width > 0) lines.push({ left, top, right, bottom, words: text.data[i] });
  }
  for (const { left, top, right, bottom, words } of lines) {
    if (right < seen.left || bottom < seen.top || left > seen.right || top > seen.bottom) continue;
    const look = { fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight,
      "font-style": style.fontStyle };
    const line = svg("text", { x: left, y: top + (bottom - top) * 0.78, "xml:space": "preserve", ...look }, words);
    const inside = left >= seen.left - 1 && top >= seen.top - 1 && right <= seen.right + 1 && bottom <= seen.bottom + 4;
    root.append(inside ? line : svg("svg", clip(seen), line));
  }
}
