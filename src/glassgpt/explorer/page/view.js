// The base of all views: subscribed to the store while in the page, rendered at once, but once per frame.

import { isAbort, messageOf } from "./state/api.js";
import { el, put } from "./draw/draw.js";
import { onHover } from "./state/hover.js";
import { viewToSVG } from "./draw/view-to-svg.js";
import { store } from "./state/store.js";
import { t } from "./languages/language.js";

/** @type {Map<GlassView, Set<Topic>>} the views to render, with what has changed for each */
const waiting = new Map();
/** Whether this frame has been rendered: further changes wait for the next one. */
let rendered = false;

/** @type {(() => void)[]} */
let measures = [];
let rendering = false;

/** Measure or scroll once all views are rendered: in between, the browser would lay out everything each time. @param {() => void} measure */
export function afterRender(measure) {
  if (measures.length === 0 && !rendering) queueMicrotask(measureAll);
  measures.push(measure);
}

function measureAll() {
  const all = measures;
  measures = [];
  for (const measure of all) measure();
}

/** How many answers the views wait for. */
let awaited = 0;
/** Whether a view waits for an answer. */
export const isComputing = () => awaited > 0;

/** @param {1 | -1} by */
function countAwaited(by) {
  awaited += by;
  document.dispatchEvent(new CustomEvent("glass-computing"));
}

/** Render them in one go, so that what they ask the server for goes out together. */
function renderAll() {
  const views = [...waiting];
  waiting.clear();
  rendered = rendering = true;
  requestAnimationFrame(() => {
    rendered = false;
    if (waiting.size > 0) renderAll();
  });
  for (const [view, changed] of views) {
    try {
      if (store.trace && view.isConnected) view.render(changed);
    } catch (error) {
      reportError(error); // the other views are still shown
    }
  }
  rendering = false;
  queueMicrotask(measureAll); // after the requests are sent
}

/** @param {GlassView} view @param {Set<Topic>} changed */
function schedule(view, changed) {
  if (waiting.size === 0 && !rendered) queueMicrotask(renderAll);
  waiting.set(view, new Set([...(waiting.get(view) ?? []), ...changed]));
}

/** A view: `build` fills it once, `render` updates it from the store after changes of the topics in `wants`. */
export class GlassView extends HTMLElement {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "theme"];
  /** Where a view shows errors. */
  problem = el("p", { class: "problem", role: "alert" });
  /** @type {() => void} */
  #stop = () => {};

  connectedCallback() {
    if (!this.firstChild) this.build();
    this.#stop = store.subscribe((changed) => {
      if (this.wants.some((topic) => changed.has(topic))) schedule(this, changed);
    });
    store.foreseen.add(this.foresee);
    document.addEventListener("glass-theme", this.#onTheme);
    if (store.trace) this.render(new Set(/** @type {Topic[]} */ ([...this.wants, "theme"])));
  }

  disconnectedCallback() {
    this.#stop();
    store.foreseen.delete(this.foresee);
    waiting.delete(this);
    document.removeEventListener("glass-theme", this.#onTheme);
  }

  #onTheme = () => schedule(this, new Set(/** @type {Topic[]} */ (["theme"])));

  /** How many answers each part of the view waits for. @type {Map<HTMLElement, number>} */
  #awaited = new Map();
  /** The parts that an answer failed to come for. @type {Set<HTMLElement>} */
  #failed = new Set();

  /**
   * Use a response when it arrives, or show its error. What is shown until then, or after an error, belongs to what
   * was asked before: that part is gray from now on.
   * @template T
   * @param {Promise<T>} response @param {(value: T) => void} use @param {HTMLElement} [part] that it fills; by default, the whole view
   */
  async load(response, use, part = this) {
    this.#await(part, 1);
    this.#failed.delete(part);
    try {
      use(await response);
      if (this.#failed.size === 0) put(this.problem);
    } catch (error) {
      if (isAbort(error)) return; // a newer request has taken its place
      this.#failed.add(part);
      put(this.problem, `${messageOf(error)}${this.hasNumbers ? t("view.before") : ""}`);
    } finally {
      this.#await(part, -1);
    }
  }

  /** @param {HTMLElement} part @param {1 | -1} by */
  #await(part, by) {
    const left = (this.#awaited.get(part) ?? 0) + by;
    this.#awaited.set(part, left);
    const is = (/** @type {HTMLElement} */ one) => (this.#awaited.get(one) ?? 0) > 0;
    // A class, not the attribute: with each change of that, all styles in the view would be computed.
    part.classList.toggle("stale", left > 0 || this.#failed.has(part));
    part.classList.toggle("failed", left === 0 && this.#failed.has(part));
    part.ariaBusy = String(left > 0);
    this.dataset.shows = [...this.#awaited.keys()].some(is) ? "loading" : this.#failed.size > 0 ? "stale" : "ready";
    countAwaited(by);
  }

  /** Gray the view: its numbers are of before, and the store asks for the new ones. @param {boolean} is */
  gray(is) {
    this.classList.toggle("stale", is);
    this.ariaBusy = String(is);
  }

  /** Whether there are numbers of an earlier answer. */
  get hasNumbers() {
    return true;
  }

  /** What the view will ask about a text that ends at this token. @type {(token: number) => string[]} */
  foresee = () => [];

  /** Fill the element, once. */
  build() {}

  /** Update from the store. @param {Set<Topic>} _changed */
  render(_changed) {}

  /** The view as an SVG file. */
  toSVG() {
    return viewToSVG(this);
  }
}

/** What comes within this time needs no "computing…", which would flicker and cost a frame. */
export const PATIENCE_MS = 200;

/** A part of a view that fits its box: redrawn when the box or the theme changes. */
export class Drawn extends HTMLElement {
  box = el("div", { class: "window", tabindex: 0, role: "group" });
  /** The width of the box; reading it from the box would force a layout each time. */
  width = 0;
  #watch = new ResizeObserver(([{ contentRect: { width } }]) => {
    if (width === this.width) return; // it is higher because of what was drawn
    this.width = width;
    this.draw();
  });
  #again = () => this.draw();
  /** @type {() => void} */ #quiet = () => {};

  connectedCallback() {
    if (!this.firstChild) this.build();
    this.#quiet = onHover((token) => this.light(token));
    this.#watch.observe(this.box);
    document.addEventListener("glass-theme", this.#again);
  }

  disconnectedCallback() {
    this.#watch.disconnect();
    this.#quiet();
    document.removeEventListener("glass-theme", this.#again);
  }

  build() {}
  draw() {}
  /** The pointer is on a token somewhere, or on none. @param {number | null} _token */
  light(_token) {}
}
