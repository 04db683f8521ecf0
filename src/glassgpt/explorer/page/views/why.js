// Why this word? Where a next token's logit comes from: the tokens of the text, and the parts of the model. And steering.

import { api, isAbort } from "../state/api.js";
import { diverging, el, exchange, format, percent, put, ramp, shade, short, svg, visible, color } from "../draw/draw.js";
import { figure, label, named, Panel, current } from "../panel.js";
import { Sampler } from "../next/sampling.js";
import { Steering } from "../edits/steering.js";
import { store } from "../state/store.js";
import { term } from "../text/terms.js";

const SHOWN = 6; // candidates to choose from
const BARS = 14;

/** @type {[name: string, title: string, words: string][]} */
const METHODS = [
  ["input_x_gradient", "gradient", "How much the logit would change along each token’s embedding, at this very point. Quick, and coarse."],
  ["integrated_gradients", "integrated gradients", "The same, averaged over the way from an empty text to this one; the scores sum to what the " +
    "text adds to the logit."],
  ["attention_rollout", "attention rollout", "Attention alone, multiplied through all blocks: where this token’s information came from. The shares " +
    "sum to one; they do not depend on the word. Most heads rest on the first token, so it often gets nearly all."],
];

/** Whether a method works here: gradients need PyTorch. An older exported file does not say. @param {string} name */
const works = (name) => store.info?.methods?.includes(name) ?? true;

class GlassWhy extends Panel {
  /** @type {Topic[]} */ wants = ["trace", "token", "target", "method", "edits", "theme"];
  #choice = el("div", { class: "choice targets", role: "group", "aria-label": "The word to explain" });
  #title = el("h2");
  #methods = el("div", { class: "choice", role: "group", "aria-label": "Method" });
  #says = el("p", { class: "says" });
  #key = el("div", { class: "color-keys" });
  #tokens = el("div", { class: "owed", role: "group", "aria-label": "What each token contributes" });
  #parts = el("figure");
  #partsSay = el("p", { class: "says" });
  #steering = new Steering();
  /** @type {string[]} */ #words = [];

