// The state of the page. Views read it, change it with `set` and subscribe to changes; all of it is in the URL.

import { ApiError, api, isAbort, messageOf } from "./api.js";
import { DEFAULTS, readCompare, readValue } from "./link.js";
import { t } from "../languages/language.js";

/** @typedef {(changed: Set<Topic>) => void} Listener */

/** A change of these needs another trace. */
const TRACED = /** @type {const} */ (["text", "ids", "model", "checkpoint"]);

/** With another text these wait for its trace: those of the text on the screen stay as they are. @type {Topic[]} */
const HELD = ["token", "layer", "head", "edits", "overlay", "pin", "target", "play", "step", "prompt"];

/** The URL is updated this long after the last change: browsers limit how often. */
const WRITE_AFTER_MS = 150;

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

class Store {
  /** @type {State} */ #state = { ...DEFAULTS };
  /** @type {Set<Listener>} */ #listeners = new Set();
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #writing;
  /** @type {Record<string, unknown>} the request body of the current trace */ #traced = {};
  /** @type {Set<Topic>} what has changed for the trace that is loading */ #held = new Set();
  /** @type {Record<string, string>} `model` and `compare` of the URL, until the names of the models are known */ #unresolved = {};

  /** What views will ask about a text that ends at this token, without "/trace/ID": it comes with the text. @type {Set<(token: number) => string[]>} */
  foreseen = new Set();
  /** @type {Trace | null} the trace of the current text, or of the last one while a new one is loading */
  trace = null;
  /** @type {ModelInfo | null} */
  info = null;
  /** @type {Intervention | null} the effect of the edits at the cursor's token; null without edits */
  intervention = null;
  /** @type {Trace | null} the trace of the second text, from which heads are patched */
  secondTrace = null;
  /** @type {string} why the edits failed */
  problem = "";
  /** What a page opens with whose address has no text; set by examples.js. @type {() => Promise<Partial<State> | null>} */
  opening = async () => null;
  /** @type {"loading" | "ready" | "error"} */
  status = "loading";
  /** @type {string} the message to show */
  error = "";
  /** Whether another text is in the field, or another model in the picker, and not asked for yet. */
  typing = false;

  get() {
    return this.#state;
  }

