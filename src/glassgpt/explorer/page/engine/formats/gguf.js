// GGUF, the file of llama.cpp, for models of the architecture "gpt2": named settings, named tensors, then their bytes.
// Nothing is believed that the file is too short to back (weights/gguf_file.py).
import { shown } from "./bytes.js";
import { readConfig } from "../model/config.js";
import { END_OF_TEXT } from "../text/base-tokenizer.js";
import { BPETokenizer } from "../text/bpe.js";
import { readTokenizer } from "../text/tokenizer.js";
import { UserError } from "../model/wasm.js";
import { halfToFloat } from "./weights.js";

const METADATA_LIMIT = 32 * 2 ** 20;
const PIECE = 2 ** 20;
/** Bytes of the plain numbers, by type. @type {Record<number, number>} */
const SCALARS = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const TEXT = 8;
const LIST = 9;

/** @typedef {{name: string, dtype: string, block: number, bytes: number, dequantize: ((data: Uint8Array) => Float32Array) | null}} GGMLType `bytes` of a block */

/** The types that are read here, by their numbers. @type {Record<number, GGMLType>} */
const TYPES = {
  0: { name: "F32", dtype: "F32", block: 1, bytes: 4, dequantize: null },
  1: { name: "F16", dtype: "F16", block: 1, bytes: 2, dequantize: null },
  2: { name: "Q4_0", dtype: "F32", block: 32, bytes: 18, dequantize: (data) => dequantize(data, 18, fourBits) },
  8: { name: "Q8_0", dtype: "F32", block: 32, bytes: 34, dequantize: (data) => dequantize(data, 34, eightBits) },
  30: { name: "BF16", dtype: "BF16", block: 1, bytes: 2, dequantize: null },
};

/** Blocks of 32 numbers: a float16 scale, then small integers. @param {Uint8Array} data @param {number} size of a block @param {(block: Uint8Array, j: number) => number} integer */
function dequantize(data, size, integer) {
  const out = new Float32Array((data.length / size) * 32);
  for (let at = 0, i = 0; at < data.length; at += size, i += 32) {
    const scale = halfToFloat(data[at] | (data[at + 1] << 8));
    const block = data.subarray(at + 2, at + size);
    for (let j = 0; j < 32; j++) out[i + j] = scale * integer(block, j);
  }
  return out;
}

/** @param {Uint8Array} block @param {number} j */
const fourBits = (block, j) => (j < 16 ? block[j] & 15 : block[j - 16] >> 4) - 8;
/** @param {Uint8Array} block @param {number} j */
const eightBits = (block, j) => (block[j] << 24) >> 24;

/** llama.cpp's names and ours. @type {Record<string, string>} */
const NAMES = { token_embd: "wte", position_embd: "wpe", output_norm: "ln_f", output: "lm_head" };
/** @type {Record<string, string>} */
const BLOCK_NAMES = { attn_norm: "ln_1", attn_qkv: "attn.c_attn", attn_output: "attn.c_proj", ffn_norm: "ln_2", ffn_up: "mlp.c_fc", ffn_down: "mlp.c_proj" };

/** There is more to read before this can be. */
class Shortage extends Error {}

/** A place in the metadata, moving forward; every step is held against what is there. */
class Cursor {
  /** @param {Uint8Array} data @param {string} file @param {boolean} whole whether no more can come */
  constructor(data, file, whole) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.file = file;
    this.whole = whole;
    this.at = 0;
  }

  /** @param {string} what @returns {never} */
  fail(what) {
    throw new UserError(`${this.file} ${what}: damaged. Get it again.`);
  }

  /** @param {number} n @returns {number} where they begin */
  take(n) {
    if (this.at + n > this.data.length) {
      if (!this.whole) throw new Shortage();
      this.fail(`promises ${n.toLocaleString("en")} bytes more than it has room for`);
    }
    this.at += n;
    return this.at - n;
  }

  u32() {
    return this.view.getUint32(this.take(4), true);
  }

  u64() {
    const value = this.view.getBigUint64(this.take(8), true);
    if (value > 2n ** 48n) this.fail(`has the count ${value}`);
    return Number(value);
  }

  text() {
    const length = this.u64();
    if (length > METADATA_LIMIT) this.fail(`has a text of ${length.toLocaleString("en")} bytes`);
    const start = this.take(length);
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.data.subarray(start, start + length));
    } catch {
      return this.fail(`has a text before byte ${this.at.toLocaleString("en")} that is not UTF-8`);
    }
  }

  /** @param {number} type @returns {any} */
  value(type) {
    if (type === TEXT) return this.text();
    if (type === LIST) {
      const of = this.u32();
      const count = this.u64();
      const least = of === TEXT ? 8 : SCALARS[of];
      if (!least || count * least > METADATA_LIMIT) this.fail(`has a list of ${count.toLocaleString("en")} values of type ${of}`);
      return Array.from({ length: count }, () => this.value(of));
    }
    const size = SCALARS[type];
    if (!size) this.fail(`has a value of the unknown type ${type}`);
    const at = this.take(size);
    const { view } = this;
    switch (type) {
      case 0: return view.getUint8(at);
      case 1: return view.getInt8(at);
      case 2: return view.getUint16(at, true);
      case 3: return view.getInt16(at, true);
      case 4: return view.getUint32(at, true);
      case 5: return view.getInt32(at, true);
      case 6: return view.getFloat32(at, true);
      case 7: return view.getUint8(at) !== 0;
      case 10: return Number(view.getBigUint64(at, true));
      case 11: return Number(view.getBigInt64(at, true));
      default: return view.getFloat64(at, true);
    }
  }
}

