// Every question to the server goes through here, so that an exported page can answer from what it carries.

import { answer } from "./offline.js";

const ROOT = "/api/v1";
const KEPT = 200;

/** A mistake that the server explained. */
export class ApiError extends Error {
  /** @param {string} message @param {number} [status] */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** What an exported page carries. Null when there is a server. */
const offline = readOffline();

/** @type {Map<string, unknown>} answers, the latest used last: what a trace says never changes */
const kept = new Map();

/** @type {Map<string, AbortController>} the one request under way in each slot */
const slots = new Map();

/** @type {Map<string, Promise<unknown>>} requests under way that belong to no slot: who asks the same shares them */
const shared = new Map();

/** @returns {import("./offline.js").Carried | null} */
function readOffline() {
  const block = document.getElementById("glass-offline");
  if (!block) return null;
  const found = JSON.parse(block.textContent ?? "{}");
  return { ...found, streams: found.streams.map(decode), layers: found.layers.map(decode) };
}

/** The name of a question: the path with its query and, after a space, the body as JSON with sorted keys. @param {string} path @param {unknown} [body] */
export function keyOf(path, body) {
  return body === undefined ? path : `${path} ${sorted(body)}`;
}

/** @param {unknown} value @returns {string} */
function sorted(value) {
  if (Array.isArray(value)) return `[${value.map(sorted).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const pairs = Object.entries(value).filter(([, inner]) => inner !== undefined);
  pairs.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${pairs.map(([name, inner]) => `${JSON.stringify(name)}:${sorted(inner)}`).join(",")}}`;
}

/** Big arrays come as base64 of little-endian numbers; make them typed arrays. @param {unknown} value @returns {unknown} */
export function decode(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value) || ArrayBuffer.isView(value)) return value;
  const found = /** @type {Record<string, unknown>} */ (value);
  if (typeof found.data === "string" && Array.isArray(found.shape)) {
    const bytes = bytesOf(found.data);
    return { shape: found.shape, data: found.dtype === "u8" ? bytes : new Float32Array(bytes.buffer) };
  }
  return Object.fromEntries(Object.entries(found).map(([name, inner]) => [name, decode(inner)]));
}

/** @param {string} base64 */
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** @param {string} key @param {unknown} answer */
function keep(key, answer) {
  kept.delete(key);
  kept.set(key, answer);
  if (kept.size > KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
}

/** @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
async function send(path, body, signal) {
  /** @type {RequestInit} */
  const init = body === undefined ? { signal } : { signal, method: "POST", body: JSON.stringify(body) };
  if (body !== undefined) init.headers = { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(ROOT + path, init);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError("The server does not answer. Is `glassgpt explore` still running?");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw new ApiError(answer?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

/** @param {string} path @param {unknown} body @param {{slot?: string}} options @returns {Promise<any>} */
async function ask(path, body, { slot }) {
  if (slot !== undefined) slots.get(slot)?.abort();
  const key = keyOf(path, body);
  const known = kept.get(key) ?? (offline && decode(answer(offline, key)));
  if (known !== undefined && known !== null) {
    keep(key, known);
    return known;
  }
  if (offline) throw new ApiError("This exported page holds one text only. Start `glassgpt explore` for more.");
  const stop = new AbortController();
  if (slot !== undefined) {
    slots.set(slot, stop);
    return fetched(key, path, body, stop.signal);
  }
  const asked = shared.get(key) ?? fetched(key, path, body, stop.signal).finally(() => shared.delete(key));
  shared.set(key, asked);
  return asked;
}

/** @param {string} key @param {string} path @param {unknown} body @param {AbortSignal} signal */
async function fetched(key, path, body, signal) {
  try {
    const found = decode(await (await send(path, body, signal)).json());
    keep(key, found);
    return found;
  } catch (error) {
    // The server holds only so many traces: have a dropped one made again; who asked will hear of the new one.
    if (error instanceof ApiError && error.status === 404 && /^\/(trace\/|intervene|attribute)/.test(path)) {
      for (const known of [...kept.keys()].filter((name) => name.startsWith("/trace "))) kept.delete(known);
      api.expired();
      throw new DOMException("the trace is made anew", "AbortError");
    }
    throw error;
  }
}

/** Was this error only a request that a newer one replaced? @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** What to say of an error. @param {unknown} error */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Server-sent events of a POST, one by one. @param {string} path @param {unknown} body @param {AbortSignal} [signal] @returns {AsyncGenerator<any>} */
async function* events(path, body, signal) {
  if (offline) throw new ApiError("An exported page cannot generate. Start `glassgpt explore` for that.");
  const response = await send(path, body, signal);
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += decoder.decode(value, { stream: true });
      const parts = buffer.split("\n\n");
      buffer = /** @type {string} */ (parts.pop());
      for (const part of parts) {
        if (part.startsWith("data:")) yield JSON.parse(part.slice(5));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const api = {
  /** True in an exported page, where there is nobody to ask. */
  offline: offline !== null,
  /**
   * The answer to a GET. A `slot` names who asks: a newer question in the same slot ends the older one.
   * @param {string} path @param {{slot?: string}} [options]
   */
  get: (path, options = {}) => ask(path, undefined, options),
  /** The answer to a POST, kept like that of a GET. @param {string} path @param {unknown} body @param {{slot?: string}} [options] */
  post: (path, body, options = {}) => ask(path, body, options),
  /** What was answered before, at once, or undefined. @param {string} path @param {unknown} [body] @returns {any} */
  peek: (path, body) => kept.get(keyOf(path, body)),
  /** The questions whose answers are kept, for an export to carry. */
  questions: () => [...kept.keys()],
  /** Called when the server no longer holds a trace; the store sets it. */
  expired: () => {},
  /** The answer to a POST as it comes: a file. @param {string} path @param {unknown} body */
  text: async (path, body) => (await send(path, body)).text(),
  events,
};
