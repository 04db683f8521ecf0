// Files of a model into a running one: a packed folder, a Hugging Face folder with one safetensors file, or a GGUF file.
// Everything is checked before anything is computed.
import { ByteStream } from "./byte-stream.js";
import { readConfig } from "../model/config.js";
import { readGGUF } from "./gguf.js";
import { Model } from "../model/model.js";
import { readHeader } from "./safetensors.js";
import { readTokenizer } from "../text/tokenizer.js";
import { UserError, Wasm } from "../model/wasm.js";
import { WeightLoader } from "./weights.js";

/** @typedef {{name: string, size: number, stream: () => Promise<ReadableStream<Uint8Array>>}} ModelFile a file, wherever it lies */

const SMALL = 64e6; // bytes of a config or a vocabulary, at most

/** @param {ModelFile[]} files @returns {ModelFile} the one with the weights */
export function weightsOf(files) {
  const named = (/** @type {(name: string) => boolean} */ fits) => files.filter(({ name }) => fits(name.toLowerCase()));
  for (const found of [named((name) => name.endsWith(".gguf")), named((name) => name.endsWith(".safetensors"))]) {
    if (found.length === 1) return found[0];
    if (found.length > 1) throw new UserError(`${found.length} files of weights: ${found.map(({ name }) => name).slice(0, 3).join(", ")}. Choose the files of one model (a model in several parts: join them with glassgpt convert).`);
  }
  throw new UserError(`No weights among ${files.length === 1 ? files[0].name : `${files.length} files`}. Drop a folder with config.json and model.safetensors, or a .gguf file. For other formats: glassgpt convert MODEL my-model`);
}

/** @param {ModelFile | undefined} file @returns {Promise<any>} */
async function readJSON(file) {
  if (!file) return undefined;
  if (file.size > SMALL) throw new UserError(`${file.name} has ${file.size.toLocaleString("en")} bytes, too many for such a file.`);
  const stream = new ByteStream(await file.stream(), file.name, file.size, () => {});
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await stream.take(file.size)));
  } catch (error) {
    if (error instanceof UserError) throw error;
    throw new UserError(`${file.name} is not JSON. Get it again.`);
  } finally {
    await stream.close();
  }
}

/**
 * @param {ModelFile[]} files @param {WebAssembly.Module} module @param {{name: string, number: number}} which
 * @param {(loaded: number, total: number) => void} progress
 * @returns {Promise<Model>}
 */
export async function openModel(files, module, { name, number }, progress) {
  const file = weightsOf(files);
  const find = (/** @type {string} */ wanted) => files.find((each) => each.name.toLowerCase() === wanted);
  const stream = new ByteStream(await file.stream(), file.name, file.size, (read) => progress(read, file.size));
  try {
    const wasm = await Wasm.start(module);
    const isGGUF = file.name.toLowerCase().endsWith(".gguf");
    const { config, tensors, tokenizer } = isGGUF ? await readGGUF(stream) : await readFolder(stream, find);
    const loader = new WeightLoader(wasm, config, file.name);
    loader.check(tensors.map(({ incoming }) => incoming).filter((incoming) => incoming !== null));
    await loadAll(loader, tensors, stream);
    checkTokenizer(tokenizer, config.vocab_size, file.name);
    return new Model({ wasm, handle: loader.finish(), isInt4: tensors.some(({ incoming }) => incoming?.dtype === "U8"), config, vectors: loader.kept, tokenizer, name, number });
  } finally {
    await stream.close();
  }
}

/** @typedef {{incoming: import("./weights.js").Incoming | null, begin: number, end: number, copyOf?: string}} Placed a tensor and its bytes; null: not one of the model's */

/** @param {WeightLoader} loader @param {Placed[]} tensors in the order of the file @param {ByteStream} stream */
async function loadAll(loader, tensors, stream) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const { incoming, begin, end, copyOf } of tensors) {
    await stream.skipTo(begin);
    if (incoming) {
      const watched = incoming.name === "wte.weight" && tensors.some((other) => other.copyOf) ? new Watched(stream) : stream;
      await loader.add(incoming, /** @type {ByteStream} */ (watched));
      if (watched instanceof Watched) sums.set(incoming.name, watched.sum);
    } else if (copyOf) {
      const copy = new Watched(stream);
      await copy.pass(end - begin, () => {});
      sums.set("copy", copy.sum);
    }
  }
  if (sums.size === 2 && sums.get("copy") !== sums.get("wte.weight")) {
    throw new UserError(`${loader.file}: lm_head.weight differs from wte.weight, but the config ties them. Set "tie_word_embeddings": false in config.json if the head is its own.`);
  }
}

/** A stream whose bytes are summed up, to compare two tensors of which only one is kept. */
class Watched {
  /** @param {ByteStream} stream */
  constructor(stream) {
    this.stream = stream;
    this.sum = 0;
  }

  /** @param {number} length @param {(piece: Uint8Array, at: number) => void} take */
  pass(length, take) {
    return this.stream.pass(length, (piece, at) => {
      for (let i = 0; i < piece.length; i++) this.sum = (this.sum * 31 + piece[i]) % 0x1fffffffffff;
      take(piece, at);
    });
  }

  /** @param {number} length */
  async take(length) {
    const bytes = new Uint8Array(length);
    await this.pass(length, (piece, at) => bytes.set(piece, at));
    return bytes;
  }
}

/** A packed folder, or Hugging Face's. @param {ByteStream} stream @param {(name: string) => ModelFile | undefined} find */
async function readFolder(stream, find) {
  const { tensors, metadata } = await readHeader(stream);
  const isPacked = tensors.some(({ dtype }) => dtype === "I8" || dtype === "U8");
  let values = await readJSON(find("config.json"));
  if (values === undefined && metadata.config) {
    try {
      values = JSON.parse(metadata.config);
    } catch {
      throw new UserError(`the config in ${stream.name} is not JSON. Put the model's config.json next to it.`);
    }
  }
  if (values === undefined) throw new UserError(`${stream.name} came without its config.json. Drop the whole folder, or both files together.`);
  const config = readConfig(values);
  const described = await readJSON(find("tokenizer.json"));
  const tokenizer = described === undefined ? null : readTokenizer(described);
  /** @type {Placed[]} */
  const placed = tensors.map(({ name, dtype, shape, begin, end }) => {
    const ours = name.replace(/^transformer\./, "");
    if (/^h\.\d+\.attn\.(bias|masked_bias)$/.test(ours)) return { incoming: null, begin, end };
    if (ours === "score.weight") return { incoming: null, begin, end }; // the head of a classifier
    if (ours === "lm_head.weight" && config.tie_word_embeddings && !isPacked) return { incoming: null, begin, end, copyOf: "wte.weight" };
    return { incoming: { name: ours, dtype, shape, rowsFirst: isPacked, bytes: end - begin, dequantize: null }, begin, end };
  });
  return { config, tensors: placed, tokenizer };
}

/** @param {import("../text/base-tokenizer.js").Tokenizer | null} tokenizer @param {number} embeddings @param {string} file */
function checkTokenizer(tokenizer, embeddings, file) {
  if (tokenizer && !tokenizer.fits(embeddings)) {
    throw new UserError(`The tokenizer has ${tokenizer.tokens.length.toLocaleString("en")} tokens, but the model of ${file} has ${embeddings.toLocaleString("en")} embeddings. Use the tokenizer that belongs to the model.`);
  }
}
