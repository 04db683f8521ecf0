// The activations of one text in one model (inspect/traces): one forward pass that keeps the residual stream, and single
// blocks computed again when a view looks into them.
import { normOf } from "./arrays.js";
import { BLOCK_STEPS } from "./model.js";

const CACHE_BYTES = 12e6; // of steps inside blocks, per text
const KEEP_BYTES = 6e6; // of attention weights that the first pass keeps
const WHOLE_BLOCK_BYTES = 2e6; // a block whose steps are that small is kept whole

/** @typedef {{shape: number[], data: Float32Array}} Floats */
/** @typedef {(shown: import("./model.js").Shown) => void} Hook changes a step in place */
/** @typedef {Map<string, Hook[]>} Hooks by the full names of steps */

export class Trace {
  /** @param {import("./model.js").Model} model @param {number[]} ids @param {Hooks} [hooks] @param {{base: Trace, first: number} | null} [same] a trace without edits, and the first block that differs */
  constructor(model, ids, hooks = new Map(), same = null) {
    this.model = model;
    this.ids = ids;
    this.hooks = hooks;
    this.same = same;
    /** @type {Float32Array[] | null} */
    this.streams = null;
    /** @type {Float32Array | null} */
    this.final = null;
    /** @type {Map<string, Floats>} */
    this.steps = new Map();
    /** @type {{ids: Int32Array, p: Float64Array} | null} of the five likeliest tokens, (L + 1, T, 5) */
    this.lensOfAll = null;
    /** @type {({p: number, rank: number, entropy: number} | null)[]} */
    this.losses = [null];
    /** @type {Map<number, Float32Array>} logits of some positions */
    this.rows = new Map();
    /** @type {any} the head that the page opens at, once known; null for none */
    this.opening = undefined;
    this.incremental = false; // computed token by token: equal up to rounding, not bit by bit
  }

  get length() {
    return this.ids.length;
  }

  /** The residual stream after the embedding and after each block, (T, C) each. @returns {Float32Array[]} */
  residuals() {
    if (!this.streams) {
      const { model, same } = this;
      const streams = same ? same.base.residuals().slice(0, same.first + 1) : [this.#embedding()];
      const { n_layer, n_head } = model.config;
      const keep = this.hooks.size === 0 && 4 * n_layer * n_head * this.length ** 2 <= KEEP_BYTES ? ["attn.weights"] : [];
      for (let layer = streams.length - 1; layer < n_layer; layer++) {
        const x = streams[layer].slice();
        this.#runBlock(layer, x, keep);
        streams.push(x);
      }
      this.streams = streams;
    }
    return this.streams;
  }

  #embedding() {
    const C = this.model.config.n_embd;
    const x = this.model.embed(this.ids);
    if (["wte", "wpe"].some((step) => this.hooks.has(step))) {
      const tables = this.#tables();
      for (const step of ["wte", "wpe"]) this.#change(step, tables[step], C);
      x.forEach((_, i) => (x[i] = tables.wte[i] + tables.wpe[i]));
    }
    this.#change("embedding", x, C);
    return x;
  }

