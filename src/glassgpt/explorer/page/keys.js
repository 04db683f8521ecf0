// Keyboard shortcuts. Views add their own; "?" lists them all.

import { el, put } from "./draw/draw.js";

/** @typedef {{keys: string[], what: string, run: (event: KeyboardEvent) => void}} Binding */

/** @type {Binding[]} */
const bindings = [];

/**
 * Bind keys, named as in KeyboardEvent.key, to an action. Returns a function that unbinds them.
 * @param {string[]} keys @param {string} what @param {(event: KeyboardEvent) => void} run
 */
export function bind(keys, what, run) {
  const binding = { keys, what, run };
  bindings.push(binding);
  return () => void bindings.splice(bindings.indexOf(binding), 1);
}

/** List all current bindings. */
export function showKeys() {
  const rows = bindings.flatMap(({ keys, what }) => [el("dt", {}, keys.map((key) => el("kbd", {}, NAMES[key] ?? key))), el("dd", {}, what)]);
  put(/** @type {HTMLElement} */ (document.getElementById("keys-list")), rows);
  /** @type {HTMLDialogElement} */ (document.getElementById("keys")).showModal();
}

/** @type {Record<string, string>} how some keys are written */
const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

/** Whether the focused element handles this key itself. @param {KeyboardEvent} event */
function isTaken(event) {
  const target = event.target;
  if (!(target instanceof HTMLElement)) return false;
  if (target.closest("dialog[open]")) return true;
  if (target.matches("textarea, select, [contenteditable]")) return true;
  if (/^Arrow(Up|Down)$/.test(event.key) && target.closest("[role=tablist]")) return false; // the tabs are side by side
  const arrow = event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
  if (target instanceof HTMLInputElement) {
    const moves = target.type === "range" || target.type === "radio";
    return moves ? arrow : !["checkbox", "button"].includes(target.type);
  }
  return arrow && target.closest("[role=tablist], [role=listbox], [role=radiogroup]") !== null;
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTaken(event)) return;
  const binding = bindings.findLast(({ keys }) => keys.includes(event.key));
  if (!binding) return;
  event.preventDefault();
  binding.run(event);
});
