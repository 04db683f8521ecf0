// A model in the engine: the forward pass in parts, each from arrays to arrays. Vectors of a text lie one after the
// other, (T, C).
import { pieceText } from "../formats/bytes.js";
import { countParameters } from "./config.js";
import { MATRICES } from "../formats/weights.js";
import { UserError } from "./wasm.js";

/** The steps of a block, in the order of inspect/taps.py and of cpp/engine.h. */
export const BLOCK_STEPS = [
  "ln_1", "attn.q", "attn.k", "attn.v", "attn.scores", "attn.scaled", "attn.masked", "attn.weights", "attn.z", "attn.merged", "attn.proj",
  "resid_mid", "ln_2", "mlp.fc", "mlp.gelu", "mlp.proj", "resid_post",
];
// Integers that an input is the sum of, to be as fine as float32: of 16 bits, or of 8 where they meet int4 weights.
const WIDE_PARTS = 2;
const NARROW_PARTS = 3;
const PANEL = 64;
const FLOAT32 = 0;
const FLOAT16 = 1;
const LOGIT_BYTES = 4e6; // of logits that exist at a time
const MAX_TOKENS = 1024; // the context of the published models; a longer one is seen in part

/** @typedef {{ids: number[], cache: number, context: number}} KVCache the tokens whose keys and values it holds */
/** @typedef {{step: string, head: number, values: Float32Array, rows: number, columns: number, ld: number}} Shown a step of one head, or of all: a view of the engine's memory */
/** @typedef {{ids: Int32Array, logP: Float64Array, losses: Float64Array | null}} Readings [row][k], and [row][3]: log p, rank and entropy */

export class Model {
  /** @param {{wasm: import("./wasm.js").Wasm, handle: number, isInt4: boolean, config: import("./config.js").Config, vectors: Map<string, Float32Array>, tokenizer: import("../text/base-tokenizer.js").Tokenizer | null, name: string, number: number}} parts */
  constructor({ wasm, handle, isInt4, config, vectors, tokenizer, name, number }) {
    this.wasm = wasm;
    this.handle = handle;
    this.parts = isInt4 ? NARROW_PARTS : WIDE_PARTS;
    this.config = config;
    this.vectors = vectors; // those that attributions multiply with
    this.tokenizer = tokenizer;
    this.name = name;
    this.number = number;
    this.size = tokenizer ? Math.min(config.vocab_size, tokenizer.tokens.length) : config.vocab_size; // ids that have a text
    this.padded = Math.ceil(config.vocab_size / PANEL) * PANEL;
    this.maxTokens = Math.min(MAX_TOKENS, config.n_positions);
    this.parameters = countParameters(config);
    /** @type {string[] | null} */
    this.known = null;
    /** @type {KVCache | null} one for all: two of a whole context would be as large as the model */
    this.cache = null;
    /** @type {Map<string, [number[], number[]]>} what neurons read and write */
    this.neurons = new Map();
    const lowest = config.scale_attn_weights ? 1 / Math.sqrt(config.d_head) : 1;
    this.scaleOf = (/** @type {number} */ layer) => (config.scale_attn_by_inverse_layer_idx ? lowest / (layer + 1) : lowest);
  }

  /** Every token as text; without a tokenizer, its id. */
  get texts() {
    this.known ??= Array.from({ length: this.size }, (_, id) => {
      const bytes = this.tokenizer?.bytesOf(id);
      return bytes?.length ? pieceText(bytes) : String(id);
    });
    return this.known;
  }

  /** @param {number} id */
  text(id) {
    return this.texts[id] ?? String(id);
  }

  /** @param {number} id */
  bytesOf(id) {
    return this.tokenizer?.bytesOf(id) ?? new Uint8Array();
  }

