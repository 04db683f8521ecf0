// A view as a picture: what the page shows of it, as rectangles, text and images of one SVG.

import { colour, svg } from "./draw.js";

const XMLNS = "http://www.w3.org/2000/svg";
const CLEAR = "rgba(0, 0, 0, 0)";

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */

/** The part of a box that another lets be seen. @param {Box} a @param {Box} b @returns {Box} */
const within = (a, b) => ({ left: Math.max(a.left, b.left), top: Math.max(a.top, b.top), right: Math.min(a.right, b.right), bottom: Math.min(a.bottom, b.bottom) });

/** @param {Element} view @returns {string} an SVG file */
export function pictureOf(view) {
  const whole = view.getBoundingClientRect();
  const ground = colour("pane");
  const root = svg("svg", { xmlns: XMLNS, width: Math.ceil(whole.width), height: Math.ceil(whole.height), viewBox: `${whole.left} ${whole.top} ${whole.width} ${whole.height}` });
  root.append(svg("rect", { x: whole.left, y: whole.top, width: whole.width, height: whole.height, fill: ground }));
  add(root, view, whole);
  return new XMLSerializer().serializeToString(root);
}

/** Draw an element and all in it, as far as it lies in `seen`. @param {SVGElement} root @param {Element} element @param {Box} seen */
function add(root, element, seen) {
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const part = within(box, seen);
  if (style.display === "none" || style.visibility === "hidden" || style.clipPath !== "none" || part.right <= part.left || part.bottom <= part.top) return;
  const opacity = style.opacity === "1" ? null : style.opacity;
  const [x, y, width, height] = [part.left, part.top, part.right - part.left, part.bottom - part.top];
  const border = parseFloat(style.borderTopWidth) > 0 && style.borderTopColor !== CLEAR ? style.borderTopColor : null;
  if (style.backgroundColor !== CLEAR || border) {
    const fill = style.backgroundColor === CLEAR ? "none" : style.backgroundColor;
    root.append(svg("rect", { x, y, width, height, rx: parseFloat(style.borderTopLeftRadius) || null, fill, stroke: border, opacity }));
  }
  if (element instanceof HTMLCanvasElement) {
    root.append(svg("image", { x: box.left, y: box.top, width: box.width, height: box.height, href: element.toDataURL(), opacity }));
  } else if (element instanceof SVGSVGElement) {
    const copy = /** @type {SVGElement} */ (element.cloneNode(true));
    const [from, to] = [element.querySelectorAll("*"), copy.querySelectorAll("*")];
    from.forEach((shape, i) => {
      const { fill, stroke, fontSize } = getComputedStyle(shape);
      for (const [name, value] of Object.entries({ fill, stroke, "font-size": fontSize })) to[i].setAttribute(name, value);
    });
    for (const [name, value] of Object.entries({ x: box.left, y: box.top, width: box.width, height: box.height })) copy.setAttribute(name, String(value));
    const clip = svg("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` }, copy);
    root.append(clip);
  } else {
    const inner = style.overflowX === "visible" ? seen : part;
    for (const child of element.childNodes) {
      if (child instanceof Element) add(root, child, inner);
      else if (child instanceof Text) write(root, child, style, inner);
    }
  }
}

/** Write a text, line by line as it was broken. @param {SVGElement} root @param {Text} text @param {CSSStyleDeclaration} style @param {Box} seen */
function write(root, text, style, seen) {
  const range = document.createRange();
  /** @type {{box: DOMRect, words: string}[]} */
  const lines = [];
  for (let i = 0; i < text.data.length; i++) {
    range.setStart(text, i);
    range.setEnd(text, i + 1);
    const box = range.getBoundingClientRect();
    const last = lines.at(-1);
    if (last && Math.abs(last.box.top - box.top) < 2) last.words += text.data[i];
    else if (box.width > 0) lines.push({ box, words: text.data[i] });
  }
  for (const { box, words } of lines) {
    if (box.left < seen.left - 1 || box.top < seen.top - 1 || box.left > seen.right || box.bottom > seen.bottom + 4) continue;
    const look = { fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight, "font-style": style.fontStyle };
    root.append(svg("text", { x: box.left, y: box.top + box.height * 0.78, "xml:space": "preserve", ...look }, words));
  }
}
