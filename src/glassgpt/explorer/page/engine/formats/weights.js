// A model's weights on their way into the engine: each tensor is handed over as soon as its bytes, and what belongs to
// it, have come, so that a file is never in memory a second time.
import { shapesOf, ACTIVATIONS } from "../model/config.js";
import { shown } from "./bytes.js";
import { UserError } from "../model/wasm.js";

/** In the order of `Dtype` in cpp/layout.h. */
const FLOAT32 = 0;
const INT8 = 3;
const INT4 = 4;
/** @type {Record<string, number>} */
const ENGINE_DTYPES = { F32: FLOAT32, F16: 1, BF16: 2 };
/** As `glassgpt_set_matrix` numbers them. @type {Record<string, number>} */
export const MATRICES = { "wte.weight": 0, "lm_head.weight": 1, "attn.c_attn.weight": 2, "attn.c_proj.weight": 3, "mlp.c_fc.weight": 4, "mlp.c_proj.weight": 5 };
/** @type {Record<string, number>} */
const VECTORS = { "wpe.weight": 0, "ln_f.weight": 1, "ln_f.bias": 2, "ln_1.weight": 3, "ln_1.bias": 4, "ln_2.weight": 5, "ln_2.bias": 6 };
const PANEL = 64;
const GROUP = 32;
const GROUP_BYTES = 2 * PANEL + (PANEL * GROUP) / 2;

/** @typedef {import("../model/config.js").Config} Config */
/**
 * @typedef {object} Incoming a tensor of a file
 * @property {string} name ours @property {string} dtype F64, F32, F16, BF16, I8, U8 @property {number[]} shape as stored
 * @property {boolean} rowsFirst whether a matrix is stored (out, in), as by packed files and GGUF
 * @property {number} bytes in the file
 * @property {((block: Uint8Array) => Float32Array) | null} dequantize of a type that is stored in blocks
 */

/** `h.3.attn.q` is step attn.q of block 3. @param {string} name @returns {[number, string]} */
function split(name) {
  const found = /^h\.(\d+)\.(.+)$/.exec(name);
  return found ? [Number(found[1]), found[2]] : [-1, name];
}

/** Numbers of a file as float32. @param {Uint8Array} bytes @param {string} dtype @returns {Float32Array} */
export function floatsOf(bytes, dtype) {
  const { buffer, byteOffset, byteLength } = bytes;
  if (dtype === "F32") return new Float32Array(buffer.slice(byteOffset, byteOffset + byteLength));
  if (dtype === "F64") return Float32Array.from(new Float64Array(buffer.slice(byteOffset, byteOffset + byteLength)));
  const halves = new Uint16Array(buffer.slice(byteOffset, byteOffset + byteLength));
  if (dtype === "BF16") return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  return Float32Array.from(halves, halfToFloat);
}

/** @param {number} half the bits of a float16 */
export function halfToFloat(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const mantissa = half & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + mantissa / 1024) : 2 ** -24 * mantissa);
}

/** An engine without weights. @param {import("../model/wasm.js").Wasm} wasm @param {Config} config @returns {number} its handle */
export function newEngine(wasm, config) {
  return wasm.with([36, 8], (sizes, kernels) => {
    const { vocab_size, n_positions, n_embd, n_layer, n_head, d_mlp, activation_function } = config;
    wasm.ints(sizes, 9).set([vocab_size, n_positions, n_embd, n_layer, n_head, d_mlp, ACTIVATIONS[activation_function], Number(config.scale_attn_weights), Number(config.scale_attn_by_inverse_layer_idx)]);
    wasm.bytes(kernels, 1)[0] = 0; // the best there are
    const handle = wasm.exports.glassgpt_new(sizes, config.layer_norm_epsilon, kernels, 1);
    if (!handle) throw wasm.failure();
    return handle;
  });
}

export class WeightLoader {
  /** @param {import("../model/wasm.js").Wasm} wasm @param {Config} config @param {string} file */
  constructor(wasm, config, file) {
    this.wasm = wasm;
    this.config = config;
    this.file = file;
    this.handle = newEngine(wasm, config);
    this.shapes = shapesOf(config);
    /** @type {Map<string, Float32Array>} vectors, scales and biases that a matrix still waits for */
    this.vectors = new Map();
    /** @type {Map<string, {at: number, incoming: Incoming, dtype: number, panels: boolean}>} matrices whose scale or bias has not come yet */
    this.waiting = new Map();
    /** @type {Map<string, Float32Array>} vectors that attributions multiply with */
    this.kept = new Map();
  }

