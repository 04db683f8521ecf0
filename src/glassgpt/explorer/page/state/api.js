// All requests to the server. An exported page has no server and takes its responses from its bundle; a site has none
// either, and its worker answers.

import { translated } from "../languages/server.js";
import { t } from "../languages/language.js";
import { site } from "./site.js";

/** Relative to where the page was opened: the app may be mounted under a prefix. */
const ROOT = new URL("api/v1", document.baseURI).href;
const MAX_CACHED = 200;

/** An error response. */
export class ApiError extends Error {
  /** @param {string} message @param {number} [status] */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The bundle of an exported page; null when there is a server. */
const offline = readOffline();

/** @type {Map<string, unknown>} responses, the most recently used last: those about a trace never change */
const cached = new Map();

/** @typedef {{slot?: string, together?: boolean}} Options */

/** @type {Map<string, {key: string, controller: AbortController, response: Promise<unknown>}>} the pending request of each slot */
const slots = new Map();

/** @type {Map<string, Promise<unknown>>} pending requests without a slot, shared by all callers */
const pending = new Map();

/** @returns {import("./offline.js").Bundle | null} */
function readOffline() {
  const block = document.getElementById("glass-offline");
  if (!block) return null;
  const found = JSON.parse(block.textContent ?? "{}");
  return { ...found, wte: decode(found.wte), wpe: decode(found.wpe), residual: found.residual.map(decode), layers: found.layers.map(decode) };
}

/** The cache key of a request: the path with its query and, after a space, the body as JSON with sorted keys. @param {string} path @param {unknown} [body] */
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

/** Large arrays are sent as base64, little endian: make them typed arrays. @param {unknown} value @returns {unknown} */
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

/** @param {string} key @param {unknown} response */
function store(key, response) {
  cached.delete(key);
  cached.set(key, response);
  if (cached.size > MAX_CACHED) cached.delete(/** @type {string} */ (cached.keys().next().value));
}

/** @typedef {{path: string, body: unknown, resolve: (found: any) => void, reject: (error: unknown) => void, signal: AbortSignal}} Waiting */

/** @type {Waiting[]} what views have asked for in one turn: it is sent together */
let together = [];

/** The response to a request, sent as one with the others of this turn. @param {string} path @param {unknown} body @param {AbortSignal} signal @returns {Promise<any>} */
function sendWithOthers(path, body, signal) {
  return new Promise((resolve, reject) => {
    if (together.length === 0) queueMicrotask(sendTogether);
    together.push({ path, body, resolve, reject, signal });
  });
}

async function sendTogether() {
  const asked = together;
  together = [];
  const controller = new AbortController();
  const drop = () => {
    for (const { signal, reject } of asked) if (signal.aborted) reject(new DOMException("a newer request took its place", "AbortError"));
    // The request as a whole is in vain only when nobody waits for any part of it.
    if (asked.every(({ signal }) => signal.aborted)) controller.abort();
  };
  for (const { signal } of asked) signal.addEventListener("abort", drop);
  drop();
  try {
    const requests = asked.map(({ path, body }) => keyOf(path, body));
    const response = await (asked.length > 1 ? send("/batch", { requests }, controller.signal) : send(asked[0].path, asked[0].body, controller.signal));
    const found = await response.json();
    if (asked.length === 1) asked[0].resolve(found);
    else asked.forEach(({ resolve, reject }, i) => (found[i]?.status === 200 ? resolve(found[i].body) : reject(failed(found[i]?.status ?? 0, found[i]?.body))));
  } catch (error) {
    for (const { reject } of asked) reject(error);
  }
}

/** @param {number} status @param {any} body of the response */
function failed(status, body) {
  return new ApiError(translated(body?.error?.message) ?? t("error.status", { status: String(status) }), status);
}

/** @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
async function send(path, body, signal) {
  /** @type {RequestInit} */
  const init = body === undefined ? { signal } : { signal, method: "POST", body: JSON.stringify(body) };
  if (body !== undefined) init.headers = { "Content-Type": "application/json" };
  return sendRaw(path, init);
}

/** @param {string} path @param {RequestInit} init */
async function sendRaw(path, init) {
  let response;
  try {
    response = await (site ? site.respond(path, init) : fetch(ROOT + path, init));
  } catch (error) {
    if (isAbort(error)) throw error;
    api.lost();
    throw new ApiError(t("error.server"));
  }
  if (response.ok) return response;
  throw failed(response.status, await response.json().catch(() => null));
}

