// What all tokenizers have in common (tokenizer/base.py).
import { concatBytes, decodeText } from "../formats/bytes.js";

export const END_OF_TEXT = "<|endoftext|>";

/** @typedef {{text: string, ids: number[], states: Uint8Array[][]}} WordMerges a word, its ids, and its pieces after each merge */

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