  /** The shape that a matrix has with outputs first. @param {string} name */
  #rows(name) {
    const shape = /** @type {number[]} */ (this.shapes.get(name));
    return split(name)[0] < 0 ? shape : [shape[1], shape[0]];
  }

  /** Every tensor of the file must be one of the model's, and have its shape. @param {Incoming[]} tensors */
  check(tensors) {
    if (this.config.n_layer > tensors.length) throw new UserError(`${this.file}: the config has ${this.config.n_layer.toLocaleString("en")} layers, but there are only ${tensors.length} tensors. Check that config.json belongs to this file.`);
    const names = new Set(tensors.map(({ name }) => name));
    for (const { name, shape } of tensors) {
      const base = name.endsWith(".scale") ? name.slice(0, -6) : name;
      if (base !== name && !names.has(base)) throw new UserError(`${this.file}: ${shown(name)} scales a tensor that is not there.`);
      if (!this.shapes.has(base)) throw new UserError(`${this.file}: unknown tensor ${shown(name)} of shape (${shape.join(", ")}); a GPT-2 of ${this.config.n_layer} layers has none of that name. Check config.json.`);
    }
    for (const [name, shape] of this.shapes) if (!names.has(name)) throw new UserError(`${this.file}: tensor ${shown(name)} of shape (${shape.join(", ")}) is missing. Check that the file is complete and that config.json belongs to it.`);
    for (const tensor of tensors) this.#checkShape(tensor, names);
  }

  /** @param {Incoming} tensor @param {Set<string>} names */
  #checkShape(tensor, names) {
    const { name, dtype, shape } = tensor;
    const same = (/** @type {number[]} */ other) => shape.length === other.length && shape.every((n, i) => n === other[i]);
    const wrong = (/** @type {number[]} */ wanted) => new UserError(`${this.file}: tensor ${shown(name)} has shape (${shape.join(", ")}), but the config requires (${wanted.join(", ")}). Check that config.json belongs to this file.`);
    if (name.endsWith(".scale")) {
      const [outputs] = this.#rows(name.slice(0, -6));
      if (dtype !== "F32" || !same([outputs])) throw wrong([outputs]);
      return;
    }
    const wanted = /** @type {number[]} */ (this.shapes.get(name));
    const rows = wanted.length === 2 ? this.#rows(name) : wanted;
    if (dtype === "I8" || dtype === "U8") {
      const panels = this.#panelShape(dtype, rows);
      if (wanted.length !== 2 || !(same(panels) && name !== "wpe.weight") && !(dtype === "I8" && same(rows))) throw wrong(wanted);
      if (dtype === "I8" && !names.has(`${name}.scale`)) throw new UserError(`${this.file}: int8 tensor ${shown(name)} has no .scale with one value per row.`);
      return;
    }
    if (!["F64", "F32", "F16", "BF16"].includes(dtype)) throw new UserError(`${this.file}: tensor ${shown(name)} is ${dtype}, not floating point. Convert it with the program that made it.`);
    if (!same(tensor.rowsFirst ? rows : wanted)) throw wrong(tensor.rowsFirst ? rows : wanted);
  }

  /** @param {string} dtype @param {number[]} rows */
  #panelShape(dtype, [outputs, inputs]) {
    const panels = Math.ceil(outputs / PANEL);
    return dtype === "U8" ? [panels, Math.ceil(inputs / GROUP), GROUP_BYTES] : [panels, Math.ceil(inputs / 4), PANEL, 4];
  }

  /** The next tensor of the file. @param {Incoming} tensor @param {import("./byte-stream.js").ByteStream} stream */
  async add(tensor, stream) {
    const [layer, part] = split(tensor.name);
    if (part in MATRICES && (layer >= 0 || part.startsWith("wte") || part.startsWith("lm_head"))) await this.#addMatrix(tensor, stream);
    else {
      const bytes = await stream.take(tensor.bytes);
      if (tensor.name === "wpe.weight" && tensor.dtype === "I8") this.vectors.set("wpe.int8", /** @type {any} */ (bytes));
      else this.vectors.set(tensor.name, tensor.dequantize ? dequantized(bytes, tensor) : floatsOf(bytes, tensor.dtype));
    }
    this.#settle(tensor.name.replace(/\.scale$/, "").replace(/\.bias$/, ".weight"));
  }

  /** @param {Incoming} tensor @param {import("./byte-stream.js").ByteStream} stream */
  async #addMatrix(tensor, stream) {
    const { wasm } = this;
    if (tensor.dequantize || tensor.dtype === "F64") { // as float32
      const floats = tensor.dequantize ? await dequantizedStream(tensor, stream) : floatsOf(await stream.take(tensor.bytes), "F64");
      const at = wasm.allocate(4 * floats.length);
      wasm.floats(at, floats.length).set(floats);
      this.waiting.set(tensor.name, { at, incoming: tensor, dtype: FLOAT32, panels: false });
      return;
    }
    const at = wasm.allocate(tensor.bytes);
    await stream.pass(tensor.bytes, (piece, offset) => wasm.bytes(at + offset, piece.length).set(piece));
    const panels = tensor.shape.length > 2;
    const dtype = tensor.dtype === "I8" ? INT8 : tensor.dtype === "U8" ? INT4 : ENGINE_DTYPES[tensor.dtype];
    this.waiting.set(tensor.name, { at, incoming: tensor, dtype, panels });
  }

  /** Hand over what is whole now. @param {string} name of a weight */
  #settle(name) {
    const [layer, part] = split(name);
    if (part in MATRICES && (layer >= 0 || name in MATRICES)) return this.#settleMatrix(name, layer, part);
    if (name === "wpe.weight" && this.vectors.has("wpe.int8") && this.vectors.has("wpe.weight.scale")) this.#dequantizePositions();
    for (const one of [name, name.replace(/weight$/, "bias")]) {
      const values = this.vectors.get(one);
      if (!values || !(split(one)[1] in VECTORS)) continue;
      this.wasm.with([4 * values.length], (at) => {
        this.wasm.floats(at, values.length).set(values);
        this.wasm.call("set_vector", this.handle, layer, VECTORS[split(one)[1]], at);
      });
      this.vectors.delete(one);
      if (/^ln_f|ln_2.weight$/.test(one)) this.kept.set(one, values);
    }
  }

  #dequantizePositions() {
    const bytes = /** @type {Uint8Array} */ (/** @type {unknown} */ (this.vectors.get("wpe.int8")));
    const scale = /** @type {Float32Array} */ (this.vectors.get("wpe.weight.scale"));
    const values = Float32Array.from(new Int8Array(bytes.buffer));
    const width = this.config.n_embd;
    for (let i = 0; i < values.length; i++) values[i] *= scale[Math.floor(i / width)];
    this.vectors.delete("wpe.int8");
    this.vectors.delete("wpe.weight.scale");
    this.vectors.set("wpe.weight", values);
  }

  /** @param {string} name @param {number} layer @param {string} part */
  #settleMatrix(name, layer, part) {
    const matrix = this.waiting.get(name);
    const bias = layer < 0 ? null : this.vectors.get(name.replace(/weight$/, "bias"));
    const scale = matrix?.dtype === INT8 ? this.vectors.get(`${name}.scale`) : null;
    if (!matrix || bias === undefined || scale === undefined) return;
    const { wasm, handle } = this;
    const { at, incoming, dtype, panels } = matrix;
    const [outputs, inputs] = this.#rows(name);
    wasm.with([scale ? 4 * scale.length : 0, bias ? 4 * bias.length : 0], (scaleAt, biasAt) => {
      if (scale) wasm.floats(scaleAt, scale.length).set(scale);
      if (bias) wasm.floats(biasAt, bias.length).set(bias);
      const vectors = [scale ? scaleAt : 0, bias ? biasAt : 0];
      if (panels) wasm.call("set_panels", handle, layer, MATRICES[part], dtype, at, BigInt(incoming.bytes), ...vectors, 1);
      else {
        const strides = incoming.rowsFirst || layer < 0 ? [BigInt(inputs), 1n] : [1n, BigInt(outputs)];
        wasm.call("set_matrix", handle, layer, MATRICES[part], dtype, at, dtype, ...strides, ...vectors);
      }
    });
    if (!panels) wasm.free(at); // panels stay where they are
    this.waiting.delete(name);
    this.vectors.delete(`${name}.scale`);
    const biasName = name.replace(/weight$/, "bias");
    if (bias && part === "attn.c_proj.weight") this.kept.set(biasName, bias);
    this.vectors.delete(biasName);
  }

  /** @returns {number} the engine's handle, once everything is there */
  finish() {
    this.wasm.call("check", this.handle);
    return this.handle;
  }
}

/** @param {Uint8Array} bytes @param {Incoming} tensor */
function dequantized(bytes, tensor) {
  return /** @type {(block: Uint8Array) => Float32Array} */ (tensor.dequantize)(bytes);
}

/** Blocks as float32, some at a time. @param {Incoming} tensor @param {import("./byte-stream.js").ByteStream} stream */
async function dequantizedStream(tensor, stream) {
  return dequantized(await stream.take(tensor.bytes), tensor);
}
