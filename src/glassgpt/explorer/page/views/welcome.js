// A sentence of welcome: what this model is, what to do first, and a few texts to begin with.

import { api } from "../state/api.js";
import { wordAt } from "../draw/attention-row.js";
import { el, percent, put } from "../draw/draw.js";
import { examplesOf, isOpen, knownExamples, openExample } from "../text/examples.js";
import { store } from "../state/store.js";
import { term } from "../text/terms.js";

class GlassWelcome extends HTMLElement {
  #opened = el("span", { class: "opened" });
  about = el("p");
  /** It shows the example that is open, so that the arrow keys go on from there. */
  #examples = el("select", { id: "examples", onchange: () => this.#take(), disabled: api.offline });
  #listed = "";

  connectedCallback() {
    this.append(
      this.about,
      el("label", { for: "examples" }, "Examples"),
      this.#examples,
      el("button", { class: "close", "aria-label": "Close the welcome", onclick: () => store.set({ welcome: false }) }, "×"),
    );
    store.subscribe((changed) => {
      if (changed.has("welcome") || changed.has("info") || changed.has("model")) this.#render();
      if (["trace", "token", "layer", "head"].some((topic) => changed.has(/** @type {Topic} */ (topic)))) this.#sayWhere();
      if (changed.has("info") || changed.has("model")) void examplesOf(store.get().model).then(() => this.#list(), () => {});
      this.#list();
    });
  }

  /** The model's examples, and which of them is open. */
  #list() {
    const { examples } = knownExamples();
    const names = JSON.stringify(examples.map(({ name }) => name));
    if (names !== this.#listed) put(this.#examples, el("option", { value: "" }, "your own text"),
      examples.map(({ name, words }, i) => el("option", { value: i, title: words }, `${name} (${words})`)));
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
    put(this.#opened, `Shown is block ${layer}, head ${head}: of all heads it is where “${wordAt(trace, trace.tokens.length - 1)}” looks back most ` +
      `at one ${knownExamples().kind === "music" ? "event" : "word"}, “${wordAt(trace, first, last)}” (${percent(share)}). `);
  }

  #render() {
    this.hidden = !store.get().welcome;
    const model = store.info?.models[store.get().model];
    if (!model) return;
    const whose = model.shipped
      ? "a GPT-2 that this project trained itself (not OpenAI’s: much smaller, and it knows far less)"
      : `the model ${model.name}`;
    put(
      this.about,
      el("b", {}, "Welcome. "),
      `This is ${whose}. It has cut the text below into `,
      term("token", "tokens"),
      ", and guesses the next after each. Every number here is its own. ",
      this.#opened,
      el("b", {}, "Click any cell"),
      " to see how it came about, or press Explain for a tour. ",
      term("␣", "“␣”"),
      " is a space.",
    );
  }
}

customElements.define("glass-welcome", GlassWelcome);
