// The guided tour: a card next to the page. Each step sets the page's state and highlights what it speaks of. Inside the
// card the left and right arrows turn its pages; the rest of the page remains usable.

import { isAbort, messageOf } from "../state/api.js";
import { el, put } from "../draw/draw.js";
import { store } from "../state/store.js";
import { tourFacts } from "./tour-facts.js";
import { figureOf } from "./tour-figures.js";
import { taskOf, textOf } from "./tour-text.js";
import { PLAIN, STEPS } from "./tour-steps.js";
import { messageFor, t } from "../languages/language.js";

const small = matchMedia("(max-width: 900px)");

/** @type {Element | null} where the focus was before the tour */
let opener = null;
/** @type {Partial<State> | null} what the page showed before the tour */
let before = null;
/** The step whose state the page has. */
let applied = -1;

/** Start the tour, or return to its card. @param {Element | null} from */
export function openTour(from) {
  if (store.get().tour === null) {
    opener = from;
    before = { ...store.get() };
    for (const kept of /** @type {const} */ (["theme", "wide", "tour", "welcome", "lang"])) delete before[kept];
    go(0);
  }
  document.querySelector("glass-tour")?.querySelector("h2")?.focus();
}

/** Close it; text, settings and place are as they were. */
export function closeTour() {
  if (store.get().tour === null) return;
  store.set({ ...(before ?? PLAIN), tour: null }, { push: false });
  [before, applied] = [null, -1];
  const back = opener instanceof HTMLElement && opener.isConnected && opener !== document.body ? opener : document.querySelector("#tools button");
  /** @type {HTMLElement | null} */ (back)?.focus();
}

/** @param {number} index */
function go(index) {
  if (index >= 0 && index < STEPS.length) store.set({ tour: index });
}

class GlassTour extends HTMLElement {
  /** @type {() => void} */ #stop = () => {};
  #shown = -1;
  /** Whether it says only what needs no model. */
  #early = false;
  /** Whether what is lit is kept in sight while numbers come in: until the user does something. */
  #follows = false;
  #numbers = new MutationObserver(() => requestAnimationFrame(() => this.#follows && this.#lightNow()));
  #userActs = () => (this.#follows = false);
  /** Figures have the colors of the theme. */
  #redraw = () => {
    const { name } = STEPS[this.#shown] ?? {};
    if (name) tourFacts().then((facts) => this.words.querySelector("svg")?.replaceWith(figureOf(name, facts)), () => {});
  };