  /** The config of the model whose numbers are shown: another one may have been chosen, and is loading. */
  get config() {
    return this.info?.models[this.trace?.model ?? this.#state.model]?.config ?? this.info?.models[0]?.config ?? null;
  }

  /** Whether the text or the model written above is no longer, or not yet, the one whose numbers are shown. */
  get isOld() {
    if (this.typing || this.status !== "loading" || !this.trace) return this.typing;
    const { text, ids, model, checkpoint } = this.#state;
    const { tokens } = this.trace;
    const isOther = ids ? ids.some((id, place) => id !== (tokens[place]?.id ?? id)) : text !== this.trace.text; // what is appended is written when it comes
    return isOther || model !== this.trace.model || checkpoint !== this.trace.checkpoint;
  }

  /** The text and the model that are asked for: what was computed for others must not be applied. */
  get textKey() {
    const { text, ids, model, checkpoint } = this.#state;
    return JSON.stringify([text, ids, model, checkpoint]);
  }

  /** The cursor, within range: token -1 is the last one, layer -1 the embedding. */
  get cursor() {
    const { token, layer, head } = this.#state;
    const last = (this.trace?.tokens.length ?? 1) - 1;
    const config = this.config;
    return {
      token: token < 0 || token > last ? last : Math.floor(token),
      layer: Math.max(-1, Math.min(Math.floor(layer ?? 0), (config?.n_layer ?? 1) - 1)),
      head: Math.max(0, Math.min(Math.floor(head ?? 0), (config?.n_head ?? 1) - 1)),
    };
  }

  /** @param {Listener} listener @returns {() => void} unsubscribe */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** @param {Iterable<Topic>} topics */
  #notify(topics) {
    const changed = new Set(topics);
    for (const listener of [...this.#listeners]) listener(changed);
  }

  /**
   * Merge a change into the state. A new list of ids (a token was appended) becomes an entry in the browser's
   * history, so that Back undoes it; other changes replace the current entry unless `push` is set.
   * @param {Partial<State>} patch
   * @param {{push?: boolean}} [options]
   */
  set(patch, options = {}) {
    const keys = /** @type {(keyof State)[]} */ (Object.keys(patch));
    const changed = new Set(keys.filter((key) => !same(this.#state[key], patch[key])));
    if ("model" in patch) delete this.#unresolved.model; // even if it is the first: the link named another
    if ("compare" in patch) delete this.#unresolved.compare;
    if (changed.size === 0) return;
    const push = options.push ?? changed.has("ids");
    if (push) this.flush();
    this.#state = { ...this.#state, ...patch };
    clearTimeout(this.#writing);
    if (!push) this.#writing = setTimeout(() => this.flush(), WRITE_AFTER_MS);
    const traced = TRACED.some((key) => changed.has(key));
    if (traced && this.trace) for (const topic of HELD) if (changed.delete(/** @type {keyof State} */ (topic))) this.#held.add(topic);
    if (!traced && this.trace) this.#openPlace(); // the text that is open, opened again
    this.#notify(changed);
    if (traced) void this.load();
    if (push) this.#write(true); // while the server computes
  }

  /** Store a result that is not part of the state. @param {Partial<Pick<Store, "intervention" | "problem" | "secondTrace" | "typing">>} found @param {Topic} topic */
  update(found, topic) {
    Object.assign(this, found);
    this.#notify([topic]);
  }

  /** The URL fragment of the current state: only what differs from the defaults. */
  address() {
    const parts = new URLSearchParams(this.#unresolved);
    const models = this.info?.models ?? [];
    if (models[this.#state.model] && !parts.has("model")) parts.set("model", models[this.#state.model].name); // numbers depend on the command
    for (const [name, value] of Object.entries(this.#state)) {
      const key = /** @type {keyof State} */ (name);
      if (key === "model" || (key === "text" && this.#state.ids)) continue;
      if (key === "compare" && value) {
        const named = (/** @type {Source | undefined} */ source) => (source && source.checkpoint === undefined ? { model: models[source.model ?? 0]?.name } : source);
        parts.set(key, JSON.stringify({ a: named(value.a), b: named(value.b) }));
        continue;
      }
      if (same(value, DEFAULTS[key])) continue;
      parts.set(name, typeof DEFAULTS[key] === "string" ? String(value) : JSON.stringify(value));
    }
    return `#${parts}`;
  }

  /** Update the URL now. */
  flush() {
    clearTimeout(this.#writing);
    if (location.hash !== this.address()) this.#write(false);
  }

  /** A browser may refuse (Safari does after a hundred changes in half a minute), which is harmless. @param {boolean} push */
  #write(push) {
    try {
      if (push) history.pushState(null, "", this.address());
      else history.replaceState(null, "", this.address());
    } catch {
      // The next change writes the whole state again.
    }
  }

  /** Read the state from the URL. What is missing or invalid gets its default. */
  read() {
    const parts = new URLSearchParams(location.hash.slice(1));
    /** @type {Record<string, unknown>} */
    const found = { ...DEFAULTS };
    this.#unresolved = {};
    for (const [name, value] of parts) {
      if (name === "model" || name === "compare") this.#unresolved[name] = value;
      else if (Object.hasOwn(DEFAULTS, name)) found[name] = readValue(/** @type {keyof State} */ (name), value);
    }
    const before = this.#state;
    this.#state = /** @type {State} */ (/** @type {unknown} */ (found));
    if (this.info) this.#resolveNames(this.info);
    const again = !this.trace || TRACED.some((key) => !same(before[key], this.#state[key]));
    if (!again) this.#openPlace();
    this.#notify(/** @type {Topic[]} */ (Object.keys(DEFAULTS)));
    if (again) void this.load();
  }

  /** The numbers of the models that the URL names; older links have the numbers. @param {ModelInfo} info */
  #resolveNames({ models }) {
    const numberOf = (/** @type {unknown} */ name) => {
      const found = models.findIndex((model) => model.name === name);
      return found >= 0 ? found : /^\d+$/.test(String(name)) && models[Number(name)] ? Number(name) : undefined;
    };
    const { model, compare } = this.#unresolved;
    const resolved = { ...this.#state };
    if (model !== undefined) {
      const number = numberOf(model);
      if (number === undefined) return; // load() says so
      resolved.model = number;
    }
    if (compare !== undefined) resolved.compare = readCompare(compare, numberOf);
    this.#unresolved = {};
    this.#state = resolved;
  }

  /** Request the trace of the current text; with `again` when the server has dropped it. */
  async load(again = false) {
    [this.status, this.typing] = ["loading", false];
    this.#notify(["status"]);
    try {
      const first = !this.info;
      this.info ??= await api.get("/model");
      this.#resolveNames(/** @type {ModelInfo} */ (this.info));
      const { model: missing } = this.#unresolved;
      if (missing !== undefined) throw new ApiError(t("error.model", { name: missing }));
      if (first) await this.#open();
      const { text, ids, model, checkpoint } = this.#state;
      /** @type {Record<string, unknown>} */
      const body = ids ? { ids } : { text };
      if (model) body.model = model;
      if (checkpoint !== null) body.checkpoint = checkpoint;
      const appended = again ? null : await this.#append(body);
      this.trace = appended ?? (await api.post("/trace", body, { slot: "trace" }));
      this.#traced = body;
      this.status = "ready";
      this.error = "";
      this.#notify(["trace", "info", "status", ...this.#openPlace(), ...this.#release()]);
      this.flush(); // it names the model, whoever copies it
    } catch (error) {
      if (isAbort(error)) return;
      this.status = "error";
      this.error = messageOf(error);
      this.#notify(["status", "info", ...this.#release()]);
    }
  }

  /** What to show first, where the address names no text. */
  async #open() {
    const asked = this.#state;
    const opening = await this.opening();
    if (!opening || this.#state.text !== asked.text || this.#state.ids || this.#state.model !== asked.model) return; // or a text was typed meanwhile
    this.#state = { ...this.#state, ...opening };
    this.#notify(/** @type {Topic[]} */ (Object.keys(opening)));
  }

  /** What has changed since the trace was asked for. @returns {Topic[]} */
  #release() {
    const held = [...this.#held];
    this.#held.clear();
    return held;
  }

  /** Where no block or head was named, open the one that shows most of this text. @returns {Topic[]} what has changed */
  #openPlace() {
    const { layer, head } = this.#state;
    if (layer !== null && head !== null) return [];
    const place = (layer === null && head === null && this.trace?.salient_head) || { layer: layer ?? 0, head: head ?? 0 };
    this.#state = { ...this.#state, layer: place.layer, head: place.head };
    return ["layer", "head"];
  }

  /** Whether the cursor is at the head that the page opened. */
  get isAtSalientHead() {
    const { salient_head: salient, tokens } = this.trace ?? {};
    const { token, layer, head } = this.cursor;
    return Boolean(salient) && token === (tokens?.length ?? 0) - 1 && layer === salient?.layer && head === salient?.head;
  }

  /** If the text is the current one with one more token, the server can append it with its KV cache; else null. @param {Record<string, unknown>} body @returns {Promise<Trace | null>} */
  async #append(body) {
    const had = this.trace?.tokens.map((token) => token.id);
    const ids = /** @type {number[] | undefined} */ (body.ids);
    if (api.offline || !this.trace || !had || ids?.length !== had.length + 1) return null;
    const sameModel = body.model === this.#traced.model && body.checkpoint === this.#traced.checkpoint;
    if (!sameModel || had.some((id, place) => id !== ids[place])) return null;
    const asked = [...this.foreseen].flatMap((foresee) => foresee(had.length));
    try {
      return await api.append(this.trace.id, ids[had.length], asked);
    } catch (error) {
      if (error instanceof ApiError) return null;
      throw error;
    }
  }
}

export const store = new Store();

/** After the server is lost, it is asked for again: after this time, and then in longer and longer intervals. */
const [RETRY_MS, RETRY_MOST_MS, RETRIES] = [1000, 30_000, 60];
let retrying = false;
api.lost = () => {
  if (retrying) return;
  retrying = true;
  const attempt = async (/** @type {number} */ count) => {
    try {
      store.info = await api.again("/model");
      retrying = false;
      await store.load(true);
    } catch {
      if (count < RETRIES) setTimeout(attempt, Math.min(RETRY_MOST_MS, RETRY_MS * 1.5 ** count), count + 1);
      else retrying = false; // the next request tries again
    }
  };
  setTimeout(attempt, RETRY_MS, 1);
};

let reloaded = 0;
api.expired = () => {
  if (Date.now() - reloaded < 2000) return; // if one reload did not help, another will not
  reloaded = Date.now();
  void store.load(true);
};
