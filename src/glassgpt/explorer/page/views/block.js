// Inside one block: its attention and its MLP at the cursor’s token, with the real values, at once or step by step.

import { api } from "../state/api.js";
import { el, exchange, format, percent, put, ramp, shade, short, visible } from "../draw/draw.js";
import { editButton } from "../edits/edits.js";
import { bind } from "../keys.js";
import { math } from "../draw/math.js";
import { isLater, Player } from "../block/player.js";
import { GlassScores, sumSoFar } from "../block/scores.js";
import { GlassStages, rowsOf, softmaxRows } from "../block/stages.js";
import { store } from "../state/store.js";
import { say, term } from "../text/terms.js";
import { GlassVector } from "../draw/vector.js";
import { GlassView } from "../view.js";
import { t } from "../languages/language.js";

/** A text of more tokens has no matrices of all pairs: they could not be read. */
const MATRIX_TOKENS = 256;

/**
 * @param {string} stages of the player, separated by spaces @param {string} title @param {string} formula @param {Child[]} words
 * @param {...(Child | Child[])} children
 */
const step = (stages, title, formula, words, ...children) =>
  el("section", { "data-stages": stages }, el("h3", {}, title, " ", math(formula)), words.length ? el("p", { class: "says" }, words) : null, ...children);

/** @param {number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

class GlassBlock extends GlassView {
  /** @type {Topic[]} */
  wants = ["trace", "token", "layer", "head", "mask", "part", "edits", "play", "speed"];
  #title = el("h2");
  #heads = el("div", { class: "choice", role: "group", "aria-label": t("block.heads") });
  #mask = el("input", { type: "checkbox", id: "mask", onchange: () => store.set({ mask: this.#mask.checked }) });
  #vectors = Object.fromEntries(
    ["wte", "wpe", "embedding", "resid_pre", "ln_1", "attn.q", "attn.k", "attn.v", "attn.z", "attn.merged", "attn.proj", "resid_mid", "ln_2",
      "mlp.gelu", "mlp.proj", "resid_post"].map((name) => [name, new GlassVector()]),
  );
  #scores = new GlassScores();
  #stages = new GlassStages();
  #allPairs = el("section", { class: "all-pairs" });
  #norms = el("span");
  #scale = el("span", { class: "quiet small" });
  #maskSays = el("p", { class: "says" });
  #sumSays = el("p", { class: "worked" });
  #neurons = el("ol", { class: "neurons" });
  #editAttention = el("span");
  #editMlp = el("span");
  #player = new Player();
  #attention = el("div", { class: "flow-of-block" });
  #embedding = el("div", { class: "beginning", hidden: true });
  /** @type {HeadSteps | null} */ #head = null;
  /** @type {MlpSteps | null} */ #mlp = null;
  /** @type {ScoreMatrices | null} */ #matrices = null;
  /** @type {(() => void)[]} */ #keys = [];
  #part = "";

  connectedCallback() {
    super.connectedCallback();
    this.#keys = [
      bind(["p"], t("keys.play"), () => this.#player.toggle()),
      bind([","], t("keys.back"), () => this.#player.move(-1)),
      bind(["."], t("keys.forward"), () => this.#player.move(1)),
    ];
  }

  disconnectedCallback() {
    this.#player.pause();
    this.#keys.forEach((undo) => undo());
    super.disconnectedCallback();
  }

  build() {
    const v = this.#vectors;
    const funnel = (/** @type {string} */ kind) => el("div", { class: `funnel ${kind}`, "aria-hidden": "true" });
    put(
      this.#attention,
      el("div", { class: "pair" },
        step("read", t("block.read"), "LN(x)", say("block.read.says", { norms: this.#norms }), v.resid_pre, v.ln_1),
        step("qkv", t("block.qkv"), "LN(x) W_{qkv} + b_{qkv}", [t("block.qkv.says")],
          el("div", { class: "three" }, v["attn.q"], v["attn.k"], v["attn.v"]))),
      step("dots scale mask softmax values", t("block.weights"), "softmax( q K^T / √d_{head} + mask )", [],
        el("div", { class: "headed" }, el("label", { class: "switch" }, this.#mask, t("block.mask")), this.#scale, this.#editAttention),
        this.#scores),
      step("values merge add", t("block.merge"), "x ← x + merged W_o + b_o", say("block.merge.says"), v["attn.z"], v["attn.merged"], v["attn.proj"], v.resid_mid),
      this.#allPairs,
      step("ln2 widen narrow out", t("block.mlp"), "x ← x + GELU( LN(x) W_{fc} + b_{fc} ) W_{proj} + b_{proj}",
        [t("block.mlp.says"), this.#editMlp],
        el("div", { class: "slim" }, v.ln_2), funnel("out"), v["mlp.gelu"],
        el("p", { class: "says" }, say("block.neurons")),
        this.#neurons, funnel("in"), el("div", { class: "slim" }, v["mlp.proj"]), v.resid_post),
    );
    put(this.#allPairs, el("h3", {}, t("block.pairs"), math("Q K^T")), el("p", { class: "says" }, t("block.pairs.says")), this.#maskSays, this.#stages);
    put(
      this.#embedding,
      el("section", {}, el("h3", {}, t("block.beginning"), math("x = W_{te}[id] + W_{pe}[position]")), 
        el("p", { class: "says" }, t("block.beginning.says")),
        v.wte, el("p", { class: "plus", "aria-hidden": "true" }, "+"), v.wpe, el("p", { class: "plus", "aria-hidden": "true" }, "="), v.embedding,
        this.#sumSays),
    );
    for (const name of ["wte", "wpe", "embedding"]) v[name].onread = (place) => this.#readSum(place);
    put(this, el("div", { class: "headed" }, this.#title, ramp(t("block.below"), "diverging", t("block.above")), this.#heads), this.problem, this.#player.element,
      this.#attention, this.#embedding);
  }

  /** The three numbers at one place. @param {number} place */
  #readSum(place) {
    const { wte, wpe, embedding } = this.#vectors;
    for (const vector of [wte, wpe, embedding]) vector.read(place);
    put(this.#sumSays, place < 0 ? t("block.point") : `[${place}]: ${format(wte.values[place], 4)} + ` +
      `${format(wpe.values[place], 4)} = ${format(embedding.values[place], 4)}`);
  }

  /** @param {Set<Topic>} changed */
  render(changed) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const { token, layer, head } = store.cursor;
    put(this.#title, layer < 0 ? t("block.embedding") : t("block.title", { layer }), el("span", { class: "quiet" }, t("block.at", { token })),
      el("span", { class: "named" }, visible(trace.tokens[token].text)));
    this.#attention.hidden = this.#heads.hidden = this.#player.element.hidden = layer < 0;
    this.#embedding.hidden = layer >= 0;
    const heads = Array.from({ length: config.n_head }, (_, other) =>
      el("button", { "aria-pressed": String(other === head), onclick: () => store.set({ head: other }) }, other));
    exchange(this.#heads, term("head", t("block.heads")), heads);
    exchange(this.#editAttention, layer < 0 ? [] : [editButton({ kind: "ablate_attention", layer, how: "zero" }, t("block.attention.edit"))]);
    exchange(this.#editMlp, layer < 0 ? [] : [editButton({ kind: "ablate_mlp", layer, how: "zero" }, t("block.mlp.edit"))]);
    this.#mask.checked = store.get().mask;
    if ([...changed].every((topic) => ["mask", "play", "speed", "part"].includes(topic)) && this.#head) {
      if (changed.has("mask") || changed.has("play")) this.#showAll(layer);
      if (changed.has("part")) this.#goTo(store.get().part);
      this.#showFrame();
      return;
    }
    if (layer < 0) return void this.load(api.get(`/trace/${trace.id}/embedding?position=${token}`, { slot: "block-head" }), (found) =>
      this.#showEmbedding(found));
    const at = `layer=${layer}`;
    const wide = trace.tokens.length > MATRIX_TOKENS;
    this.#allPairs.hidden = wide;
    const requests = [
      api.get(`/trace/${trace.id}/head?${at}&head=${head}&position=${token}`, { slot: "block-head" }),
      api.get(`/trace/${trace.id}/mlp?${at}&position=${token}`, { slot: "block-mlp" }),
      wide ? null : api.get(`/trace/${trace.id}/scores?${at}&head=${head}`, { slot: "block-scores" }),
    ];
    const all = Promise.all(requests);
    void this.load(all, ([attention, mlp, matrices]) => {
      if (store.trace !== trace) return;
      [this.#head, this.#mlp, this.#matrices] = [attention, mlp, matrices];
      this.#showAll(layer);
      this.#showFrame();
      if (store.get().part !== this.#part) this.#goTo(store.get().part);
    });
    const strongest = api.get(`/trace/${trace.id}/neurons?${at}&position=${token}`, { slot: "block-neurons" });
    Promise.all([strongest, all]).then(([{ neurons }, [, mlp]]) => store.trace === trace && this.#showNeurons(neurons, mlp, layer), () => {});
  }

  /** @param {Record<string, number[]>} found */
  #showEmbedding({ wte, wpe, embedding }) {
    const { id } = /** @type {Trace} */ (store.trace).tokens[store.cursor.token];
    this.#vectors.wte.show(`W_{te}[${id}]`, wte);
    this.#vectors.wpe.show(`W_{pe}[${store.cursor.token}]`, wpe);
    this.#vectors.embedding.show("x", embedding);
    this.#readSum(-1);
    this.#head = null;
  }

  /** @param {number} layer */
  #showAll(layer) {
    if (this.#head) this.#showAttention(this.#head);
    if (this.#mlp) this.#showMlp(this.#mlp, layer);
  }

  /** Scroll to a part of the block: attention, scores, pairs or mlp. @param {string} part */
  #goTo(part) {
    this.#part = part;
    const place = { scores: this.#scores, pairs: this.#allPairs, mlp: this.#attention.lastElementChild, attention: this, neurons: this.#neurons }[part];
    if (!place) return;
    const sheet = /** @type {HTMLElement} */ (this.parentElement);
    const bar = part === "attention" ? 0 : this.#player.element.offsetHeight;
    const down = place.getBoundingClientRect().top - sheet.getBoundingClientRect().top - 12 - bar;
    if (sheet.scrollHeight > sheet.clientHeight + 1) sheet.scrollTop += down;
    else if (part !== "attention") scrollBy(0, place.getBoundingClientRect().top - (document.querySelector("[role=tablist]")?.clientHeight
      ?? 60) - 8); // a phone: the page scrolls under the tabs
  }

  /** What the player has come to; the rest is to come. */
  #showFrame() {
    const { frame } = this.#player;
    this.#player.render(this.#head);
    this.toggleAttribute("data-playing", frame !== null);
    for (const section of /** @type {NodeListOf<HTMLElement>} */ (this.#attention.querySelectorAll("[data-stages]"))) {
      const stages = (section.dataset.stages ?? "").split(" ");
      const now = frame !== null && stages.includes(frame.stage);
      section.classList.toggle("later", frame !== null && isLater(stages[0], frame.stage));
      section.classList.toggle("now", now);
      if (now && this.#player.playing) this.#keepInSight(section);
    }
    const v = this.#vectors;
    const needs = { "attn.z": "values", "attn.merged": "merge", "attn.proj": "add", resid_mid: "add", "mlp.gelu": "widen", "mlp.proj": "narrow",
      resid_post: "out", ln_1: "read", ln_2: "ln2" };
    for (const [name, stage] of Object.entries(needs)) {
      v[name].classList.toggle("later", frame !== null && isLater(stage, frame.stage));
      v[name].classList.toggle("fresh", frame?.stage === stage);
    }
    for (const name of ["attn.q", "attn.k", "attn.v"]) v[name].classList.toggle("fresh", frame?.stage === "qkv");
    this.#neurons.classList.toggle("later", frame !== null && isLater("widen", frame.stage));
  }

  /** @param {HTMLElement} section */
  #keepInSight(section) {
    const sheet = /** @type {HTMLElement} */ (this.parentElement);
    const [box, window] = [section.getBoundingClientRect(), sheet.getBoundingClientRect()];
    const bar = this.#player.element.offsetHeight;
    if (box.bottom > window.bottom) sheet.scrollTop += Math.min(box.bottom - window.bottom, box.top - window.top - bar);
    else if (box.top < window.top + bar) sheet.scrollTop -= window.top + bar - box.top;
  }

  /** @param {HeadSteps} found */
  #showAttention(found) {
    const { trace, config } = store;
    if (!trace || !config) return;
    const v = this.#vectors;
    const { token, head } = store.cursor;
    const { mask } = store.get();
    const dHead = config.d_head;
    const mean = sum(found.resid_pre) / found.resid_pre.length;
    const spread = Math.sqrt(sum(found.resid_pre.map((value) => (value - mean) ** 2)) / found.resid_pre.length);
    v.resid_pre.show("x", found.resid_pre);
    put(this.#norms, t("block.norms", { mean: mean.toFixed(2).replace(/^-(?=0\.00)/, "").replace("-", "−"), spread: format(spread, 2) }));
    v.ln_1.show("LN(x)", found.ln_1);
    v["attn.q"].show("q", found["attn.q"]);
    v["attn.k"].show("k", found["attn.k"][token]);
    v["attn.v"].show("v", found["attn.v"][token]);
    const weights = mask ? found["attn.weights"] : found.unmasked;
    const z = mask ? found["attn.z"] : found["attn.z"].map((_, i) => sum(weights.map((weight, key) => weight * found["attn.v"][key][i])));
    const scale = scaleOf(found, dHead);
    const shown = { head: found, z, weights, tokens: trace.tokens, token, mask, scale, name: `${store.cursor.layer}.${head}`, frame: this.#player.frame };
    this.#scores.show(shown);
    put(this.#scale, math("√d_{head}"), t("block.scale", { d: dHead, root: format(Math.sqrt(dHead)), sum: format(sum(weights), 4) }));
    put(this.#maskSays, mask ? t("block.masked") : t("block.unmasked", { share: percent(sum(found.unmasked.slice(token + 1))) }));
    v["attn.z"].show(mask ? "z" : t("block.z"), sumSoFar(shown));
    v["attn.merged"].show("merged", found["attn.merged"], { mark: [head * dHead, (head + 1) * dHead] });
    v["attn.proj"].show("proj", found["attn.proj"]);
    v.resid_mid.show("x + proj", found.resid_mid);
    const matrices = this.#matrices;
    if (!matrices) return;
    const [q, k, scores, scaled] = [matrices["attn.q"], matrices["attn.k"], matrices["attn.scores"], matrices["attn.scaled"]].map(rowsOf);
    if (q.length === trace.tokens.length) this.#stages.show({ q, k, scores, scaled, weights: softmaxRows(scaled, mask), tokens: trace.tokens, token,
      mask, scale, name: shown.name });
  }

  /** @param {MlpSteps} found @param {number} layer */
  #showMlp(found, layer) {
    const v = this.#vectors;
    v.ln_2.show("LN(x)", found.ln_2);
    v["mlp.proj"].show("proj", found["mlp.proj"]);
    v.resid_post.show("x + proj", found.resid_post);
    const most = Math.max(...found["mlp.gelu"].map(Math.abs)) || 1;
    v["mlp.gelu"].show("GELU", found["mlp.gelu"], { limit: most });
    if (this.#neurons.dataset.of !== this.#subject(layer)) put(this.#neurons);
  }

  /** @param {number} layer */
  #subject(layer) {
    return `${store.trace?.id} ${layer} ${store.cursor.token}`;
  }

  /** @param {Neuron[]} neurons @param {MlpSteps} found @param {number} layer */
  #showNeurons(neurons, found, layer) {
    const { trace, cursor: { token } } = store;
    if (!trace) return;
    const grown = this.#neurons.dataset.of !== this.#subject(layer);
    this.#neurons.dataset.of = this.#subject(layer);
    const tokens = (/** @type {string[]} */ texts) => texts.map((text) => el("span", { class: "said" }, short(text, 12)));
    exchange(this.#neurons, neurons.map(({ neuron, reads, writes, activations }) => {
      const most = Math.max(...activations.map(Math.abs)) || 1;
      const fires = activations.map((value, place) => {
        const { fill, ink } = shade("loss", Math.max(0, value) / most);
        return el("button", { class: "fires", tabindex: -1, "data-token": place, title: `${visible(trace.tokens[place].text)}: ${format(value, 2)}`,
          "aria-label": t("neuron.at", { token: place, value: format(value, 2) }), "aria-current": place === token ? "true" : null,
          style: { background: fill, color: ink }, onclick: () => store.set({ token: place }) });
      });
      return el("li", {},
        el("div", { class: "named-neuron" }, el("b", {}, t("neuron.name", { neuron: String(neuron) })),
          el("span", {}, `GELU(${format(found["mlp.fc"][neuron], 2)}) = ${format(found["mlp.gelu"][neuron], 2)}`),
          editButton({ kind: "ablate_neuron", layer, neuron, how: "zero" }, t("heads.ablate"), t("neuron.ablate", { neuron: String(neuron) }))),
        el("div", { class: "fired", role: "group", "aria-label": t("neuron.fires") }, fires),
        reads.length === 0 ? null : el("div", { class: "reads" }, el("span", { class: "quiet" }, t("neuron.reads")), tokens(reads),
          el("span", { class: "quiet" }, t("neuron.writes")), tokens(writes)));
    }));
    if (grown && ["mlp", "neurons"].includes(store.get().part)) this.#goTo(store.get().part); // now there is room to scroll
  }
}

/** What the scores were divided by, computed from them (a config may also scale by layer). @param {HeadSteps} found @param {number} dHead */
function scaleOf(found, dHead) {
  const key = found["attn.scores"].findIndex((score) => Math.abs(score) > 1e-6);
  const ratio = key < 0 ? Math.sqrt(dHead) : found["attn.scores"][key] / found["attn.scaled"][key];
  return Math.abs(ratio - Math.sqrt(dHead)) < 1e-3 * ratio ? `√${dHead}` : format(ratio);
}

customElements.define("glass-block", GlassBlock);