  /** The rows of both tables, (T, C) each. @returns {Record<string, Float32Array>} */
  #tables() {
    const wte = this.model.tokenRows(this.ids);
    return { wte, wpe: this.model.embed(this.ids).map((x, i) => x - wte[i]) };
  }

  /** @param {string} step @param {Float32Array} values @param {number} columns */
  #change(step, values, columns) {
    for (const hook of this.hooks.get(step) ?? []) hook({ step, head: -1, values, rows: this.length, columns, ld: columns });
  }

  /** @param {number} layer @param {Float32Array} x @param {readonly string[]} kept */
  #runBlock(layer, x, kept) {
    const changed = BLOCK_STEPS.filter((step) => this.hooks.has(`h.${layer}.${step}`));
    const wanted = [...new Set([...kept, ...changed])];
    this.model.block(layer, x, wanted, (shown) => {
      const name = `h.${layer}.${shown.step}`;
      for (const hook of this.hooks.get(name) ?? []) hook(shown);
      if (kept.includes(shown.step)) this.#keep(name, shown);
    });
  }

  /** @param {string} name @param {import("./model.js").Shown} shown */
  #keep(name, { head, values, rows, columns, ld }) {
    const heads = head < 0 ? 1 : this.model.config.n_head;
    let floats = head > 0 ? this.steps.get(name) : undefined;
    if (!floats) {
      floats = { shape: head < 0 ? [rows, columns] : [heads, rows, columns], data: new Float32Array(heads * rows * columns) };
      this.steps.delete(name);
      this.steps.set(name, floats);
    }
    const start = Math.max(head, 0) * rows * columns;
    for (let i = 0; i < rows; i++) floats.data.set(values.subarray(i * ld, i * ld + columns), start + i * columns);
  }

  /** Steps of a block: the block is run once for all of them. @param {number} layer @param {readonly string[]} wanted @returns {Record<string, Floats>} */
  block(layer, wanted) {
    const { n_head, n_embd, d_mlp } = this.model.config;
    const nameOf = (/** @type {string} */ step) => `h.${layer}.${step}`;
    const missing = wanted.filter((step) => !this.steps.has(nameOf(step)));
    if (missing.length) {
      const bytes = 4 * this.length * (12 * n_embd + 2 * d_mlp + 4 * n_head * this.length);
      const steps = bytes <= WHOLE_BLOCK_BYTES ? BLOCK_STEPS : missing;
      this.#runBlock(layer, this.residuals()[layer].slice(), steps);
    }
    const found = Object.fromEntries(wanted.map((step) => [step, /** @type {Floats} */ (this.steps.get(nameOf(step)))]));
    this.#forgetSome(wanted.map(nameOf));
    return found;
  }

  /** @param {string[]} used now: they go last */
  #forgetSome(used) {
    for (const name of used) {
      const floats = /** @type {Floats} */ (this.steps.get(name));
      this.steps.delete(name);
      this.steps.set(name, floats);
    }
    let bytes = 0;
    for (const { data } of this.steps.values()) bytes += data.byteLength;
    for (const [name, { data }] of this.steps) {
      if (bytes <= CACHE_BYTES) return;
      bytes -= data.byteLength;
      this.steps.delete(name);
    }
  }

  /** The attention weights of a block, (H, T, T). @param {number} layer */
  attention(layer) {
    return this.block(layer, ["attn.weights"])["attn.weights"].data;
  }

  /** Any step by its full name. @param {string} name @returns {Floats} */
  step(name) {
    const C = this.model.config.n_embd;
    const found = /^h\.(\d+)\.(.+)$/.exec(name);
    if (found) {
      const layer = Number(found[1]);
      if (found[2] === "resid_post") return { shape: [this.length, C], data: this.residuals()[layer + 1] };
      return this.block(layer, [found[2]])[found[2]];
    }
    if (name === "embedding") return { shape: [this.length, C], data: this.residuals()[0] };
    if (name === "ln_f") return { shape: [this.length, C], data: this.finals() };
    return { shape: [this.length, C], data: this.#tables()[name] };
  }

  /** `ln_f` of the last stream, (T, C). */
  finals() {
    if (!this.final) {
      this.final = this.model.finalNorm(/** @type {Float32Array} */ (this.residuals().at(-1)));
      this.#change("ln_f", this.final, this.model.config.n_embd);
    }
    return this.final;
  }

  /** The next-token logits at a position, of the ids that have a text. @param {number} position */
  logitsAt(position) {
    let row = this.rows.get(position);
    if (!row) {
      const C = this.model.config.n_embd;
      row = this.model.logits(this.finals().subarray(position * C, (position + 1) * C));
      if (this.rows.size >= 8) this.rows.delete(/** @type {number} */ (this.rows.keys().next().value));
      this.rows.set(position, row);
    }
    return row;
  }

  /** How each token was predicted; null for the first. */
  tokenLoss() {
    const C = this.model.config.n_embd;
    const from = this.losses.length - 1;
    if (this.losses.length < this.length) {
      const { losses } = this.model.readings(this.finals().subarray(from * C, (this.length - 1) * C), 1, this.ids.slice(from + 1));
      for (let i = 0; i < this.length - 1 - from; i++) {
        const [logP, rank, entropy] = /** @type {Float64Array} */ (losses).subarray(3 * i, 3 * i + 3);
        this.losses.push({ p: Math.exp(logP), rank, entropy });
      }
    }
    return this.losses;
  }

  /**
   * The logit lens: the k likeliest tokens of every stream at the positions `first` to `last`, (L + 1, positions, k).
   * @param {number} k @param {number} first @param {number} last @returns {{ids: Int32Array, p: Float64Array}}
   */
  lens(k, first = 0, last = this.length - 1) {
    const C = this.model.config.n_embd;
    const n = last - first + 1;
    const layers = this.residuals().length;
    const vectors = new Float32Array(layers * n * C);
    for (let layer = 0; layer < layers - 1; layer++) {
      const part = this.residuals()[layer].subarray(first * C, (last + 1) * C);
      vectors.set(this.model.finalNorm(part), layer * n * C);
    }
    vectors.set(this.finals().subarray(first * C, (last + 1) * C), (layers - 1) * n * C);
    const { ids, logP } = this.model.readings(vectors, Math.min(k, this.model.size));
    return { ids, p: logP.map(Math.exp) };
  }

  /** The lens of all positions, computed once; of a text that was appended to, the new columns only. @param {number} k */
  wholeLens(k) {
    const known = this.lensOfAll;
    const before = known ? known.ids.length / (k * this.residuals().length) : 0;
    if (!known || before < this.length) {
      const added = this.lens(k, before);
      this.lensOfAll = known ? joined(known, added, this.residuals().length, before * k, (this.length - before) * k) : added;
    }
    return /** @type {{ids: Int32Array, p: Float64Array}} */ (this.lensOfAll);
  }

  /** The norm of the stream in each layer at each position. @returns {number[][]} */
  norms() {
    const C = this.model.config.n_embd;
    return this.residuals().map((x) => Array.from({ length: this.length }, (_, t) => Math.fround(normOf(x.subarray(t * C, (t + 1) * C)))));
  }

  /** The text with one more token: only its column is computed, with the cache. @param {number} token */
  append(token) {
    const { model } = this;
    const C = model.config.n_embd;
    const T = this.length;
    const cache = fillCache(model, this.ids, T + 1);
    const longer = new Trace(model, [...this.ids, token]);
    const x = model.embed([token], T);
    const streams = [extended(this.residuals()[0], x, C)];
    for (let layer = 0; layer < model.config.n_layer; layer++) {
      model.block(layer, x, [], () => {}, { start: T, cache: cache.cache });
      streams.push(extended(this.residuals()[layer + 1], x, C));
    }
    cache.ids = longer.ids.slice();
    longer.streams = streams;
    longer.incremental = true;
    longer.losses = this.losses.slice();
    longer.lensOfAll = this.lensOfAll;
    return longer;
  }

  /** Free what can be computed again. */
  clear() {
    this.steps.clear();
    this.rows.clear();
  }

  /** Bytes of memory. */
  get bytes() {
    let bytes = (this.streams?.length ?? 0) * 4 * this.length * this.model.config.n_embd;
    for (const { data } of this.steps.values()) bytes += data.byteLength;
    return bytes;
  }
}

