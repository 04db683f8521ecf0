// The values of a request, checked as explorer/schemas.py checks them.
import { shown } from "./formats/bytes.js";
import { UserError } from "./model/wasm.js";

/** @typedef {import("./model/model.js").Model} Model */

/** @param {string} message @param {string | null} [field] */
export const invalid = (message, field = null) => new UserError(message, 422, field);

/** @param {string} text */
export function parseBody(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw invalid("The body is not JSON.");
  }
}

/** @param {any} body @param {string[]} known */
export function checkFields(body, known) {
  if (body === null || typeof body !== "object" || Array.isArray(body)) throw invalid("The body is not a JSON object.");
  const other = Object.keys(body).find((name) => !known.includes(name));
  if (other !== undefined) throw invalid(`${other.slice(0, 100)} is not a field of this request. Correct its name, or leave it out.`, other);
}

/** @param {any} body @param {string} name */
export function number(body, name) {
  const value = body?.[name] ?? 0;
  if (!Number.isInteger(value) || value < 0) throw invalid(`${name}: ${shown(value)} is not an integer.`, name);
  return value;
}

/** @param {URLSearchParams} query @param {string} name @param {number} [usual] */
export function indexOf(query, name, usual) {
  const text = query.get(name);
  if (text === null && usual !== undefined) return usual;
  if (text === null) throw invalid(`${name}: this field is missing.`, name);
  if (!/^\d{1,10}$/.test(text)) throw invalid(`${name}: ${shown(text)} is not an integer.`, name);
  return Number(text);
}

/** @param {string} name @param {unknown} value @param {number} size @returns {number} */
export function below(name, value, size) {
  if (!Number.isInteger(value) || /** @type {number} */ (value) < 0) throw invalid(`${name}: ${shown(value ?? null)} is not an integer.`, name);
  if (/** @type {number} */ (value) >= size) {
    throw invalid(name === "token" || name === "target" ? `${name}: ${value} is not a token id of this model.` : `${name}: ${value} is out of range. Use 0 to ${size - 1}.`, name);
  }
  return /** @type {number} */ (value);
}

/** The ids, once it is sure that this model can read them. @param {Model} model @param {any} ids @param {string} field @returns {number[]} */
export function checkIds(model, ids, field) {
  if (!Array.isArray(ids)) throw invalid(`${field}: ${shown(ids ?? null)} is not a list.`, field);
  if (ids.length === 0) {
    const eot = model.tokenizer?.eot ?? null;
    if (eot === null || eot >= model.size) throw invalid("The text is empty. Enter at least one token.", field);
    return [eot]; // as at the start of a document in training
  }
  const unknown = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= model.size);
  if (unknown !== undefined) throw invalid(`${field}: ${shown(unknown)} is not a token id. Use 0 to ${(model.size - 1).toLocaleString("en")}.`, field);
  if (ids.length > model.maxTokens) throw invalid(`${field}: ${ids.length.toLocaleString("en")} tokens are over the limit of ${model.maxTokens.toLocaleString("en")}. Shorten the text.`, field);
  return ids;
}

/** The same text in the same model has the same id. @param {number} which @param {readonly number[]} ids */
export function idOf(which, ids) {
  let [a, b] = [0x811c9dc5, 0x01000193];
  for (const id of [which, ...ids]) {
    a = Math.imul(a ^ id, 0x01000193);
    b = Math.imul(b + id, 0x85ebca6b) ^ (b >>> 13);
  }
  return `${(a >>> 0).toString(16).padStart(8, "0")}${(b >>> 0).toString(16).padStart(8, "0")}${ids.length.toString(16)}`;
}
