// What the page says: a message for each key, in the reader's language. Each language is one file; the page loads one.
//
// In a message, {name} is a value, {name?one|other} chooses by the plural of a number, **words** are bold and
// [words](term) are explained (text/terms.js). Numbers are written as the language writes them; ids are given as text.

/** @type {Record<string, string>} the languages, by their names */
export const LANGUAGES = { en: "English", ko: "한국어", zh: "中文" };

/** @type {Record<string, () => Promise<{default: Record<string, string>}>>} */
const FILES = { en: () => import("./en.js"), ko: () => import("./ko.js"), zh: () => import("./zh.js") };

/** @type {Record<string, string>} what `lang` says, which decides the form of Chinese characters */
export const TAGS = { en: "en", ko: "ko", zh: "zh-Hans" };

/** Large numbers in words: what they are divided by, and what follows. @type {Record<string, [size: number, brief: string, long: string][]>} */
const UNITS = {
  en: [[1e12, " T", " trillion"], [1e9, " B", " billion"], [1e6, " M", " million"]],
  ko: [[1e12, "조", "조"], [1e8, "억", "억"], [1e4, "만", "만"]],
  zh: [[1e12, " 万亿", " 万亿"], [1e8, " 亿", " 亿"], [1e4, " 万", " 万"]],
};

let current = "en";
/** @type {Record<string, string>} */ let messages = {};
let plurals = new Intl.PluralRules("en");

/** The language of the page. */
export const language = () => current;

/** The language that the address names, or else the first of the browser's that the page speaks. */
export function readersLanguage(asked = new URLSearchParams(location.hash.slice(1)).get("lang") ?? "") {
  const wanted = [asked, ...navigator.languages].map((tag) => tag.split("-")[0]);
  return wanted.find((code) => Object.hasOwn(FILES, code)) ?? "en";
}

/** Speak a language from now on: what was said before stays as it is. @param {string} code */
export async function speak(code) {
  messages = (await FILES[code]()).default;
  current = code;
  plurals = new Intl.PluralRules(code);
  document.documentElement.lang = TAGS[code];
}

/** A number with its thousands separated. @param {number} n */
export const number = (n) => n.toLocaleString(TAGS[current]);

/** A large number in words: 46.7 M, 4,670만. @param {number} n @param {{long?: boolean, digits?: number}} [how] */
export function large(n, { long = false, digits } = {}) {
  const unit = UNITS[current].find(([size]) => n >= size);
  if (!unit) return number(n);
  const value = n / unit[0];
  // 만 and 万 are small units: three digits say enough.
  const text = digits !== undefined && current === "en" ? value.toFixed(digits) : number(Number(value.toPrecision(3)));
  return `${text}${unit[long ? 2 : 1]}`;
}

/** @param {string} key */
export function messageFor(key) {
  if (!Object.hasOwn(messages, key)) throw new Error(`There is no message ${key} in ${current}.`);
  return messages[key];
}

/** Whether there is a message: for names that come from elsewhere. @param {string} key */
export const isKnown = (key) => Object.hasOwn(messages, key);

/** A value, or the words for its plural. @param {Record<string, any>} values @param {string} name @param {string | undefined} one @param {string} other */
export function valueOf(values, name, one, other) {
  if (!(name in values)) throw new Error(`No value for {${name}}.`);
  const value = values[name];
  if (one !== undefined) return plurals.select(value) === "one" ? one : other;
  return typeof value === "number" ? number(value) : value;
}

/** @param {string} template @param {Record<string, any>} values */
export const fillIn = (template, values) => template.replace(/\{(\w+)(?:\?([^|}]*)\|([^}]*))?\}/g, (_, name, one, other) =>
  valueOf(values, name, one, other));

/** A message as text. @param {string} key @param {Record<string, string | number>} [values] */
export const t = (key, values = {}) => fillIn(messageFor(key), values);

await speak(readersLanguage());
