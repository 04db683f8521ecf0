// Formulas as HTML: "s_j = q · k_j / √d_{head}" with italic letters, subscripts and superscripts.

import { el } from "./draw.js";

/** @param {string} formula with _x or _{xy} for an index and ^x for a power @returns {HTMLElement} */
export function math(formula) {
  const parts = formula.split(/([_^](?:\{[^}]*\}|\S))/);
  const children = parts.flatMap((part) => {
    if (part.startsWith("_") || part.startsWith("^")) {
      const inner = part.slice(1).replace(/^\{|\}$/g, "");
      return [el(part.startsWith("_") ? "sub" : "sup", {}, inner)];
    }
    return part.split(/(\p{L}+)/u).map((word) => (/^\p{L}$/u.test(word) ? el("i", {}, word) : word));
  });
  return el("span", { class: "math" }, children);
}
