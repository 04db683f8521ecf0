// Words that need a sentence: dotted underneath, explained on hover, focus or touch.

import { el, put } from "../draw/draw.js";

/** @type {Record<string, string>} */
const TERMS = {
  "residual stream": "The list of numbers that carries a token up the tower. Every block reads it and adds to it; nothing is ever replaced.",
  bits: "How unexpected a token was: −log₂ of its probability. 0 bits: certain. 1 bit: as likely as not. 10 bits: one chance in about a thousand.",
  nats: "The same measure as bits, with natural logarithms: 1 nat is 1.44 bits.",
  "logit lens": "What the model would say if it had to stop here: the stream at this height is sent through the last LayerNorm and the token " +
    "table, as if it had reached the top.",
  "␣": "A space. Most tokens begin with one, so “␣it” and “it” are two different tokens. ↵ is a line break.",
  token: "A piece of text from a fixed list: a frequent word, a part of a rare one, or a single byte such as <d9>. The model reads and writes " +
    "token numbers only.",
  logit: "A token’s score before the softmax: any number; larger is more likely.",
  softmax: "Turns scores into probabilities: raise e to each, divide by the sum.",
  "KL divergence": "How far one distribution is from another, in nats; 0 if they are equal.",
  "residual norm": "The length of the vector: the root of the sum of its squares.",
  neuron: "One of the numbers inside the MLP. It is large when its input points along the direction it reads, and then adds its own direction to the stream.",
  head: "One of several attentions that run side by side in a block, each with its own queries, keys and values.",
};

/** A word with its explanation. @param {string} name a key of TERMS @param {string} [shown] */
export function term(name, shown = name) {
  return el("span", { class: "term", tabindex: 0, role: "note", "aria-label": `${shown}: ${TERMS[name]}`, "data-term": name }, shown);
}

/** @returns {HTMLElement} */
const card = () => /** @type {HTMLElement} */ (document.getElementById("term-card"));

/** @param {Event} event */
function show({ target }) {
  const found = target instanceof Element ? target.closest("[data-term]") : null;
  const box = card();
  box.hidden = !(found instanceof HTMLElement);
  if (!(found instanceof HTMLElement)) return;
  put(box, el("b", {}, found.dataset.term), el("p", {}, TERMS[found.dataset.term ?? ""]));
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
