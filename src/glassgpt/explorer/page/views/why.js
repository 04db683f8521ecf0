// Why this word? Where a next token's logit comes from: the tokens of the text, and the parts of the model. And steering.

import { api, isAbort } from "../state/api.js";
import { diverging, el, exchange, format, percent, put, ramp, shade, short, svg, visible, color } from "../draw/draw.js";
import { figure, label, named, Panel, current } from "../panel.js";
import { Sampler } from "../next/sampling.js";
import { Steering } from "../edits/steering.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const SHOWN = 6; // candidates to choose from
const BARS = 14;

const METHODS = ["input_x_gradient", "integrated_gradients", "attention_rollout"];

/** Whether a method works here: gradients need PyTorch. An older exported file does not say. @param {string} name */
const works = (name) => store.info?.methods?.includes(name) ?? true;

class GlassWhy extends Panel {
  /** @type {Topic[]} */ wants = ["trace", "token", "target", "method", "edits", "theme"];
  #choice = el("div", { class: "choice targets", role: "group", "aria-label": t("why.words") });
  #title = el("h2");
  #methods = el("div", { class: "choice", role: "group", "aria-label": t("why.methods") });
  #says = el("p", { class: "says" });
  #key = el("div", { class: "color-keys" });
  #tokens = el("div", { class: "owed", role: "group", "aria-label": t("why.tokens.label") });
  #parts = el("figure");
  #partsSay = el("p", { class: "says" });
  #steering = new Steering();
  /** @type {string[]} */ #words = [];

  parts = [
    this.#title,
    this.#choice,
    el("section", {}, el("h3", {}, t("why.tokens")), this.#methods, this.#says, this.problem, this.#tokens, this.#key),
    el("section", {}, el("h3", {}, t("why.parts")), this.#partsSay, this.#parts),
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
    const how = METHODS.find((name) => name === method && works(name)) ?? METHODS.find(works) ?? METHODS[2];
    exchange(this.#methods, METHODS.filter(works).map((name) =>
      el("button", { "aria-pressed": String(name === how), onclick: () => store.set({ method: name }) }, t(`why.${name}`))));
    put(this.#says, t(`why.${how}.says`), works("input_x_gradient") ? null : el("span", { class: "quiet" }, t("why.torch")));
    put(this.#key, how === "attention_rollout" ? ramp(t("why.none"), "attention", t("why.largest"))
      : ramp(t("why.lowers"), "diverging", t("why.raises")));
    const asked = Promise.all([api.get(`/trace/${trace.id}/next?position=${token}`, { slot: "why-next" }), api.get(`/vocabulary?model=${trace.model}`)]);
    void this.load(
      asked.then(async ([{ logits }, { texts }]) => {
        const sampler = new Sampler(logits.data);
        const id = target !== null && target < sampler.size ? target : sampler.order[0];
        this.#words = this.#steering.words = texts;
        this.#steering.show(store.get().edits); // a link may come with some
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
    put(this.#title, say("why.title", { word: named(this.#words[id] ?? ""), token: named(trace.tokens[token].text),
      rank: el("span", { class: "quiet" }, t("why.rank", { share: percent(sampler.plain[rank]), rank: rank + 1 })) }));
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
        ({ name: t("why.head", { head: `${layer}.${head}` }), value, go: { view: "block", layer, head, part: "attention" } }))),
      ...mlps.map((value, layer) => ({ name: `MLP ${layer}`, value, go: { view: "block", layer, part: "mlp" } })),
      { name: t("why.embedding"), value: embedding, go: { view: "block", layer: -1 } },
    ].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const shown = parts.slice(0, BARS);
    const rest = parts.slice(BARS).reduce((sum, { value }) => sum + value, 0) + biases;
    put(this.#partsSay, say("why.parts.says", { word: visible(this.#words[id] ?? ""), logit: format(logit, 2),
      heads: format(heads.flat().reduce((a, b) => a + b, 0), 2), mlps: format(mlps.reduce((a, b) => a + b, 0), 2), embedding: format(embedding, 2),
      biases: format(biases, 2), total: format(total, 2), n: shown.length }));
    const rows = [...shown, { name: t("why.others"), value: rest, go: null }];
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
    const made = figure(width, rows.length * 20 + 4, t("why.parts.label"), axis, drawn);
    made.setAttribute("role", "group");
    put(this.#parts, made);
  }
}

customElements.define("glass-why", GlassWhy);