/** @param {Float32Array} x @param {Float32Array} column @param {number} C */
function extended(x, column, C) {
  const longer = new Float32Array(x.length + C);
  longer.set(x);
  longer.set(column, x.length);
  return longer;
}

/** Two lenses of neighboring positions as one. @param {{ids: Int32Array, p: Float64Array}} a @param {{ids: Int32Array, p: Float64Array}} b @param {number} layers @param {number} n of each layer in `a` @param {number} m in `b` */
function joined(a, b, layers, n, m) {
  const ids = new Int32Array(layers * (n + m));
  const p = new Float64Array(layers * (n + m));
  for (let layer = 0; layer < layers; layer++) {
    for (const [to, from, other] of /** @type {[any, any, any][]} */ ([[ids, a.ids, b.ids], [p, a.p, b.p]])) {
      to.set(from.subarray(layer * n, (layer + 1) * n), layer * (n + m));
      to.set(other.subarray(layer * m, (layer + 1) * m), layer * (n + m) + n);
    }
  }
  return { ids, p };
}

/** The model's cache with the keys and values of a text, and room for more. @param {import("./model.js").Model} model @param {readonly number[]} ids @param {number} positions */
export function fillCache(model, ids, positions) {
  const cache = model.cacheFor(positions);
  let known = 0;
  while (known < ids.length && cache.ids[known] === ids[known]) known++;
  if (known < ids.length) {
    const x = model.embed(ids.slice(known), known);
    for (let layer = 0; layer < model.config.n_layer; layer++) model.block(layer, x, [], () => {}, { start: known, cache: cache.cache });
    cache.ids = ids.slice();
  }
  return cache;
}
