// A sentence of welcome: what this model is, what to do first, and a few texts to begin with.

import { api } from "../state/api.js";
import { wordAt } from "../draw/attention-row.js";
import { el, percent, put } from "../draw/draw.js";
import { examplesOf, isOpen, named, knownExamples, openExample } from "../text/examples.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

class GlassWelcome extends HTMLElement {
  #opened = el("span", { class: "opened" });
  about = el("p");
  /** It shows the example that is open, so that the arrow keys go on from there. */
  #examples = el("select", { id: "examples", onchange: () => this.#take(), disabled: api.offline });
  #listed = "";
  /** @type {() => void} */ #stop = () => {};

  connectedCallback() {
    this.append(
      this.about,
      el("label", { for: "examples" }, t("welcome.examples")),
      this.#examples,
      el("button", { class: "close", "aria-label": t("welcome.close"), onclick: () => store.set({ welcome: false }) }, "×"),
    );
    this.#stop = store.subscribe((changed) => {
      if (changed.has("welcome") || changed.has("info") || changed.has("model")) this.#render();
      if (["trace", "token", "layer", "head"].some((topic) => changed.has(/** @type {Topic} */ (topic)))) this.#sayWhere();
      if (changed.has("info") || changed.has("model")) {
        const told = () => [this.#list(), this.#sayWhere()]; // the model's kind is known
        void examplesOf(store.get().model).then(told, () => {});
      }
      this.#list();
    });
    this.#render(); // made anew in another language, it is told of no change
    this.#sayWhere();
    this.#list();
  }

  disconnectedCallback() {
    this.#stop();
  }

  /** The model's examples, and which of them is open. */
  #list() {
    const { examples } = knownExamples();
    const names = JSON.stringify(examples.map(({ name }) => name));
    if (names !== this.#listed) put(this.#examples, el("option", { value: "" }, t("welcome.own")),
      examples.map(named).map(({ name, words }, i) =>
      el("option", { value: i, title: words }, t("aside", { name, words }))));
    this.#listed = names;
    const open = examples.findIndex(isOpen);
    this.#examples.value = open < 0 ? "" : String(open);
  }

  #take() {
    const found = this.#examples.value === "" ? undefined : knownExamples().examples[Number(this.#examples.value)];
    if (found) openExample(found);
  }

  /** Which head the page opened, and by which rule, while the cursor is there. */
  #sayWhere() {
    const { trace } = store;
    if (!trace?.salient_head || !store.isAtSalientHead) return put(this.#opened);
    const { layer, head, first, last, share } = trace.salient_head;
    put(this.#opened, t(knownExamples().kind === "music" ? "welcome.event" : "welcome.word", { layer, head,
      from: wordAt(trace, trace.tokens.length - 1), to: wordAt(trace, first, last), share: percent(share) }));
  }

  #render() {
    this.hidden = !store.get().welcome;
    const model = store.info?.models[store.get().model];
    if (!model) return;
    const whose = model.shipped ? t("welcome.shipped") : t("welcome.other", { name: model.name });
    put(this.about, say("welcome.about", { whose, opened: this.#opened }));
  }
}

customElements.define("glass-welcome", GlassWelcome);
