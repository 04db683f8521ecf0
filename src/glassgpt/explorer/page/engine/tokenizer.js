// Text to ids and back: the counterpart of glassgpt/tokenizer, with the same ids for every text.
//
// Byte-level BPE: a text is split into words and a word into its UTF-8 bytes. Then the adjacent pair with the lowest
// rank is merged, again and again, until no adjacent pair has a rank. The remaining pieces are the tokens.
import { LETTERS, NUMBERS, WHITE_SPACE } from "./categories.js";
import { concatBytes, decodeText, shown } from "./bytes.js";
import { UserError } from "./wasm.js";

export const END_OF_TEXT = "<|endoftext|>";
const HIGHEST_ID = 2 ** 24;

/** @typedef {{text: string, ids: number[], states: Uint8Array[][]}} WordMerges a word, its ids, and its pieces after each merge */

/** Hexadecimal ranges as the contents of a character class. @param {string} ranges */
function characters(ranges) {
  return ranges.trim().split(/\s+/).map((part) => part.split("-").map((end) => `\\u{${end}}`).join("-")).join("");
}

const [letters, numbers, spaces] = [LETTERS, NUMBERS, WHITE_SPACE].map(characters);
// As in tokenizer/pre_tokenizer.py: English contractions, letters, digits, all other printable characters (each with
// one leading space), then runs of white space. The lookahead leaves the last space of a run to the next word.
const WORDS = new RegExp(`'(?:[sdmt]|ll|ve|re)| ?[${letters}]+| ?[${numbers}]+| ?[^${spaces}${letters}${numbers}]+|[${spaces}]+(?![^${spaces}])|[${spaces}]+`, "gu");

/** Words, within which merges happen; concatenated they are the text again. @param {string} text @returns {string[]} */
export function splitWords(text) {
  return text.match(WORDS) ?? [];
}

/** The character that stands for each byte in vocabulary files: printable ones for themselves, the others from U+0100 on. */
const VISIBLE = (() => {
  const isVisible = (/** @type {number} */ b) => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  let moved = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isVisible(byte) ? byte : moved++));
})();
const BYTE_OF = new Map(VISIBLE.map((char, byte) => [char, byte]));

/** The tokenizer that the object in a tokenizer.json describes. @param {any} data @param {string} file its name @returns {Tokenizer} */
export function readTokenizer(data, file = "tokenizer.json") {
  if (data === null || typeof data !== "object" || Array.isArray(data)) throw new UserError(`${file} is not a JSON object.`);
  const own = data.glassgpt_tokenizer;
  if (own === "performance" || own === "chorale") return new NamedTokenizer(own === "chorale" ? choraleNames() : eventNames(data, file), own);
  if (own === "byte") return new CharacterTokenizer(null);
  if (own === "char") return new CharacterTokenizer(checkedCharacters(data.characters, file));
  if (own !== undefined) throw new UserError(`${file}: glassgpt_tokenizer is ${shown(own)}; known are 'byte', 'char', 'performance' and 'chorale'.`);
  return characterLevel(data) ?? new BPETokenizer(data, file);
}

/** @param {any} characters @param {string} file */
function checkedCharacters(characters, file) {
  if (typeof characters !== "string" || [...new Set(characters)].sort(byCodePoint).join("") !== characters) throw new UserError(`${file}: characters must be a string of different characters in code point order.`);
  return [...characters];
}

/** @param {string} a @param {string} b */
const byCodePoint = (a, b) => /** @type {number} */ (a.codePointAt(0)) - /** @type {number} */ (b.codePointAt(0));

/** A tokenizer without merges, one id per character or per byte; null for any other. @param {any} data */
function characterLevel(data) {
  const vocab = data.model?.vocab;
  if (!Array.isArray(data.model?.merges) || data.model.merges.length || vocab === null || typeof vocab !== "object") return null;
  const names = Object.keys(vocab).sort((a, b) => vocab[a] - vocab[b]);
  if (names.at(-1) !== END_OF_TEXT || names.some((name, i) => vocab[name] !== i)) return null;
  const single = names.slice(0, -1);
  if (!single.every((name) => [...name].length === 1)) return null;
  if (data.pre_tokenizer?.type === "ByteLevel") return single.length === 256 && single.every((name) => BYTE_OF.has(name)) ? new CharacterTokenizer(null) : null;
  return data.pre_tokenizer === null && single.every((name, i) => i === 0 || byCodePoint(single[i - 1], name) < 0) ? new CharacterTokenizer(single) : null;
}

/** What all tokenizers have in common. */
export class Tokenizer {
  constructor() {
    /** @type {(Uint8Array | null)[]} the bytes of each id */
    this.tokens = [];
    /** @type {Map<string, number>} */
    this.special = new Map();
    /** @type {number | null} */
    this.eot = null;
    this.kind = "bpe";
  }