  /** The ids of a text; for a model without a tokenizer, the text is a list of ids. @param {string} text */
  encode(text) {
    if (this.tokenizer) return this.tokenizer.encode(text);
    const words = text.replaceAll(",", " ").split(/\s+/).filter(Boolean);
    if (!words.every((word) => /^\d{1,9}$/.test(word))) throw new UserError("This model has no tokenizer. Enter token ids, such as 0 1 2.", 422, "text");
    return words.map(Number);
  }

  /** @param {readonly number[]} ids */
  decode(ids) {
    return this.tokenizer ? this.tokenizer.decode(ids) : ids.join(" ");
  }

  /** The rows of the token table, (T, C). @param {readonly number[]} ids */
  tokenRows(ids) {
    const C = this.config.n_embd;
    const rows = new Float32Array(ids.length * C);
    ids.forEach((id, i) => rows.set(this.output(-1, "wte.weight", id), i * C));
    return rows;
  }

  /** The embedding of a text, (T, C). @param {readonly number[]} ids @param {number} [start] */
  embed(ids, start = 0) {
    const length = ids.length * this.config.n_embd;
    return this.wasm.with([4 * ids.length, 4 * length], (tokens, out) => {
      this.wasm.ints(tokens, ids.length).set(ids);
      this.wasm.call("embed", this.handle, start, ids.length, tokens, out);
      return this.wasm.floats(out, length).slice();
    });
  }

  /**
   * One block: `x` (T, C) becomes what leaves it. `see` is shown the wanted steps, and may change them.
   * @param {number} layer @param {Float32Array} x @param {readonly string[]} wanted @param {(shown: Shown) => void} see
   * @param {{start: number, cache: number}} [past]
   */
  block(layer, x, wanted, see, past = { start: 0, cache: 0 }) {
    const { wasm } = this;
    const tokens = x.length / this.config.n_embd;
    const bits = wanted.reduce((mask, step) => mask | (1 << BLOCK_STEPS.indexOf(step)), 0);
    wasm.with([4 * x.length], (at) => {
      wasm.floats(at, x.length).set(x);
      /** @type {unknown} */
      let problem = null;
      wasm.tap = (step, first, _heads, place, rows, columns, ld) => {
        if (problem) return;
        const head = columnsAreHeads(step) ? first : -1;
        try {
          see({ step: BLOCK_STEPS[step], head, values: wasm.floats(place, rows * ld), rows, columns, ld });
        } catch (error) {
          problem = error; // it must not leave through the engine
        }
      };
      try {
        wasm.call("block", this.handle, past.cache, layer, past.start, tokens, at, bits, 1, 0, 0, this.parts);
      } finally {
        wasm.tap = null;
      }
      if (problem) throw problem;
      x.set(wasm.floats(at, x.length));
    });
  }

  /** `ln_f` of vectors, (n, C). @param {Float32Array} x */
  finalNorm(x) {
    return this.wasm.with([4 * x.length, 4 * x.length], (from, to) => {
      this.wasm.floats(from, x.length).set(x);
      this.wasm.call("final_norm", this.handle, x.length / this.config.n_embd, from, to);
      return this.wasm.floats(to, x.length).slice();
    });
  }

