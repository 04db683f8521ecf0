// Formulas as HTML: "s_j = q · k_j / √d_{head}" with italic letters, subscripts and superscripts.

import { el } from "./draw.js";

/** @param {string} formula with _x or _{xy} for an index and ^x for a power @returns {HTMLElement} */
export function math(formula) {
  return el("span", { class: "math" }, parts(formula, true));
}

/** @param {string} formula @param {boolean} slanted whether single letters are variables: in an index they may be a name, as in W_q @returns {Child[]} */
function parts(formula, slanted) {
  return formula.split(/([_^](?:\{[^}]*\}|\S))/).flatMap((part) => {
    if (part.startsWith("_") || part.startsWith("^")) {
      const inner = part.slice(1).replace(/^\{|\}$/g, "");
      return [el(part.startsWith("_") ? "sub" : "sup", {}, parts(inner, /[_^]/.test(inner)))];
    }
    return part.split(/(\p{L}+)/u).map((word) => (slanted && /^\p{L}$/u.test(word) ? el("i", {}, word) : word));
  });
}