  /** @param {string} _text @returns {number[]} */
  encode(_text) {
    throw new Error("every kind has its own");
  }

  /** @param {string} text @returns {WordMerges[]} without merges, every token is a word */
  explain(text) {
    return this.encode(text).map((id) => ({ text: decodeText(this.bytesOf(id)), ids: [id], states: [[this.bytesOf(id)]] }));
  }

  /** @param {number} id */
  bytesOf(id) {
    return this.tokens[id] ?? new Uint8Array();
  }

  /** @param {readonly number[]} ids */
  decode(ids) {
    return decodeText(concatBytes(ids.map((id) => this.bytesOf(id))));
  }

  /** The highest id of ordinary text plus one: special tokens may have higher ids. */
  get textSize() {
    return this.tokens.length;
  }

  /** Whether this can be the tokenizer of a model with so many token embeddings. @param {number} embeddings */
  fits(embeddings) {
    const padding = embeddings - this.tokens.length;
    return this.textSize <= embeddings && padding <= Math.min(1023, Math.max(127, Math.floor(this.tokens.length / 8)));
  }
}

/** One id per character of a fixed set, or per byte; the last id is the end of the text. */
class CharacterTokenizer extends Tokenizer {
  /** @param {string[] | null} characters null: bytes */
  constructor(characters) {
    super();
    this.kind = characters ? "char" : "byte";
    this.ids = characters && new Map(characters.map((char, i) => [char, i]));
    this.tokens = characters ? characters.map((char) => new TextEncoder().encode(char)) : Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte));
    this.eot = this.tokens.length;
    this.tokens.push(new TextEncoder().encode(END_OF_TEXT));
    this.special.set(END_OF_TEXT, this.eot);
  }

  /** @param {string} text */
  encode(text) {
    if (!this.ids) return [...new TextEncoder().encode(text)];
    const ids = this.ids;
    return [...text.toWellFormed()].map((char) => {
      const id = ids.get(char);
      if (id === undefined) throw new UserError(`${shown(char)} is not among the ${ids.size} characters of this vocabulary; remove it, or train on text that contains it`);
      return id;
    });
  }
}

/** Tokens with names, which a text separates by spaces: the events of music. */
class NamedTokenizer extends Tokenizer {
  /** @param {{names: string[], events: number}} names @param {string} kind */
  constructor({ names, events }, kind) {
    super();
    this.kind = kind;
    this.names = names;
    this.ids = new Map(names.map((name, i) => [name, i]));
    this.tokens = names.map((name) => new TextEncoder().encode(` ${name}`));
    this.eot = events;
    this.special.set(END_OF_TEXT, events);
  }

  /** @param {string} text */
  encode(text) {
    return text.split(/\s+/).filter(Boolean).map((name) => {
      const id = this.ids.get(name);
      if (id === undefined || id === this.eot) {
        throw new UserError(`${shown(name)} is not an event of this vocabulary. Its events are ${this.names[0]}, ${this.names[1]}, ..., ${this.names[/** @type {number} */ (this.eot) - 1]}; spaces separate them.`);
      }
      return id;
    });
  }
}

/** @param {any} data @param {string} file */
function eventNames(data, file) {
  /** @type {Record<string, number[]>} lowest and highest pitch, and ids in front that are no events */
  const known = { performance: [0, 127, 0], magenta: [21, 108, 2] };
  const melody = data.melody ?? false;
  if (!Object.hasOwn(known, data.events) || typeof melody !== "boolean") {
    throw new UserError(`${file}: events is ${shown(data.events)} and melody ${shown(melody)}; events are one of performance, magenta, and melody is true or false.`);
  }
  const [lowest, highest, reserved] = known[data.events];
  const named = (/** @type {string} */ name, /** @type {number} */ first, /** @type {number} */ last) => Array.from({ length: last - first + 1 }, (_, i) => `${name}_${first + i}`);
  const events = [...named("RESERVED", 0, reserved - 1), ...named("NOTE_ON", lowest, highest), ...named("NOTE_OFF", lowest, highest), ...named("TIME_SHIFT", 1, 100), ...named("VELOCITY", 1, 32)];
  return { names: [...events, END_OF_TEXT, ...(melody ? ["MELODY", "ACCOMPANIMENT"] : [])], events: events.length };
}

function choraleNames() {
  return { names: [...Array.from({ length: 128 }, (_, pitch) => `PITCH_${pitch}`), "REST", END_OF_TEXT], events: 129 };
}