  /** Vectors (n, C) times a table, some at a time: `use` gets the address of n rows of logits. @param {string} table @param {Float32Array} x @param {(logits: number, first: number, n: number) => void} use */
  #rows(table, x, use) {
    const { wasm } = this;
    const C = this.config.n_embd;
    const atOnce = Math.max(1, Math.floor(LOGIT_BYTES / (4 * this.padded)));
    const n = x.length / C;
    wasm.with([4 * Math.min(n, atOnce) * C, 4 * Math.min(n, atOnce) * this.padded], (from, to) => {
      for (let first = 0; first < n; first += atOnce) {
        const some = Math.min(atOnce, n - first);
        wasm.floats(from, some * C).set(x.subarray(first * C, (first + some) * C));
        wasm.call("times", this.handle, -1, MATRICES[table], some, from, to, BigInt(this.padded), this.parts);
        use(to, first, some);
      }
    });
  }

  /** The logits of the ids that have a text, (n, size), of final vectors. @param {Float32Array} x @param {string} [table] */
  logits(x, table = "lm_head.weight") {
    const out = new Float32Array((x.length / this.config.n_embd) * this.size);
    this.#rows(table, x, (at, first, n) => {
      for (let i = 0; i < n; i++) out.set(this.wasm.floats(at + 4 * i * this.padded, this.size), (first + i) * this.size);
    });
    return out;
  }

  /**
   * What the page says of the logits of final vectors: the likeliest tokens of each and, where it has a target, how
   * that was predicted.
   * @param {Float32Array} x @param {number} k @param {readonly number[] | null} [targets] @returns {Readings}
   */
  readings(x, k, targets = null) {
    const { wasm } = this;
    const n = x.length / this.config.n_embd;
    const ids = new Int32Array(n * k);
    const logP = new Float64Array(n * k);
    const losses = targets && new Float64Array(3 * n);
    this.#rows("lm_head.weight", x, (at, first, some) => {
      wasm.with([4 * some * k, 8 * some * k, 4 * some, 24 * some], (idsAt, logPAt, targetsAt, lossesAt) => {
        if (targets) wasm.ints(targetsAt, some).set(targets.slice(first, first + some));
        wasm.call("read_logits", this.handle, some, at, BigInt(this.padded), this.size, k, idsAt, logPAt, targets ? targetsAt : 0, lossesAt);
        ids.set(wasm.ints(idsAt, some * k), first * k);
        logP.set(wasm.doubles(logPAt, some * k), first * k);
        losses?.set(wasm.doubles(lossesAt, 3 * some), 3 * first);
      });
    });
    return { ids, logP, losses };
  }

  /** The weights of one output: a row of an embedding, a column of another matrix. @param {number} layer @param {string} matrix @param {number} output */
  output(layer, matrix, output) {
    const inputs = matrix === "mlp.c_proj.weight" ? this.config.d_mlp : this.config.n_embd;
    return this.wasm.with([4 * inputs], (at) => {
      this.wasm.call("output", this.handle, layer, MATRICES[matrix], output, at);
      return this.wasm.floats(at, inputs).slice();
    });
  }

  /** A cache for so many positions that holds the keys and values of `ids`, as far as it is known. @param {number} positions @returns {KVCache} */
  cacheFor(positions) {
    if (this.cache && this.cache.context >= positions) return this.cache;
    if (this.cache) this.deleteCache(this.cache);
    this.cache = null; // before memory is asked for
    this.cache = this.newCache(positions, false);
    return this.cache;
  }

  /** An empty cache; `rounded` as the native engine rounds for speed, with the same draws. @param {number} positions @param {boolean} rounded @returns {KVCache} */
  newCache(positions, rounded) {
    const context = Math.min(this.config.n_positions, Math.ceil(positions / PANEL) * PANEL);
    const cache = this.wasm.exports.glassgpt_new_cache(this.handle, 1, context, rounded ? FLOAT16 : FLOAT32, rounded ? 1 : this.parts);
    if (!cache) throw this.wasm.failure();
    return { ids: [], cache, context };
  }

  /** @param {KVCache} cache */
  deleteCache(cache) {
    this.wasm.exports.glassgpt_delete_cache(cache.cache);
  }

  /** The final vectors of tokens that follow those in a cache, (n, C). @param {KVCache} cache @param {number} start @param {readonly number[]} ids */
  hidden(cache, start, ids) {
    const x = this.embed(ids, start);
    for (let layer = 0; layer < this.config.n_layer; layer++) this.block(layer, x, [], () => {}, { start, cache: cache.cache });
    return this.finalNorm(x);
  }
}

/** Whether a step has heads. @param {number} step */
function columnsAreHeads(step) {
  return step >= 1 && step <= 8;
}
