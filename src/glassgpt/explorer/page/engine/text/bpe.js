// Byte-level byte-pair encoding (tokenizer/bpe.py): a text is split into words and a word into its UTF-8 bytes. Then the
// adjacent pair with the lowest rank is merged, again and again, until no adjacent pair has a rank. The remaining pieces
// are the tokens.
import { END_OF_TEXT, Tokenizer } from "./base-tokenizer.js";
import { checkedModel, namedTokens } from "./bpe-file.js";
import { mergeLong, mergePair } from "./bpe-merges.js";
import { LETTERS, NUMBERS, WHITE_SPACE } from "./categories.js";
import { decodeText, shown } from "../formats/bytes.js";
import { UserError } from "../model/wasm.js";

/** @typedef {import("./base-tokenizer.js").WordMerges} WordMerges */

const HIGHEST_ID = 2 ** 24;

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
export const VISIBLE = (() => {
  const isVisible = (/** @type {number} */ b) => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  let moved = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isVisible(byte) ? byte : moved++));
})();
export const BYTE_OF = new Map(VISIBLE.map((char, byte) => [char, byte]));

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
