// The token under the pointer, wherever it is shown: all that carries its number lights up, in every view.

/** @typedef {(token: number | null) => void} Listener */

/** @type {Set<Listener>} what is drawn on a canvas has no elements to light */
const listeners = new Set();
/** @type {number | null} */
let current = null;

/** @param {Listener} listener @returns {() => void} unsubscribe */
export function onHover(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function hovered() {
  return current;
}

/** Light a token, or none. @param {number | null} token */
export function hover(token) {
  if (token === current) return;
  current = token;
  light();
  for (const listener of listeners) listener(token);
}

/** Mark the elements of the token again, after some were replaced. */
export function light() {
  for (const old of document.querySelectorAll(".hovered")) old.classList.remove("hovered");
  if (current === null) return;
  for (const element of document.querySelectorAll(`[data-token="${current}"]`)) element.classList.add("hovered");
}

/** @param {Event} event */
function follow({ target }) {
  const found = target instanceof Element ? target.closest("[data-token]") : null;
  if (found) hover(Number(found.getAttribute("data-token")));
  else if (!(target instanceof HTMLCanvasElement)) hover(null); // a canvas reports its own
}

document.addEventListener("mouseover", follow);
document.addEventListener("focusin", follow);
