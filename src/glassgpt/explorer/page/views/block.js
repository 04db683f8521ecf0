// View 3: one block, opened: what its attention and its MLP do to the token of the cursor, with the real numbers.

import { api } from "../api.js";
import { el, exchange, format, percent, put, ramp, visible } from "../draw.js";
import { editButton } from "../edits.js";
import { math } from "../math.js";
import { GlassScores } from "../scores.js";
import { store } from "../store.js";
import { GlassVector } from "../vector.js";
import { GlassView } from "../view.js";

/** How many neurons of the MLP are listed. */
const NEURONS = 8;

/** @param {string} title @param {string} words @param {...(Child | Child[])} children */
const step = (title, words, ...children) => el("section", {}, el("h3", {}, title), el("p", { class: "says" }, words), ...children);

/** @param {number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

class GlassBlock extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "mask", "part", "edits"];
  #title = el("h2");
  #heads = el("div", { class: "choice", role: "group", "aria-label": "Head" });
  #mask = el("input", { type: "checkbox", id: "mask", onchange: () => store.set({ mask: this.#mask.checked }) });
  #vectors = Object.fromEntries(
    ["begin", "x", "ln_1", "q", "k", "v", "z", "merged", "projected", "x_mid", "ln_2", "post", "out", "x_out"].map((name) => [name, new GlassVector()]),
  );
  #scores = new GlassScores();
  #norms = el("p", { class: "worked" });
  #scale = el("p", { class: "worked" });
  #maskSays = el("p", { class: "says" });
  #neurons = el("ol", { class: "neurons" });
  #edits = el("div", { class: "edits" });
  #attention = el("div");
  #embedding = el("div", { hidden: true });
  /** @type {Head | null} */ #head = null;

  build() {
    const v = this.#vectors;
    put(
      this.#attention,
      step("Read the stream", "The block reads the token's vector, brought to mean 0 and spread 1 and then stretched by what was learned.", v.x, math("LN(x) = (x − μ) / √(σ^2 + ε) · g + b"), this.#norms, v.ln_1),
      step(
        "1. Ask, offer, carry",
        "Three matrices turn that vector into a query (what this token looks for), a key (what it can be found by) and a value (what it hands over). Each head has its own share of them.",
        math("q = LN(x) W_q + b_q,   k = LN(x) W_k + b_k,   v = LN(x) W_v + b_v"),
        el("div", { class: "three" }, v.q, v.k, v.v),
      ),
      step(
        "2. Compare",
        "The query is multiplied with every key: a large product is a good match. The products are divided by the root of the head's width, what lies ahead is struck out, and the softmax makes shares of the rest.",
        math("a = softmax( q K^T / √d_{head} + mask )"),
        el("label", { class: "switch" }, this.#mask, "causal mask: no token sees what follows it"),
        this.#maskSays,
        this.#scores,
        this.#scale,
      ),
      step("3. Gather", "The values, mixed by those shares (the last row above), are what this head found.", math("z = Σ_j a_j v_j"), v.z),
      step("Merge and add", "All heads side by side (this one's part is bright) go through one more matrix, and the result is added to the stream.", v.merged, math("x ← x + merged W_o + b_o"), v.projected, v.x_mid),
      step(
        "Think it over: the MLP",
        "Each token by itself: four times as wide, bent by GELU, narrow again, and added. These neurons fired strongest:",
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
      step("Where the stream begins", "The token's id picks its row of the token matrix, its place in the text a row of the position matrix. Their sum is what block 0 reads: move up (↑) to open it.", math("x = W_{te}[id] + W_{pe}[place]"), v.begin),
    );
    put(this, el("div", { class: "headed" }, this.#title, this.#edits), el("div", { class: "headed" }, this.#heads, ramp("below 0", "diverging", "above 0")), this.problem, this.#attention, this.#embedding);
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const { token, layer, head } = store.cursor;
    put(this.#title, layer < 0 ? "Embedding" : `Block ${layer}`, el("span", { class: "quiet" }, ` at token ${token}, `), el("span", { class: "named" }, visible(trace.tokens[token].text)));
    this.#attention.hidden = this.#heads.hidden = layer < 0;
    this.#embedding.hidden = layer >= 0;
    const heads = Array.from({ length: config.n_head }, (_, other) => el("button", { type: "button", "aria-pressed": String(other === head), onclick: () => store.set({ head: other }) }, other));
    exchange(this.#heads, el("span", { class: "quiet" }, "Head"), heads);
    exchange(this.#edits, layer < 0 ? [] : [editButton({ kind: "attn", layer, how: "zero" }, "take out attention"), editButton({ kind: "mlp", layer, how: "zero" }, "take out MLP")]);
    this.#mask.checked = store.get().mask;
    if (changed.size === 1 && changed.has("mask") && this.#head) {
      this.#showAttention(this.#head);
      return;
    }
    const at = `layer=${Math.max(0, layer)}`;
    const questions = [api.get(`/trace/${trace.id}/head?${at}&head=${head}&token=${token}`, { slot: "block-head" }), api.get(`/trace/${trace.id}/mlp?${at}&token=${token}`, { slot: "block-mlp" })];
    void this.ask(Promise.all(questions), ([attention, mlp]) => {
      if (store.trace !== trace) return;
      this.#showAttention(attention);
      this.#showMlp(mlp, layer);
      if (!changed.has("part")) return;
      const place = store.get().part === "mlp" ? this.#attention.lastElementChild : this;
      place?.scrollIntoView({ block: place === this ? "nearest" : "start" });
    });
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
    const mean = sum(found.x) / found.x.length;
    const spread = Math.sqrt(sum(found.x.map((value) => (value - mean) ** 2)) / found.x.length);
    v.x.show("x", found.x);
    v.begin.show("x", found.x);
    put(this.#norms, "here ", math("μ"), ` = ${format(mean, 4)}, `, math("σ"), ` = ${format(spread, 4)}`);
    v.ln_1.show("LN(x)", found.ln_1);
    v.q.show("q", found.q);
    v.k.show("k", found.k[token]);
    v.v.show("v", found.v[token]);
    const weights = mask ? found.weights : found.unmasked;
    const z = mask ? found.z : found.z.map((_, i) => sum(weights.map((weight, key) => weight * found.v[key][i])));
    this.#scores.show({ head: found, z, weights, tokens: trace.tokens, token, mask, scale: scaleOf(found, dHead) });
    put(this.#scale, "here ", math("√d_{head}"), ` = √${dHead} = ${format(Math.sqrt(dHead))}, and the shares sum to ${format(sum(weights), 4)}`);
    put(
      this.#maskSays,
      mask
        ? "With it, the model can be trained on every token at once. Switch it off to see what BERT's self-attention would see."
        : `Without it this head would give ${percent(sum(found.unmasked.slice(token + 1)))} of its attention to what follows, as BERT's heads may. From “Merge and add” on, the numbers are those of the real, masked model.`,
    );
    v.z.show(mask ? "z" : "z without the mask", z);
    v.merged.show("merged", found.merged, { mark: [head * dHead, (head + 1) * dHead] });
    v.projected.show("projected", found.projected);
    v.x_mid.show("x + projected", found.x_mid);
  }

  /** @param {Mlp} found @param {number} layer */
  #showMlp(found, layer) {
    const v = this.#vectors;
    v.ln_2.show("LN(x)", found.ln_2);
    v.out.show("out", found.out);
    v.x_out.show("x + out", found.x_out);
    const order = found.post.map((_, neuron) => neuron).sort((a, b) => Math.abs(found.post[b]) - Math.abs(found.post[a]));
    const most = Math.abs(found.post[order[0]]) || 1;
    v.post.show("GELU", found.post, { limit: most });
    const rows = order.slice(0, NEURONS).map((neuron) =>
      el(
        "li",
        {},
        el("span", {}, `neuron ${neuron}`),
        el("span", { class: "gauge" }, el("span", { style: { width: `${(100 * Math.abs(found.post[neuron])) / most}%` } })),
        el("span", {}, `GELU(${format(found.pre[neuron], 2)}) = ${format(found.post[neuron], 2)}`),
        editButton({ kind: "neuron", layer, neuron, how: "zero" }, "take out", `take out neuron ${neuron}`),
      ),
    );
    exchange(this.#neurons, rows);
  }
}

/** What the scores were divided by, as the numbers have it (a config may scale by the layer, too). @param {Head} found @param {number} dHead */
function scaleOf(found, dHead) {
  const key = found.scores.findIndex((score) => Math.abs(score) > 1e-6);
  const ratio = key < 0 ? Math.sqrt(dHead) : found.scores[key] / found.scaled[key];
  return Math.abs(ratio - Math.sqrt(dHead)) < 1e-3 * ratio ? `√${dHead}` : format(ratio);
}

customElements.define("glass-block", GlassBlock);
