// What all views have in common: they listen to the store while they are in the page, and draw once a frame at most.

import { store } from "./store.js";

/** A view: `wants` says after which changes it is drawn again, `render` draws it from the store. */
export class GlassView extends HTMLElement {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "theme"];
  /** @type {Set<Topic>} what has changed since it was drawn */
  #changed = new Set();
  /** @type {() => void} */
  #stop = () => {};
  /** @type {number} */
  #frame = 0;

  connectedCallback() {
    this.#stop = store.subscribe((changed) => {
      if (this.wants.some((topic) => changed.has(topic))) this.#schedule(changed);
    });
    document.addEventListener("glass-theme", this.#onTheme);
    if (store.trace) this.render(new Set(this.wants));
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

  /** Draw from the store. @param {Set<Topic>} _changed */
  render(_changed) {}
}