/** @typedef {{name: string, shape: number[], type: GGMLType, begin: number, end: number}} GGUFTensor */

/** @param {Cursor} cursor @param {number} size of the file */
function readMetadata(cursor, size) {
  const magic = cursor.take(4);
  if (new TextDecoder().decode(cursor.data.subarray(magic, magic + 4)) !== "GGUF") throw new UserError(`${cursor.file} does not begin with 'GGUF': it is another kind of file.`);
  const version = cursor.u32();
  if (version !== 2 && version !== 3) throw new UserError(`${cursor.file} is GGUF version ${version}; versions 2 and 3 (little-endian) are read. Convert it again with a current llama.cpp.`);
  const [nTensors, nSettings] = [cursor.u64(), cursor.u64()];
  if (nTensors * 32 + nSettings * 13 > METADATA_LIMIT) cursor.fail(`promises ${nTensors.toLocaleString("en")} tensors and ${nSettings.toLocaleString("en")} settings`);
  /** @type {Map<string, any>} */
  const settings = new Map();
  for (let i = 0; i < nSettings; i++) {
    const name = cursor.text();
    if (settings.has(name)) cursor.fail(`has the setting ${shown(name)} twice`);
    settings.set(name, cursor.value(cursor.u32()));
  }
  const alignment = settings.get("general.alignment") ?? 32;
  if (!Number.isInteger(alignment) || alignment < 8 || alignment > 2 ** 20 || alignment & (alignment - 1)) cursor.fail(`has general.alignment ${shown(alignment)}, not a power of two of at least 8`);
  const listed = Array.from({ length: nTensors }, () => readTensor(cursor));
  const start = Math.ceil(cursor.at / alignment) * alignment;
  const tensors = listed.map(({ name, shape, type, offset }) => {
    const bytes = (shape.reduce((a, b) => a * b, 1) / type.block) * type.bytes;
    if (offset % alignment || start + offset + bytes > size) cursor.fail(`is ${size.toLocaleString("en")} bytes long, but ${shown(name)} of shape (${shape.join(", ")}) would be the ${bytes.toLocaleString("en")} bytes from ${(start + offset).toLocaleString("en")}`);
    return { name, shape, type, begin: start + offset, end: start + offset + bytes };
  });
  tensors.sort((a, b) => a.begin - b.begin);
  tensors.forEach((one, i) => {
    if (i > 0 && tensors[i - 1].end > one.begin) cursor.fail(`puts ${shown(one.name)} inside ${shown(tensors[i - 1].name)}`);
  });
  if (new Set(tensors.map(({ name }) => name)).size !== tensors.length) cursor.fail("has a tensor twice");
  return { settings, tensors };
}

/** @param {Cursor} cursor */
function readTensor(cursor) {
  const name = cursor.text();
  const dimensions = cursor.u32();
  if (dimensions < 1 || dimensions > 4) cursor.fail(`has the tensor ${shown(name)} of ${dimensions} dimensions`);
  const shape = Array.from({ length: dimensions }, () => cursor.u64()).reverse();
  const number = cursor.u32();
  const offset = cursor.u64();
  const type = TYPES[number];
  if (!type) throw new UserError(`${cursor.file}: ${shown(name)} is stored in type ${number}, which a browser does not read; it reads ${Object.values(TYPES).map((one) => one.name).join(", ")}. Convert it: glassgpt convert ${cursor.file} my-model`);
  if (shape[shape.length - 1] % type.block || shape.some((n) => n < 1)) cursor.fail(`has ${shown(name)} of shape (${shape.join(", ")}) in blocks of ${type.block}`);
  return { name, shape, type, offset };
}

/** llama.cpp's name -> ours. @param {string} name */
function canonicalName(name) {
  const found = /^(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)$/.exec(name);
  const ours = found && (found[1] === undefined ? NAMES : BLOCK_NAMES)[found[2]];
  if (!found || !ours) return null;
  return found[1] === undefined ? `${ours}.${found[3]}` : `h.${Number(found[1])}.${ours}.${found[3]}`;
}

