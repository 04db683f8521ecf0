// View 3: one block, opened: what its attention and its MLP do to the token of the cursor, with the real numbers.

import { api, isAbort } from "../api.js";
import { el, format, percent, put, shade, svg, svgText, visible } from "../draw.js";
import { toggleEdit, hasEdit } from "../edits.js";
import { math } from "../math.js";
import { GlassScores } from "../scores.js";
import { store } from "../store.js";
import { GlassVector } from "../vector.js";
import { GlassView } from "../view.js";

/** How many neurons of the MLP are listed. */
const NEURONS = 8;

/** @param {string} title @param {...(Child | Child[])} children */
const step = (title, ...children) => el("section", { class: "step" }, el("h3", {}, title), ...children);

/** @param {...(Child)} children */
const says = (...children) => el("p", { class: "says" }, children);

class GlassBlock extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "mask", "edits", "intervention"];
  #title = el("h2", {});
  #heads = el("div", { class: "choice", role: "group", "aria-label": "Head" });
  #mask = el("input", { type: "checkbox", id: "mask" });
  #vectors = Object.fromEntries(
    ["x", "ln_1", "q", "k", "v", "z", "merged", "projected", "x_mid", "ln_2", "post", "out", "x_out"].map((name) => [name, new GlassVector()]),
  );
  #scores = new GlassScores();
  #norms = el("p", { class: "worked" });
  #scale = el("p", { class: "worked" });
  #maskSays = says();
  #neurons = el("ol", { class: "neurons" });
  #cuts = el("div", { class: "cuts" });
  #attention = el("div", {});
  #embedding = el("div", { hidden: true });
  #start = new GlassVector();
  #error = el("p", { class: "problem", role: "alert" });
  /** @type {Head | null} */ #head = null;

  connectedCallback() {
    if (!this.firstChild) this.#build();
    super.connectedCallback();
  }

  #build() {
    const v = this.#vectors;
    this.#mask.addEventListener("change", () => store.set({ mask: this.#mask.checked }));
    put(
      this.#attention,
      step("Read the stream", says("The block reads the token's vector, brought to mean 0 and spread 1 and then stretched by what was learned."), v.x, math("LN(x) = (x − μ) / √(σ^2 + ε) · g + b"), this.#norms, v.ln_1),
      step(
        "1. Ask, offer, carry",
        says("Three matrices turn that vector into a ", el("b", {}, "query"), " (what this token looks for), a ", el("b", {}, "key"), " (what it can be found by) and a ", el("b", {}, "value"), " (what it hands over). Each head has its own share of them."),
        math("q = LN(x) W_q + b_q,  k = LN(x) W_k + b_k,  v = LN(x) W_v + b_v"),
        el("div", { class: "three" }, v.q, v.k, v.v),
      ),
      step(
        "2. Compare",
        says("The query is multiplied with every key: a large product is a good match. The products are divided by the root of the head's width, what lies ahead is struck out, and the softmax makes shares of the rest."),
        math("a = softmax( q K^T / √d_{head} + mask )"),
        el("label", { class: "switch" }, this.#mask, " causal mask: no token sees what follows it"),
        this.#maskSays,
        this.#scores,
        this.#scale,
      ),
      step("3. Gather", says("The values, mixed by those shares (the last row above), are what this head found."), math("z = Σ_j a_j v_j"), v.z),
      step(
        "Merge and add",
        says("All heads side by side go through one more matrix, and the result is added to the stream. The marked part is this head's."),
        v.merged,
        math("x ← x + merged W_o + b_o"),
        v.projected,
        v.x_mid,
      ),
      step(
        "Think it over: the MLP",
        says("Each token by itself: four times as wide, bent by GELU, narrow again, and added. These neurons fired strongest:"),
        math("x ← x + GELU( LN(x) W_{fc} + b_{fc} ) W_{proj} + b_{proj}"),
        v.ln_2,
        v.post,
        this.#neurons,
        v.out,
        v.x_out,
      ),
    );
    put(
      this.#embedding,
      step("Where the stream begins", says("The token's id picks its row of the token matrix, its place in the text a row of the position matrix. Their sum is what block 0 reads."), math("x = W_{te}[id] + W_{pe}[place]"), this.#start),
      says("Move up (↑) to open block 0."),
    );
    const legend = el("div", { class: "legend" }, el("span", {}, "below 0"), el("span", { class: "ramp diverging", "aria-hidden": "true" }), el("span", {}, "above 0"));
    put(this, el("div", { class: "block-head" }, this.#title, this.#cuts), el("div", { class: "block-head" }, this.#heads, legend), this.#error, this.#attention, this.#embedding);
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const { token, layer, head } = store.cursor;
    const name = visible(trace.tokens[token].text);
    put(this.#title, layer < 0 ? "Embedding" : `Block ${layer}`, el("span", { class: "quiet" }, ` at token ${token}, `), el("span", { class: "named" }, name));
    this.#attention.hidden = layer < 0;
    this.#embedding.hidden = layer >= 0;
    this.#heads.hidden = layer < 0;
    this.#showHeads(config.n_head, head);
    this.#showCuts(layer);
    this.#mask.checked = store.get().mask;
    if (changed.size === 1 && changed.has("mask") && this.#head) this.#showAttention(this.#head);
    else void this.#ask(trace, token, Math.max(layer, 0), head);
  }

  /** @param {number} count @param {number} present */
  #showHeads(count, present) {
    if (this.#heads.childElementCount !== count + 1) {
      const buttons = Array.from({ length: count }, (_, head) => el("button", { type: "button", onclick: () => store.set({ head }) }, head));
      put(this.#heads, el("span", { class: "quiet" }, "Head"), buttons);
    }
    [...this.#heads.querySelectorAll("button")].forEach((button, head) => button.setAttribute("aria-pressed", String(head === present)));
  }

  /** @param {number} layer */
  #showCuts(layer) {
    const kinds = /** @type {const} */ ([["attn", "attention"], ["mlp", "MLP"]]);
    const buttons = kinds.map(([kind, name]) => {
      /** @type {Edit} */
      const edit = { kind, layer, how: "zero" };
      const out = hasEdit(edit);
      return el("button", { type: "button", "aria-pressed": String(out), title: `Let the ${name} of this block add nothing`, onclick: () => toggleEdit(edit) }, out ? `${name} is out` : `take out ${name}`);
    });
    const focused = this.#cuts.contains(document.activeElement) ? [...this.#cuts.children].indexOf(/** @type {Element} */ (document.activeElement)) : -1;
    put(this.#cuts, layer < 0 ? [] : buttons);
    if (focused >= 0) buttons[focused]?.focus();
  }

  /** @param {Trace} trace @param {number} token @param {number} layer @param {number} head */
  async #ask(trace, token, layer, head) {
    try {
      const [attention, mlp] = await Promise.all([
        api.get(`/trace/${trace.id}/head?layer=${layer}&head=${head}&token=${token}`, { slot: "block-head" }),
        api.get(`/trace/${trace.id}/mlp?layer=${layer}&token=${token}`, { slot: "block-mlp" }),
      ]);
      if (store.trace !== trace) return;
      put(this.#error);
      this.#showAttention(attention);
      this.#showMlp(mlp, layer);
    } catch (error) {
      if (!isAbort(error)) put(this.#error, error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {Head} found */
  #showAttention(found) {
    const { trace, config } = store;
    if (!trace || !config) return;
    this.#head = found;
    const v = this.#vectors;
    const { token, head } = store.cursor;
    const { mask } = store.get();
    const dHead = config.d_head;
    const mean = found.x.reduce((sum, value) => sum + value, 0) / found.x.length;
    const spread = Math.sqrt(found.x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / found.x.length);
    v.x.show("x", found.x);
    this.#start.show("x", found.x);
    put(this.#norms, "here ", math("μ"), ` = ${format(mean, 4)}, `, math("σ"), ` = ${format(spread, 4)}`);
    v.ln_1.show("LN(x)", found.ln_1);
    v.q.show("q", found.q);
    v.k.show("k", found.k[token]);
    v.v.show("v", found.v[token]);
    const z = mask ? found.z : mixed(found.unmasked, found.v);
    const scale = scaleOf(found, dHead);
    this.#scores.show({ head: found, z, tokens: trace.tokens, token, mask, scale, dHead });
    put(this.#scale, "here ", math("√d_{head}"), ` = √${dHead} = ${format(Math.sqrt(dHead), 3)}, and the shares sum to ${format(sum(mask ? found.weights : found.unmasked), 4)}`);
    const ahead = sum(found.unmasked.slice(token + 1));
    put(this.#maskSays, mask ? "With it, the model can be trained on every token at once. Switch it off to see what BERT's self-attention would see." : `Without it this head would give ${percent(ahead)} of its attention to what follows, as BERT's heads may. Below the sum, the numbers are those of the real, masked model.`);
    v.z.show(mask ? "z" : "z without the mask", z);
    v.merged.show("merged", found.merged, { mark: [head * dHead, (head + 1) * dHead] });
    v.projected.show("projected", found.projected);
    v.x_mid.show("x + projected", found.x_mid);
  }

  /** @param {Mlp} found @param {number} layer */
  #showMlp(found, layer) {
    const v = this.#vectors;
    v.ln_2.show("LN(x)", found.ln_2);
    v.post.show("GELU", found.post);
    v.out.show("out", found.out);
    v.x_out.show("x + out", found.x_out);
    const order = found.post.map((_, neuron) => neuron).sort((a, b) => Math.abs(found.post[b]) - Math.abs(found.post[a]));
    const most = Math.abs(found.post[order[0]]) || 1;
    const focused = this.#neurons.contains(document.activeElement) ? [...this.#neurons.querySelectorAll("button")].indexOf(/** @type {HTMLButtonElement} */ (document.activeElement)) : -1;
    const rows = order.slice(0, NEURONS).map((neuron) => {
      /** @type {Edit} */
      const edit = { kind: "neuron", layer, neuron, how: "zero" };
      const out = hasEdit(edit);
      return el(
        "li",
        {},
        el("span", { class: "which" }, `neuron ${neuron}`),
        el("span", { class: "gauge" }, el("span", { style: { width: `${(100 * Math.abs(found.post[neuron])) / most}%` } })),
        el("span", { class: "numbers" }, `GELU(${format(found.pre[neuron], 2)}) = ${format(found.post[neuron], 2)}`),
        el("button", { type: "button", "aria-pressed": String(out), "aria-label": `take out neuron ${neuron}`, onclick: () => toggleEdit(edit) }, out ? "is out" : "take out"),
      );
    });
    put(this.#neurons, rows);
    if (focused >= 0) this.#neurons.querySelectorAll("button")[focused]?.focus();
  }

  /** The row of weights as a picture. */
  toSVG() {
    const { trace } = store;
    const found = this.#head;
    if (!trace || !found) return svgText(10, 10, []);
    const weights = store.get().mask ? found.weights : found.unmasked;
    const ink = getComputedStyle(this).color;
    const drawn = trace.tokens.flatMap((token, key) => {
      const { fill, ink: on } = shade("attention", weights[key]);
      const x = 10 + key * 60;
      return [
        svg("text", { x: x + 28, y: 24, "text-anchor": "middle", fill: ink }, visible(token.text).slice(0, 8)),
        svg("rect", { x, y: 34, width: 56, height: 26, rx: 5, fill }),
        svg("text", { x: x + 28, y: 51, "text-anchor": "middle", fill: on }, percent(weights[key])),
      ];
    });
    return svgText(20 + trace.tokens.length * 60, 72, drawn);
  }
}

/** @param {number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The values, mixed by shares. @param {number[]} shares @param {number[][]} values */
function mixed(shares, values) {
  return values[0].map((_, i) => sum(shares.map((share, key) => share * values[key][i])));
}

/** What the scores were divided by, as the numbers have it (a config may scale by the layer too). @param {Head} found @param {number} dHead */
function scaleOf(found, dHead) {
  const key = found.scores.findIndex((score) => Math.abs(score) > 1e-6);
  const ratio = key < 0 ? Math.sqrt(dHead) : found.scores[key] / found.scaled[key];
  return Math.abs(ratio - Math.sqrt(dHead)) < 1e-3 * ratio ? `√${dHead}` : format(ratio, 3);
}

customElements.define("glass-block", GlassBlock);
