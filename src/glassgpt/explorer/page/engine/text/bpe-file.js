// The vocabulary in a tokenizer.json of Hugging Face's, refused by name where it is not GPT-2's kind
// (tokenizer/tokenizer_json.py).
import { shown } from "../formats/bytes.js";
import { UserError } from "../model/wasm.js";

const HIGHEST_ID = 2 ** 24;

/** The vocabulary and the merges of a tokenizer.json, once it is sure that it is GPT-2's kind. @param {any} data @param {string} file */
export function checkedModel(data, file) {
  const model = data.model;
  const isObject = (/** @type {unknown} */ value) => value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isObject(model) || !isObject(model.vocab) || !Array.isArray(model.merges)) throw new UserError(`${file} has no model with vocab and merges; it is not a BPE tokenizer.json.`);
  const kind = model.type ?? "BPE";
  if (kind !== "BPE") throw new UserError(`${file}: the model is ${shown(kind)}; only byte-level BPE is supported.`);
  for (const key of ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"]) {
    if (model[key]) throw new UserError(`${file}: model.${key} is ${shown(model[key])}; GPT-2's BPE has none, so it is not supported.`);
  }
  if (data.normalizer) throw new UserError(`${file}: the normalizer ${shown(data.normalizer.type)} is not supported; GPT-2's has none.`);
  const cutter = data.pre_tokenizer;
  if (cutter?.type !== "ByteLevel") throw new UserError(`${file}: the pre-tokenizer ${shown(cutter?.type ?? "none")} is not supported; GPT-2's is 'ByteLevel'.`);
  if (!(cutter.use_regex ?? true)) throw new UserError(`${file}: the pre-tokenizer 'ByteLevel' with use_regex false is not supported.`);
  if (cutter.add_prefix_space ?? true) throw new UserError(`${file}: the pre-tokenizer 'ByteLevel' with add_prefix_space true is not supported.`);
  /** @type {Map<string, number>} */
  const ids = new Map(Object.entries(model.vocab));
  for (const [name, id] of ids) checkId(file, name, id);
  /** @type {[string, string][]} */
  const merges = model.merges.map((/** @type {unknown} */ merge, /** @type {number} */ i) => {
    const parts = typeof merge === "string" ? merge.split(" ") : merge;
    if (!Array.isArray(parts) || parts.length !== 2 || !parts.every((part) => typeof part === "string" && part)) throw new UserError(`${file}, merge ${i + 1} is ${shown(merge)}; it must be two tokens.`);
    return parts;
  });
  return { ids, merges };
}

/** @param {string} file @param {string} name @param {unknown} id */
function checkId(file, name, id) {
  if (!Number.isInteger(id) || /** @type {number} */ (id) < 0 || /** @type {number} */ (id) >= HIGHEST_ID) throw new UserError(`${file}: the id of ${shown(name)} is ${shown(id)}, not an integer from 0 to ${HIGHEST_ID - 1}.`);
  if (!name.isWellFormed()) throw new UserError(`${file}: the token ${shown(name)} contains a lone surrogate.`);
}

/** Special and added tokens. @param {any} data @param {string} file @returns {[string, number, boolean][]} */
export function namedTokens(data, file) {
  return (Array.isArray(data.added_tokens) ? data.added_tokens : []).map((/** @type {any} */ entry) => {
    const name = entry?.content;
    if (typeof name !== "string" || !name) throw new UserError(`${file}: an added token without content: ${shown(entry)}.`);
    checkId(file, name, entry.id);
    for (const option of ["lstrip", "rstrip", "single_word"]) if (entry[option]) throw new UserError(`${file}: added token ${shown(name)} with ${option} is not supported.`);
    return [name, entry.id, Boolean(entry.special)];
  });
}