  parts = [
    this.#title,
    this.#choice,
    el("section", {}, el("h3", {}, "Contribution of each token"), this.#methods, this.#says, this.problem, this.#tokens, this.#key),
    el("section", {}, el("h3", {}, "Written by these parts"), this.#partsSay, this.#parts),
    this.#steering.element,
  ];

  build() {
    this.append(...this.parts);
  }

  render() {
    const { trace } = current();
    const { token } = store.cursor;
    const { target, method, edits } = store.get();
    this.#steering.show(edits);
    const [how, , words] = METHODS.find(([name]) => name === method && works(name)) ?? METHODS.find(([name]) => works(name)) ?? METHODS[2];
    exchange(this.#methods, METHODS.filter(([name]) => works(name)).map(([name, title]) =>
      el("button", { "aria-pressed": String(name === how), onclick: () => store.set({ method: name }) }, title)));
    put(this.#says, words, works("input_x_gradient") ? null : el("span", { class: "quiet" }, " With PyTorch (make full) there are gradients as well."));
    put(this.#key, how === "attention_rollout" ? ramp("no share", "attention", "the largest") : ramp("lowers the logit", "diverging", "raises it"));
    const asked = Promise.all([api.get(`/trace/${trace.id}/next?position=${token}`, { slot: "why-next" }), api.get(`/vocabulary?model=${trace.model}`)]);
    void this.load(
      asked.then(async ([{ logits }, { texts }]) => {
        const sampler = new Sampler(logits.data);
        const id = target !== null && target < sampler.size ? target : sampler.order[0];
        this.#words = this.#steering.words = texts;
        this.#showTitle(trace, token, id, sampler);
        const ask = (/** @type {string} */ how) => api.post("/attribute", { id: trace.id, position: token, target: id, method: how }, { slot: `why-${how}` });
        void this.load(this.#orNone(ask(how)), ({ scores: found }) => this.#showTokens(trace, token, found, how), this.#tokens);
        return { id, found: await ask("direct_logit_attribution") };
      }),
      ({ id, found }) => this.#showParts(found, id),
    );
  }

  /** Where a method cannot be used (integrated gradients of a long text), no scores of another one stay. @param {Promise<Attribution>} asked */
  async #orNone(asked) {
    try {
      return { scores: (await asked).scores ?? [] };
    } catch (error) {
      if (!isAbort(error)) put(this.#tokens);
      throw error;
    }
  }

  get hasNumbers() {
    return this.#tokens.childElementCount > 0;
  }

  /** @param {Trace} trace @param {number} token @param {number} id @param {Sampler} sampler */
  #showTitle(trace, token, id, sampler) {
    const rank = sampler.rankOf[id];
    put(this.#title, "Why ", named(this.#words[id] ?? ""), " after ", named(trace.tokens[token].text),
      el("span", { class: "quiet" }, ` ${percent(sampler.plain[rank])}, rank ${(rank + 1).toLocaleString("en")}`));
    const ids = [...sampler.order.slice(0, SHOWN)];
    if (!ids.includes(id)) ids.push(id);
    exchange(this.#choice, ids.map((other) => el("button", { "aria-pressed": String(other === id), onclick: () => store.set({ target: other }) },
      `${short(this.#words[other] ?? "", 12)} ${percent(sampler.plain[sampler.rankOf[other]])}`)));
  }

  /** @param {Trace} trace @param {number} token @param {number[]} scores @param {string} how */
  #showTokens(trace, token, scores, how) {
    const most = Math.max(...scores.map(Math.abs)) || 1;
    exchange(this.#tokens, trace.tokens.slice(0, token + 1).map(({ text }, place) => {
      const { fill, ink } = how === "attention_rollout" ? shade("attention", scores[place] / most) : diverging(scores[place], most);
      return el("button", { "data-token": place, onclick: () => store.set({ token: place }), style: { background: fill, color: ink } },
        el("span", {}, visible(text)), el("span", { class: "how" }, how === "attention_rollout" ? percent(scores[place]) : format(scores[place], 2)));
    }));
  }

  /** Bars for the strongest heads and MLPs, and for what is left. @param {Attribution} found @param {number} id */
  #showParts({ heads = [], mlps = [], embedding = 0, biases = 0, total = 0, logit }, id) {
    const parts = [
      ...heads.flatMap((row, layer) => row.map((value, head) =>
        ({ name: `head ${layer}.${head}`, value, go: { view: "block", layer, head, part: "attention" } }))),
      ...mlps.map((value, layer) => ({ name: `MLP ${layer}`, value, go: { view: "block", layer, part: "mlp" } })),
      { name: "embedding", value: embedding, go: { view: "block", layer: -1 } },
    ].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const shown = parts.slice(0, BARS);
    const rest = parts.slice(BARS).reduce((sum, { value }) => sum + value, 0) + biases;
    put(this.#partsSay, "Everything in the stream was written by some part, so the ", term("logit"), ` of “${visible(this.#words[id] ?? "")}”, ` +
      `${format(logit, 2)}, is a sum: of all heads ${format(heads.flat().reduce((a, b) => a + b, 0), 2)}, all MLPs ` +
      `${format(mlps.reduce((a, b) => a + b, 0), 2)}, the embedding ${format(embedding, 2)} and biases ${format(biases, 2)} (together ` +
      `${format(total, 2)}). An MLP’s share includes its output bias, which is the same for every text; a head’s does not. The strongest ` +
      `${shown.length}; click one to open it.`);
    const rows = [...shown, { name: "all others", value: rest, go: null }];
    const most = Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-9);
    const width = Math.min(560, this.figureWidth);
    const [zero, room] = [92 + (width - 150) / 2, (width - 150) / 2];
    const drawn = rows.map(({ name, value, go }, i) => {
      const long = Math.max(1, (Math.abs(value) / most) * room);
      const y = i * 20;
      const row = svg("g", go ? { class: "part", tabindex: 0, role: "button" } : {},
        svg("rect", { x: 0, y, width, height: 19, fill: "transparent" }),
        label(84, y + 13, name, { "text-anchor": "end", "font-size": 12, fill: color("ink") }),
        svg("rect", { x: value < 0 ? zero - long : zero, y: y + 3, width: long, height: 12, rx: 2, fill: diverging(value, Math.abs(value) || 1).fill }),
        label(width - 4, y + 13, format(value, 2), { "text-anchor": "end", "font-size": 12 }));
      if (!go) return row;
      const open = () => store.set(/** @type {Partial<State>} */ (go));
      row.addEventListener("click", open);
      row.addEventListener("keydown", ({ key }) => key === "Enter" && open());
      return row;
    });
    const axis = svg("line", { x1: zero, x2: zero, y1: 0, y2: rows.length * 20, stroke: color("line-strong") });
    const made = figure(width, rows.length * 20 + 4, "The parts that wrote this logit", axis, drawn);
    made.setAttribute("role", "group");
    put(this.#parts, made);
  }
}

customElements.define("glass-why", GlassWhy);