  constructor() {
    super();
    this.heading = el("h2", { id: "tour-title", tabindex: -1 });
    this.words = el("div", { class: "tour-words", tabindex: 0, role: "group", "aria-label": t("tour.label") });
    this.where = el("select", { "aria-label": t("tour.steps"), onchange: () => go(Number(this.where.value)) },
      STEPS.map(({ name }, i) => el("option", { value: i }, t("tour.step", { n: i + 1, title: t(`tour.${name}`) }))));
    this.back = el("button", { onclick: () => go(this.#shown - 1) }, t("tour.back"));
    this.next = el("button", { class: "primary", onclick: () => (this.#shown === STEPS.length - 1 ? closeTour() : go(this.#shown + 1)) });
  }

  connectedCallback() {
    this.setAttribute("role", "dialog");
    this.setAttribute("aria-labelledby", "tour-title");
    this.hidden = true;
    this.append(
      el("div", { class: "tour-head" }, this.heading, el("button", { class: "close", "aria-label": t("tour.close"), onclick: closeTour }, "×")),
      this.words,
      el("div", { class: "tour-foot" }, this.back, this.where, this.next),
    );
    this.addEventListener("keydown", (event) => this.#onKey(event));
    this.#numbers.observe(document.body, { subtree: true, attributeFilter: ["data-shows"] });
    for (const name of ["pointerdown", "wheel", "keydown"]) addEventListener(name, this.#userActs, { capture: true, passive: true });
    document.addEventListener("glass-theme", this.#redraw);
    this.#stop = store.subscribe((changed) => {
      if (changed.has("tour") || changed.has("trace")) void this.#render();
      else if (changed.has("view") && this.#shown >= 0) this.#light();
    });
    void this.#render(); // the address may have asked for it before it was loaded
  }

  disconnectedCallback() {
    this.#stop();
    this.#numbers.disconnect();
    document.removeEventListener("glass-theme", this.#redraw);
    for (const name of ["pointerdown", "wheel", "keydown"]) removeEventListener(name, this.#userActs, { capture: true });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.target === this.words && (event.key === "ArrowUp" || event.key === "ArrowDown")) return event.stopPropagation(); // it scrolls
    const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 1, PageUp: -1 }[event.key];
    if (by === undefined || event.target === this.where || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(this.#shown + by);
  }

  async #render() {
    const { tour } = store.get();
    const index = tour === null ? -1 : Math.max(0, Math.min(STEPS.length - 1, Math.trunc(tour)));
    this.hidden = index < 0;
    document.body.classList.toggle("touring", index >= 0);
    if (index < 0) {
      this.#shown = -1;
      return this.#light();
    }
    const isNew = index !== this.#shown || this.#early;
    this.#early = false;
    this.#shown = index;
    const step = STEPS[index];
    put(this.heading, t(`tour.${step.name}`));
    this.where.value = String(index);
    this.back.disabled = index === 0;
    put(this.next, index === STEPS.length - 1 ? t("tour.done") : t("tour.next"));
    if (isNew) this.heading.focus({ preventScroll: true });
    if (!store.trace) return this.#showEarly(step); // it comes
    this.words.ariaBusy = "true"; // its numbers may be those of another text
    try {
      if (isNew && !this.words.firstChild) put(this.words, el("p", {}, t("computing")));
      const facts = await tourFacts();
      if (this.#shown !== index || facts.trace.id !== store.trace?.id) return;
      this.words.ariaBusy = "false";
      put(this.words, figureOf(step.name, facts), textOf(step, facts).map((paragraph) => el("p", {}, paragraph)),
        el("p", { class: "try" }, taskOf(step, facts)));
      if (isNew) this.words.scrollTop = 0;
      if (applied !== index) {
        applied = index;
        const state = { ...PLAIN, ...step.state(facts) };
        // The tower is a view of its own on a phone only; elsewhere it is always there.
        if (state.view === "tower" && !small.matches) state.view = "block";
        else if (step.look === "strip" && small.matches) state.view = "next";
        store.set(state);
      }
      this.#light();
    } catch (error) {
      if (isAbort(error)) return;
      this.words.ariaBusy = "false";
      put(this.words, el("p", { role: "alert" }, messageOf(error)));
    }
  }

  /** While the model is on its way: the sentences without numbers. @param {TourStep} step */
  #showEarly({ name }) {
    const ready = [1, 2].map((paragraph) => messageFor(`tour.${name}.${paragraph}`)).filter((message) => !message.includes("{"));
    put(this.words, [...ready, t("tour.early")].map((words) => el("p", {}, words)));
    this.#early = true; // with its numbers it is shown anew
  }

  /** Highlight what the step speaks of: now, when its view is loaded and drawn, and when its numbers come. */
  #light() {
    this.#follows = this.#shown >= 0;
    queueMicrotask(() => this.#lightNow());
    if (!this.#follows) return;
    const later = () => requestAnimationFrame(() => requestAnimationFrame(() => this.#follows && this.#lightNow()));
    void customElements.whenDefined(`glass-${STEPS[this.#shown].look}`).then(later);
  }

  #lightNow() {
    const step = STEPS[this.#shown];
    const view = step ? document.querySelector(`glass-${step.look}`) : null;
    const pane = view?.closest(".pane") ?? null;
    const part = (step?.at && [...(view?.querySelectorAll(step.at) ?? [])].find((found) => found.getClientRects().length > 0)) || null;
    for (const other of document.querySelectorAll(".pane.lit")) if (other !== pane) other.classList.remove("lit");
    for (const other of document.querySelectorAll(".lit-part")) if (other !== part) other.classList.remove("lit-part");
    pane?.classList.add("lit");
    part?.classList.add("lit-part");
    if (!pane) return;
    this.dataset.side = pane.classList.contains("panel") ? "left" : "right";
    bringIntoSight(/** @type {HTMLElement} */ (part ?? pane), small.matches ? innerHeight - this.offsetHeight : innerHeight);
  }
}

/** Scroll the sheet, or on a phone the page, so that an element begins in sight. @param {HTMLElement} element @param {number} bottom of what can be seen */
function bringIntoSight(element, bottom) {
  const sheet = element.closest("#sheet");
  const { top, height } = element.getBoundingClientRect();
  if (sheet instanceof HTMLElement && sheet.scrollHeight > sheet.clientHeight + 1) {
    const window = sheet.getBoundingClientRect();
    const bar = element.closest(".player") ? 0 : (/** @type {HTMLElement | null} */ (sheet.querySelector(".player"))?.offsetHeight ?? 0); // it stays on top
    const room = window.height - bar;
    if (top < window.top + bar || top + Math.min(height, room - 12) > window.bottom + 1) sheet.scrollTop += top - window.top - bar - 8;
  } else if (document.documentElement.scrollHeight > innerHeight + 1 && (top < 80 || top + Math.min(height, bottom - 100) > bottom)) {
    scrollBy(0, top - 92); // below the tabs
  }
}

customElements.define("glass-tour", GlassTour);