/** GPT-2's own kind, from Hugging Face's tokenizer.json. */
export class BPETokenizer extends Tokenizer {
  /** @param {any} data @param {string} file */
  constructor(data, file) {
    super();
    const { ids, merges } = checkedModel(data, file);
    /** @type {Map<string, number>} tokens found in every text */
    this.added = new Map();
    for (const [name, id, special] of namedTokens(data, file)) (special ? this.special : this.added).set(name, id);
    this.eot = this.special.get(END_OF_TEXT) ?? null;
    this.byteIds = VISIBLE.map((char) => /** @type {number} */ (ids.get(char)));
    const missing = VISIBLE.findIndex((char) => !ids.has(char));
    if (missing >= 0) throw new UserError(`${file} has no token for the byte 0x${missing.toString(16).padStart(2, "0")}; it is not a byte-level vocabulary.`);
    this.#fillTokens(ids, file);
    /** @type {Map<number, {rank: number, made: number}>} by the two ids of a pair, in one number */
    this.ranks = new Map();
    /** @type {[number, number][]} */
    this.pairs = [];
    this.#fillRanks(ids, merges, file);
    this.pattern = this.added.size ? new RegExp([...this.added.keys()].sort((a, b) => b.length - a.length).map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "gu") : null;
    /** @type {Map<string, number[]>} words repeat */
    this.known = new Map();
  }

  /** @param {Map<string, number>} ids @param {string} file */
  #fillTokens(ids, file) {
    const named = new Map([...this.special, ...this.added]);
    const size = 1 + Math.max(...[...ids.values(), ...named.values()].reduce(([most], id) => [Math.max(most, id)], [0]));
    this.tokens = new Array(size).fill(null);
    for (const [name, id] of ids) {
      if (this.tokens[id]) throw new UserError(`${file}: id ${id} is assigned to two tokens; ${shown(name)} is the second.`);
      this.tokens[id] = named.has(name) ? new TextEncoder().encode(name) : this.#bytesOfName(name, file);
    }
    for (const [name, id] of named) this.tokens[id] ??= new TextEncoder().encode(name);
  }

  /** @param {string} name @param {string} file */
  #bytesOfName(name, file) {
    const bytes = new Uint8Array(name.length);
    for (let i = 0; i < name.length; i++) {
      const byte = BYTE_OF.get(name[i]);
      if (byte === undefined) throw new UserError(`${file}: token ${shown(name)} contains ${shown(name[i])}, which does not encode a byte; this is not a byte-level vocabulary.`);
      bytes[i] = byte;
    }
    return bytes;
  }

  /** @param {Map<string, number>} ids @param {[string, string][]} merges @param {string} file */
  #fillRanks(ids, merges, file) {
    const reachable = new Set(this.byteIds);
    for (const [left, right] of merges) {
      const [a, b, made] = [ids.get(left), ids.get(right), ids.get(left + right)];
      if (a === undefined || b === undefined || made === undefined) throw new UserError(`${file}: the merge of ${shown(left)} and ${shown(right)} is not in its vocabulary.`);
      if (!reachable.has(a) || !reachable.has(b)) throw new UserError(`${file}: no earlier merge makes ${shown(reachable.has(a) ? right : left)}; the merges are out of order.`);
      reachable.add(made);
      const key = a * HIGHEST_ID + b;
      if (this.ranks.has(key)) continue;
      this.ranks.set(key, { rank: this.pairs.length, made });
      this.pairs.push([a, b]);
    }
    this.ordinary = 1 + [...reachable].reduce((most, id) => Math.max(most, id), 0);
  }

  get textSize() {
    return this.ordinary ?? this.tokens.length;
  }

  /** @param {string} text */
  encode(text) {
    /** @type {number[]} */
    const ids = [];
    for (const [piece, id] of this.#pieces(text)) {
      for (const word of splitWords(piece)) for (const one of this.#encodeWord(word)) ids.push(one);
      if (id !== null) ids.push(id);
    }
    return ids;
  }

  /** Ordinary text, each with the id of the added token after it (null at the end). @param {string} text @returns {Generator<[string, number | null]>} */
  *#pieces(text) {
    text = text.toWellFormed();
    let start = 0;
    for (const match of this.pattern ? text.matchAll(this.pattern) : []) {
      yield [text.slice(start, match.index), /** @type {number} */ (this.added.get(match[0]))];
      start = match.index + match[0].length;
    }
    yield [text.slice(start), null];
  }

  /** @param {string} word */
  #encodeWord(word) {
    let ids = this.known.get(word);
    if (!ids) {
      ids = this.#merge(this.#start(word));
      if (this.known.size >= 20000) this.known.clear();
      if (word.length <= 64) this.known.set(word, ids);
    }
    return ids;
  }

  /** @param {string} word */
  #start(word) {
    return Array.from(new TextEncoder().encode(word), (byte) => this.byteIds[byte]);
  }

  /** The pair that is merged next, or null. @param {number[]} ids */
  #next(ids) {
    let best = null;
    for (let i = 1; i < ids.length; i++) {
      const found = this.ranks.get(ids[i - 1] * HIGHEST_ID + ids[i]);
      if (found && (best === null || found.rank < best.rank)) best = found;
    }
    return best;
  }

  /** @param {number[]} ids */
  #merge(ids) {
    if (ids.length > 200) return mergeLong(ids, this.ranks);
    for (let best = this.#next(ids); best; best = this.#next(ids)) ids = mergePair(ids, this.pairs[best.rank], best.made);
    return ids;
  }

  /** Every word with its pieces after each merge. @param {string} text @returns {WordMerges[]} */
  explain(text) {
    /** @type {WordMerges[]} */
    const words = [];
    for (const [piece, id] of this.#pieces(text)) {
      for (const word of splitWords(piece)) words.push(this.#explainWord(word));
      if (id !== null) words.push({ text: decodeText(this.bytesOf(id)), ids: [id], states: [[this.bytesOf(id)]] });
    }
    return words;
  }

  /** @param {string} word */
  #explainWord(word) {
    let ids = this.#start(word);
    const states = [ids];
    for (let best = this.#next(ids); best; best = this.#next(ids)) states.push((ids = mergePair(ids, this.pairs[best.rank], best.made)));
    return { text: word, ids, states: states.map((some) => some.map((id) => this.bytesOf(id))) };
  }
}

