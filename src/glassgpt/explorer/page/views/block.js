// View 3: inside one block: its attention and its MLP at the cursor's token, with the real values.

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
    ["embedding", "resid_pre", "ln_1", "attn.q", "attn.k", "attn.v", "attn.z", "attn.merged", "attn.proj", "resid_mid", "ln_2", "mlp.gelu", "mlp.proj", "resid_post"].map((name) => [name, new GlassVector()]),
  );
  #scores = new GlassScores();
  #norms = el("p", { class: "worked" });
  #scale = el("p", { class: "worked" });
  #maskSays = el("p", { class: "says" });
  #neurons = el("ol", { class: "neurons" });
  #edits = el("div", { class: "edits" });
  #attention = el("div");
  #embedding = el("div", { hidden: true });
  /** @type {HeadSteps | null} */ #head = null;

  build() {
    const v = this.#vectors;
    put(
      this.#attention,
      step("Read the residual stream", "LayerNorm brings the token's vector to mean 0 and variance 1, then applies a learned gain and bias.", v.resid_pre, math("LN(x) = (x − μ) / √(σ^2 + ε) · g + b"), this.#norms, v.ln_1),
      step(
        "1. Query, key, value",
        "Three matrices turn that vector into a query (what this token looks for), a key (what it can be found by) and a value (what it passes on). Each head has its own slice of them.",
        math("q = LN(x) W_q + b_q,   k = LN(x) W_k + b_k,   v = LN(x) W_v + b_v"),
        el("div", { class: "three" }, v["attn.q"], v["attn.k"], v["attn.v"]),
      ),
      step(
        "2. Attention weights",
        "The dot product of the query with every key is its score: a large one is a good match. Scores are divided by the square root of the head's width, later tokens are masked, and the softmax turns the rest into weights.",
        math("a = softmax( q K^T / √d_{head} + mask )"),
        el("label", { class: "switch" }, this.#mask, "causal mask: no token attends to later ones"),
        this.#maskSays,
        this.#scores,
        this.#scale,
      ),
      step("3. Weighted values", "The output of the head is the average of the values with these weights (the last row above).", math("z = Σ_j a_j v_j"), v["attn.z"]),
      step("Merge and add", "The heads are concatenated (this one's part is bright), projected by one more matrix, and added to the residual stream.", v["attn.merged"], math("x ← x + merged W_o + b_o"), v["attn.proj"], v.resid_mid),
      step(
        "The MLP",
        "Each token on its own: projected to four times the width, through GELU, projected back, and added. The neurons with the largest activations:",
        math("x ← x + GELU( LN(x) W_{fc} + b_{fc} ) W_{proj} + b_{proj}"),
        v.ln_2,
        v["mlp.gelu"],
        this.#neurons,
        v["mlp.proj"],
        v.resid_post,
      ),
    );
    put(
      this.#embedding,
      step("The embedding", "The token's id selects a row of the token embeddings, its position a row of the position embeddings. Block 0 reads their sum: move up (↑) to open it.", math("x = W_{te}[id] + W_{pe}[position]"), v.embedding),
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
    exchange(this.#edits, layer < 0 ? [] : [editButton({ kind: "ablate_attention", layer, how: "zero" }, "ablate attention"), editButton({ kind: "ablate_mlp", layer, how: "zero" }, "ablate MLP")]);
    this.#mask.checked = store.get().mask;
    if (changed.size === 1 && changed.has("mask") && this.#head) {
      this.#showAttention(this.#head);
      return;
    }
    const at = `layer=${Math.max(0, layer)}`;
    const requests = [api.get(`/trace/${trace.id}/head?${at}&head=${head}&position=${token}`, { slot: "block-head" }), api.get(`/trace/${trace.id}/mlp?${at}&position=${token}`, { slot: "block-mlp" })];
    void this.load(Promise.all(requests), ([attention, mlp]) => {
      if (store.trace !== trace) return;
      this.#showAttention(attention);
      this.#showMlp(mlp, layer);
      if (!changed.has("part")) return;
      const place = store.get().part === "mlp" ? this.#attention.lastElementChild : this;
      place?.scrollIntoView({ block: place === this ? "nearest" : "start" });
    });
  }

  /** @param {HeadSteps} found */
  #showAttention(found) {
    const { trace, config } = store;
    if (!trace || !config) return;
    this.#head = found;
    const v = this.#vectors;
    const { token, head } = store.cursor;
    const { mask } = store.get();
    const dHead = config.d_head;
    const mean = sum(found.resid_pre) / found.resid_pre.length;
    const spread = Math.sqrt(sum(found.resid_pre.map((value) => (value - mean) ** 2)) / found.resid_pre.length);
    v.resid_pre.show("x", found.resid_pre);
    v.embedding.show("x", found.resid_pre);
    put(this.#norms, "here ", math("μ"), ` = ${format(mean, 4)}, `, math("σ"), ` = ${format(spread, 4)}`);
    v.ln_1.show("LN(x)", found.ln_1);
    v["attn.q"].show("q", found["attn.q"]);
    v["attn.k"].show("k", found["attn.k"][token]);
    v["attn.v"].show("v", found["attn.v"][token]);
    const weights = mask ? found["attn.weights"] : found.unmasked;
    const z = mask ? found["attn.z"] : found["attn.z"].map((_, i) => sum(weights.map((weight, key) => weight * found["attn.v"][key][i])));
    this.#scores.show({ head: found, z, weights, tokens: trace.tokens, token, mask, scale: scaleOf(found, dHead) });
    put(this.#scale, "here ", math("√d_{head}"), ` = √${dHead} = ${format(Math.sqrt(dHead))}, and the weights sum to ${format(sum(weights), 4)}`);
    put(
      this.#maskSays,
      mask
        ? "The mask lets the model train on all positions in parallel. Switch it off to see unmasked self-attention, as in BERT."
        : `Without the mask this head would give ${percent(sum(found.unmasked.slice(token + 1)))} of its attention to later tokens, as in BERT. From “Merge and add” on, the values are those of the real, masked model.`,
    );
    v["attn.z"].show(mask ? "z" : "z without the mask", z);
    v["attn.merged"].show("merged", found["attn.merged"], { mark: [head * dHead, (head + 1) * dHead] });
    v["attn.proj"].show("proj", found["attn.proj"]);
    v.resid_mid.show("x + proj", found.resid_mid);
  }

  /** @param {MlpSteps} found @param {number} layer */
  #showMlp(found, layer) {
    const v = this.#vectors;
    v.ln_2.show("LN(x)", found.ln_2);
    v["mlp.proj"].show("proj", found["mlp.proj"]);
    v.resid_post.show("x + proj", found.resid_post);
    const order = found["mlp.gelu"].map((_, neuron) => neuron).sort((a, b) => Math.abs(found["mlp.gelu"][b]) - Math.abs(found["mlp.gelu"][a]));
    const most = Math.abs(found["mlp.gelu"][order[0]]) || 1;
    v["mlp.gelu"].show("GELU", found["mlp.gelu"], { limit: most });
    const rows = order.slice(0, NEURONS).map((neuron) =>
      el(
        "li",
        {},
        el("span", {}, `neuron ${neuron}`),
        el("span", { class: "gauge" }, el("span", { style: { width: `${(100 * Math.abs(found["mlp.gelu"][neuron])) / most}%` } })),
        el("span", {}, `GELU(${format(found["mlp.fc"][neuron], 2)}) = ${format(found["mlp.gelu"][neuron], 2)}`),
        editButton({ kind: "ablate_neuron", layer, neuron, how: "zero" }, "ablate", `ablate neuron ${neuron}`),
      ),
    );
    exchange(this.#neurons, rows);
  }
}

/** What the scores were divided by, computed from them (a config may also scale by layer). @param {HeadSteps} found @param {number} dHead */
function scaleOf(found, dHead) {
  const key = found["attn.scores"].findIndex((score) => Math.abs(score) > 1e-6);
  const ratio = key < 0 ? Math.sqrt(dHead) : found["attn.scores"][key] / found["attn.scaled"][key];
  return Math.abs(ratio - Math.sqrt(dHead)) < 1e-3 * ratio ? `√${dHead}` : format(ratio);
}

customElements.define("glass-block", GlassBlock);
