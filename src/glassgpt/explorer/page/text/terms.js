// Words that need a sentence: dotted underneath, explained on hover, focus or touch. And sentences with such words.

import { el, put } from "../draw/draw.js";
import { fillIn, messageFor, t, valueOf } from "../languages/language.js";

/** A word with its explanation. @param {string} name the messages are `term.NAME` and `term.NAME.says` @param {string} [shown] */
export function term(name, shown = t(`term.${name}`)) {
  return el("span", { class: "term", tabindex: 0, role: "note", "aria-label": `${shown}: ${t(`term.${name}.says`)}`, "data-term": name }, shown);
}

/** What a message is made of: a value, a plural, the begin or end of bold words, or a word to explain. */
const PARTS = /\{(\w+)(?:\?([^|}]*)\|([^}]*))?\}|\*\*|\[([^\]]*)\]\((\w+)\)/g;

/**
 * A message as nodes: values may be elements, **words** are bold, [words](name) are explained.
 * @param {string} key @param {Record<string, Child | Child[]>} [values] @returns {Child[]}
 */
export function say(key, values = {}) {
  const message = messageFor(key);
  /** @type {Child[]} */ const said = [];
  /** @type {Child[] | null} */ let bold = null;
  let at = 0;
  const add = (/** @type {Child | Child[]} */ what) => void (bold ?? said).push(...[what].flat());
  for (const found of message.matchAll(PARTS)) {
    add(message.slice(at, found.index));
    at = found.index + found[0].length;
    const [, name, one, other, words, explained] = found;
    if (name) add(valueOf(values, name, one, other));
    else if (explained) add(term(explained, fillIn(words, values)));
    else if (bold) {
      said.push(el("b", {}, ...bold));
      bold = null;
    } else bold = [];
  }
  add(message.slice(at));
  return said.filter((child) => child !== "");
}

/** @returns {HTMLElement} */
const card = () => /** @type {HTMLElement} */ (document.getElementById("term-card"));

/** @param {Event} event */
function show({ target }) {
  const found = target instanceof Element ? target.closest("[data-term]") : null;
  const box = card();
  box.hidden = !(found instanceof HTMLElement);
  if (!(found instanceof HTMLElement)) return;
  put(box, el("b", {}, t(`term.${found.dataset.term}`)), el("p", {}, t(`term.${found.dataset.term}.says`)));
  const place = found.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const below = place.bottom + 6;
  box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
  box.style.top = `${below + height > innerHeight ? Math.max(8, place.top - height - 6) : below}px`;
}

for (const name of ["mouseover", "focusin"]) document.addEventListener(name, show);
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") card().hidden = true;
});
document.addEventListener("scroll", () => (card().hidden = true), { capture: true, passive: true });