/** Replace every occurrence of the pair, from left to right, by its merged id. @param {number[]} ids @param {[number, number]} pair @param {number} made */
function mergePair(ids, [left, right], made) {
  const result = [];
  for (let i = 0; i < ids.length; i++) {
    const both = ids[i] === left && ids[i + 1] === right;
    result.push(both ? made : ids[i]);
    if (both) i++;
  }
  return result;
}

/**
 * The same merges for a long word: a linked list of pieces, and the pairs that can be merged by rank and place.
 * @param {number[]} word @param {Map<number, {rank: number, made: number}>} ranks
 */
function mergeLong(word, ranks) {
  const ids = word.slice();
  const n = ids.length;
  const after = Int32Array.from(ids, (_, i) => i + 1);
  const before = Int32Array.from(ids, (_, i) => i - 1);
  /** @type {Heap} */
  const heap = new Heap();
  const look = (/** @type {number} */ i) => {
    const j = i < 0 ? n : after[i];
    const found = j < n ? ranks.get(ids[i] * HIGHEST_ID + ids[j]) : undefined;
    if (found) heap.push({ key: found.rank * 2 ** 32 + i, made: found.made, i, left: ids[i], right: ids[j] });
  };
  for (let i = 0; i < n - 1; i++) look(i);
  for (let one = heap.pop(); one; one = heap.pop()) {
    const { made, i, left, right } = one;
    const j = after[i];
    if (ids[i] !== left || j >= n || ids[j] !== right) continue; // one of the two was merged with its other neighbor
    ids[i] = made;
    ids[j] = -1;
    after[i] = after[j];
    if (after[i] < n) before[after[i]] = i;
    look(i);
    look(before[i]);
  }
  return ids.filter((id) => id >= 0);
}

/** @typedef {{key: number, made: number, i: number, left: number, right: number}} Candidate */

/** The smallest key first. */
class Heap {
  constructor() {
    /** @type {Candidate[]} */
    this.items = [];
  }

  /** @param {Candidate} item */
  push(item) {
    const { items } = this;
    let at = items.push(item) - 1;
    for (let up = (at - 1) >> 1; at > 0 && items[up].key > item.key; at = up, up = (at - 1) >> 1) items[at] = items[up];
    items[at] = item;
  }

  pop() {
    const { items } = this;
    const first = items[0];
    const last = items.pop();
    if (items.length === 0 || last === undefined) return first;
    let at = 0;
    for (;;) {
      let down = 2 * at + 1;
      if (down + 1 < items.length && items[down + 1].key < items[down].key) down++;
      if (down >= items.length || items[down].key >= last.key) break;
      items[at] = items[down];
      at = down;
    }
    items[at] = last;
    return first;
  }
}

/** The vocabulary and the merges of a tokenizer.json, once it is sure that it is GPT-2's kind. @param {any} data @param {string} file */
function checkedModel(data, file) {
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
function namedTokens(data, file) {
  return (Array.isArray(data.added_tokens) ? data.added_tokens : []).map((/** @type {any} */ entry) => {
    const name = entry?.content;
    if (typeof name !== "string" || !name) throw new UserError(`${file}: an added token without content: ${shown(entry)}.`);
    checkId(file, name, entry.id);
    for (const option of ["lstrip", "rstrip", "single_word"]) if (entry[option]) throw new UserError(`${file}: added token ${shown(name)} with ${option} is not supported.`);
    return [name, entry.id, Boolean(entry.special)];
  });
}
