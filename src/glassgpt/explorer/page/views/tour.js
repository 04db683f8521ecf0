// The guided tour: a card beside the page. Each step sets the page's state and highlights a view. Inside the card
// the left and right arrows turn its pages; the rest of the page remains usable.

import { el, put } from "../draw.js";
import { store } from "../store.js";
import { figureOfStep } from "../tour-figures.js";
import { STEPS } from "../tour-steps.js";

/** @type {Element | null} where the focus was before the tour */
let opener = null;

/** Start the tour, or return to its card. @param {Element | null} from */
export function openTour(from) {
  const { tour } = store.get();
  if (tour === null) {
    opener = from;
    go(0);
  }
  document.querySelector("glass-tour")?.querySelector("h2")?.focus();
}

export function closeTour() {
  if (store.get().tour === null) return;
  store.set({ tour: null });
  const back = opener instanceof HTMLElement && opener !== document.body ? opener : document.querySelector("#tools button");
  /** @type {HTMLElement | null} */ (back)?.focus();
}

/** @param {number} index */
function go(index) {
  if (index >= 0 && index < STEPS.length) store.set({ tour: index, ...STEPS[index].state });
}

class GlassTour extends HTMLElement {
  /** @type {() => void} */ #stop = () => {};
  #shown = -1;

  constructor() {
    super();
    this.heading = el("h2", { id: "tour-title", tabindex: -1 });
    this.words = el("div", { class: "tour-words", tabindex: 0 });
    this.where = el("select", { "aria-label": "Step of the tour", onchange: () => go(Number(this.where.value)) }, STEPS.map(({ title }, i) => el("option", { value: i }, `${i + 1}. ${title}`)));
    this.back = el("button", { type: "button", onclick: () => go(this.#shown - 1) }, "Back");
    this.next = el("button", { type: "button", class: "primary", onclick: () => (this.#shown === STEPS.length - 1 ? closeTour() : go(this.#shown + 1)) });
  }

  connectedCallback() {
    this.setAttribute("role", "dialog");
    this.setAttribute("aria-labelledby", "tour-title");
    this.hidden = true;
    this.append(
      el("div", { class: "tour-head" }, this.heading, el("button", { type: "button", class: "close", "aria-label": "Close the tour", onclick: closeTour }, "×")),
      this.words,
      el("div", { class: "tour-foot" }, this.back, this.where, this.next),
    );
    this.addEventListener("keydown", (event) => this.#onKey(event));
    this.#stop = store.subscribe((changed) => {
      if (changed.has("tour") || changed.has("view")) this.#render();
    });
  }

  disconnectedCallback() {
    this.#stop();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.target === this.words && (event.key === "ArrowUp" || event.key === "ArrowDown")) return event.stopPropagation(); // it scrolls
    const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 1, PageUp: -1 }[event.key];
    if (by === undefined || event.target === this.where || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(this.#shown + by);
  }

  #render() {
    const { tour } = store.get();
    const index = tour === null ? -1 : Math.max(0, Math.min(STEPS.length - 1, Math.trunc(tour)));
    this.hidden = index < 0;
    document.body.classList.toggle("touring", index >= 0);
    queueMicrotask(() => this.#light(index < 0 ? null : STEPS[index].look)); // when the panel shows its view
    if (index === this.#shown) return;
    this.#shown = index;
    if (index < 0) return;
    const { title, text, go: tryThis, figure: label } = STEPS[index];
    put(this.heading, title);
    put(this.words, figureOfStep(index, label), text.map((paragraph) => el("p", {}, paragraph)), el("p", { class: "try" }, tryThis));
    this.words.scrollTop = 0;
    this.where.value = String(index);
    this.back.disabled = index === 0;
    put(this.next, index === STEPS.length - 1 ? "Done" : "Next");
    this.heading.focus({ preventScroll: true });
  }

  /** Highlight the pane of a step; the card is on the other side. @param {string | null} look */
  #light(look) {
    const pane = look === null ? null : (document.querySelector(`glass-${look}`)?.closest(".pane") ?? null);
    for (const other of document.querySelectorAll(".pane.lit")) if (other !== pane) other.classList.remove("lit");
    if (!pane) return;
    const isNew = !pane.classList.contains("lit");
    pane.classList.add("lit");
    this.dataset.side = pane.classList.contains("panel") ? "left" : "right";
    if (isNew) pane.scrollIntoView({ block: "start" });
  }
}

customElements.define("glass-tour", GlassTour);