/** @param {string} path @param {unknown} body @param {Options} options @returns {Promise<any>} */
async function request(path, body, { slot, together = body === undefined }) {
  const key = keyOf(path, body);
  const before = slot === undefined ? undefined : slots.get(slot);
  if (before?.key === key) return before.response;
  before?.controller.abort();
  const known = cached.get(key) ?? (offline && decode((await import("./offline.js")).respond(offline, key)));
  if (known !== undefined && known !== null) {
    store(key, known);
    return known;
  }
  if (offline) throw new ApiError(t(path === "/trace" ? "error.file.text" : "error.file.model"));
  const controller = new AbortController();
  if (slot !== undefined) {
    const response = fetchAndStore(key, path, body, together, controller.signal).finally(() => slots.get(slot)?.controller === controller && slots.delete(slot));
    slots.set(slot, { key, controller, response });
    return response;
  }
  const asked = pending.get(key) ?? fetchAndStore(key, path, body, together, controller.signal).finally(() => pending.delete(key));
  pending.set(key, asked);
  return asked;
}

/** @param {string} key @param {string} path @param {unknown} body @param {boolean} together @param {AbortSignal} signal */
async function fetchAndStore(key, path, body, together, signal) {
  try {
    const found = decode(together ? await sendWithOthers(path, body, signal) : await (await send(path, body, signal)).json());
    if (path !== "/batch") store(key, found); // its parts are stored instead
    return found;
  } catch (error) {
    // The server caches a limited number of traces: request a dropped one again, which notifies the views.
    if (error instanceof ApiError && error.status === 404 && /^\/(trace\/|intervene|attribute)/.test(path)) {
      forgetTraces();
      api.expired();
      throw new DOMException("the trace is requested again", "AbortError");
    }
    throw error;
  }
}

/** The server may no longer have the traces that it once sent. */
function forgetTraces() {
  for (const known of [...cached.keys()].filter((name) => name.startsWith("/trace "))) cached.delete(known);
}

/** A response from the server itself, whatever was cached: it may have been started again. @param {string} path */
async function again(path) {
  const found = decode(await (await send(path, undefined)).json());
  forgetTraces();
  store(path, found);
  return /** @type {any} */ (found);
}

/** Whether the request was only replaced by a newer one. @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** An error as a message. @param {unknown} error */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Server-sent events of a POST, one by one. @param {string} path @param {unknown} body @param {AbortSignal} [signal] @returns {AsyncGenerator<any>} */
async function* events(path, body, signal) {
  if (offline) throw new ApiError(t("error.file.generate"));
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

/**
 * The trace of a text with one more token. In the same request goes what the views will ask about it.
 * @param {string} id of the text @param {number} token @param {string[]} asked such as "/next?position=3"
 * @returns {Promise<Trace>}
 */
async function append(id, token, asked) {
  const body = { requests: [keyOf(`/trace/${id}/append`, { token }), ...asked.map((path) => `/trace/latest${path}`)] };
  const [made, ...found] = await request("/batch", body, { slot: "trace" });
  if (made?.status !== 200) throw failed(made?.status ?? 0, made?.body);
  asked.forEach((path, i) => found[i]?.status === 200 && store(`/trace/${made.body.id}${path}`, decode(found[i].body)));
  return made.body;
}

export const api = {
  /** Whether this is an exported page, without a server. */
  offline: offline !== null,
  /**
   * The response to a GET. A newer request in the same `slot` aborts the older one.
   * @param {string} path @param {Options} [options]
   */
  get: (path, options = {}) => request(path, undefined, options),
  /** The response to a POST, cached like that of a GET; sent with others of this turn if `together`. @param {string} path @param {unknown} body @param {Options} [options] */
  post: (path, body, options = {}) => request(path, body, options),
  /** A cached response, or undefined. @param {string} path @param {unknown} [body] @returns {any} */
  peek: (path, body) => cached.get(keyOf(path, body)),
  /** Whether an exported page has the response. @param {string} path */
  known: (path) => cached.has(path) || (offline !== null && Object.hasOwn(offline.responses, path)),
  /** Store a response that came as part of another. @param {string} path @param {unknown} response */
  remember: (path, response) => store(path, response),
  append,
  /** The keys of the cached responses, for an export. */
  cachedRequests: () => [...cached.keys()],
  /** Called when the server has dropped a trace; set by the store. */
  expired: () => {},
  /** Called when the server does not respond; set by the store. */
  lost: () => {},
  again,
  /** The response to a POST as text: a file. @param {string} path @param {unknown} body */
  text: async (path, body) => (await send(path, body)).text(),
  events,
  /** The response to a POST of a file. @param {string} path @param {File} file */
  upload: async (path, file) => (await sendRaw(path, { method: "POST", body: file })).json(),
};
