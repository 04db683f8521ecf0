// Text to ids and back: the counterpart of glassgpt/tokenizer, with the same ids for every text.
import { END_OF_TEXT, Tokenizer } from "./base-tokenizer.js";
import { BPETokenizer, BYTE_OF } from "./bpe.js";
import { shown } from "../formats/bytes.js";
import { UserError } from "../model/wasm.js";

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
