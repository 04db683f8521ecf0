// What all views have in common: they listen to the store while they are in the page, and draw once a frame at most.

import { isAbort, messageOf } from "./api.js";
import { el, put } from "./draw.js";
import { pictureOf } from "./picture.js";
import { store } from "./store.js";

/** A view: `wants` says after which changes it is drawn again; `build` fills it once, `render` draws it from the store. */
export class GlassView extends HTMLElement {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "theme"];
  /** Where a view says what went wrong. */
  problem = el("p", { class: "problem", role: "alert" });
  /** @type {Set<Topic>} what has changed since it was drawn */
  #changed = new Set();
  /** @type {() => void} */
  #stop = () => {};
  #frame = 0;

  connectedCallback() {
    if (!this.firstChild) this.build();
    this.#stop = store.subscribe((changed) => {
      if (this.wants.some((topic) => changed.has(topic))) this.#schedule(changed);
    });
    document.addEventListener("glass-theme", this.#onTheme);
    if (store.trace) this.render(new Set(/** @type {Topic[]} */ ([...this.wants, "theme"])));
  }

  disconnectedCallback() {
    this.#stop();
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    document.removeEventListener("glass-theme", this.#onTheme);
  }

  #onTheme = () => this.#schedule(new Set(/** @type {Topic[]} */ (["theme"])));

  /** @param {Set<Topic>} changed */
  #schedule(changed) {
    for (const topic of changed) this.#changed.add(topic);
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      const all = this.#changed;
      this.#changed = new Set();
      if (store.trace) this.render(all);
    });
  }

  /**
   * Use an answer when it comes, or say why there is none.
   * @template T
   * @param {Promise<T>} question @param {(answer: T) => void} use
   */
  async ask(question, use) {
    try {
      use(await question);
      put(this.problem);
    } catch (error) {
      if (!isAbort(error)) put(this.problem, messageOf(error));
    }
  }

  /** Fill the element, once. */
  build() {}

  /** Draw from the store. @param {Set<Topic>} _changed */
  render(_changed) {}

  /** The view as a file. */
  toSVG() {
    return pictureOf(this);
  }
}

/** A part of a view that fits its box: drawn again when the box or the theme changes. */
export class Drawn extends HTMLElement {
  box = el("div", { class: "window", tabindex: 0, role: "group" });
  /** The width of the box; asking the box itself would have the browser lay the page out at each question. */
  width = 0;
  #watch = new ResizeObserver(([{ contentRect }]) => {
    this.width = contentRect.width;
    this.draw();
  });
  #again = () => this.draw();

  connectedCallback() {
    if (!this.firstChild) this.build();
    this.#watch.observe(this.box);
    document.addEventListener("glass-theme", this.#again);
  }

  disconnectedCallback() {
    this.#watch.disconnect();
    document.removeEventListener("glass-theme", this.#again);
  }

  build() {}
  draw() {}
}