/** @param {import("./byte-stream.js").ByteStream} stream */
export async function readGGUF(stream) {
  const { settings, tensors } = await readHead(stream);
  const architecture = settings.get("general.architecture");
  if (architecture !== "gpt2") throw new UserError(`${stream.name} has a model of architecture ${shown(architecture ?? null)}; only 'gpt2' is supported.`);
  if ((settings.get("split.count") ?? 1) !== 1) throw new UserError(`${stream.name} is one part of several. Join them first (llama-gguf-split --merge).`);
  const named = tensors.map((tensor) => {
    const name = canonicalName(tensor.name);
    if (name === null) throw new UserError(`${stream.name}: ${shown(tensor.name)} is not a tensor of llama.cpp's gpt2.`);
    return { ...tensor, name };
  });
  const embedding = named.find(({ name }) => name === "wte.weight");
  if (!embedding) throw new UserError(`${stream.name} has no tensor 'token_embd.weight'. Get it again.`);
  const head = named.find(({ name }) => name === "lm_head.weight");
  const repeats = head !== undefined && settings.get("glassgpt.tie_word_embeddings") !== false && head.type === embedding.type && head.shape.join() === embedding.shape.join();
  const config = readConfig(configOf(settings, embedding.shape[0], !head || repeats), stream.name);
  /** @type {import("./open.js").Placed[]} */
  const placed = named.map(({ name, shape, type, begin, end }) => {
    if (repeats && name === "lm_head.weight") return { incoming: null, begin, end, copyOf: "wte.weight" };
    return { incoming: { name, dtype: type.dtype, shape, rowsFirst: true, bytes: end - begin, dequantize: type.dequantize }, begin, end };
  });
  return { config, tensors: placed, tokenizer: tokenizerOf(settings, stream.name) };
}

/** @param {import("./byte-stream.js").ByteStream} stream */
async function readHead(stream) {
  let data = new Uint8Array();
  for (;;) {
    const more = await stream.take(Math.min(Math.max(PIECE, data.length), stream.size - stream.read));
    const longer = new Uint8Array(data.length + more.length);
    longer.set(data);
    longer.set(more, data.length);
    data = longer;
    const cursor = new Cursor(data, stream.name, stream.read === stream.size || data.length > METADATA_LIMIT);
    try {
      const found = readMetadata(cursor, stream.size);
      stream.giveBack(data.subarray(cursor.at));
      return found;
    } catch (error) {
      if (!(error instanceof Shortage)) throw error;
    }
  }
}

/** The settings as a config.json has them. @param {Map<string, any>} settings @param {number} vocabSize @param {boolean} tied */
function configOf(settings, vocabSize, tied) {
  const epsilon = settings.get("gpt2.attention.layer_norm_epsilon");
  return {
    vocab_size: vocabSize,
    n_positions: settings.get("gpt2.context_length"),
    n_embd: settings.get("gpt2.embedding_length"),
    n_layer: settings.get("gpt2.block_count"),
    n_head: settings.get("gpt2.attention.head_count"),
    n_inner: settings.get("gpt2.feed_forward_length") ?? null,
    activation_function: settings.get("glassgpt.activation_function") === "gelu" ? "gelu" : "gelu_new",
    // The file has it in float32; what the author wrote is the shortest decimal that rounds to that.
    layer_norm_epsilon: typeof epsilon === "number" ? Number(epsilon.toPrecision(7)) : epsilon,
    tie_word_embeddings: tied,
    bos_token_id: settings.get("tokenizer.ggml.bos_token_id") ?? null,
    eos_token_id: settings.get("tokenizer.ggml.eos_token_id") ?? null,
  };
}

/** The tokenizer in the file, or null. @param {Map<string, any>} settings @param {string} file */
function tokenizerOf(settings, file) {
  const own = settings.get("glassgpt.tokenizer.json");
  if (typeof own === "string") {
    let data;
    try {
      data = JSON.parse(own);
    } catch {
      throw new UserError(`glassgpt.tokenizer.json in ${file} is not JSON. Get it again.`);
    }
    return readTokenizer(data, file);
  }
  const tokens = settings.get("tokenizer.ggml.tokens");
  const merges = settings.get("tokenizer.ggml.merges") ?? [];
  if (settings.get("tokenizer.ggml.model") !== "gpt2" || !["gpt-2", "default", ""].includes(settings.get("tokenizer.ggml.pre") ?? "")) return null;
  const kinds = settings.get("tokenizer.ggml.token_type") ?? [];
  if (!Array.isArray(tokens) || !Array.isArray(merges) || (kinds.length && kinds.length !== tokens.length)) throw new UserError(`${file}: its tokens, merges and types do not fit together. Get it again.`);
  return new BPETokenizer(tokenizerJSON(tokens, kinds, merges), file);
}

const UNUSED = 5;
const USER_DEFINED = 4;

/** The same vocabulary as a tokenizer.json. @param {string[]} tokens @param {number[]} kinds @param {string[]} merges */
function tokenizerJSON(tokens, kinds, merges) {
  /** @type {Record<string, number>} */
  const vocab = Object.create(null);
  tokens.forEach((token, id) => {
    if (kinds[id] !== UNUSED) vocab[token] = id;
  });
  const made = new Set(merges.map((merge) => String(merge).replace(" ", "")));
  // A token that no merge makes can only be a special one, unless it is a byte.
  const named = Object.entries(vocab).filter(([token]) => !made.has(token) && [...token].length > 1);
  return {
    added_tokens: named.map(([content, id]) => ({ content, id, special: kinds[id] !== USER_DEFINED || content === END_OF_TEXT })),
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, use_regex: true },
    model: { type: "BPE", vocab, merges },
  };
}
