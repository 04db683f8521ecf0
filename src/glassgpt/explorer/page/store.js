// The one state of the page. Views read it, change it with `set`, and hear of changes; the URL holds all of it.

import { ApiError, api, isAbort, messageOf } from "./api.js";

/** @typedef {(changed: Set<Topic>) => void} Listener */

/** @type {State} */
const DEFAULTS = {
  text: "A robot must obey the orders given it",
  ids: null,
  model: 0,
  checkpoint: null,
  token: -1,
  layer: 0,
  head: 0,
  view: "block",
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  seed: 1,
  prompt: null,
  step: null,
  game: false,
  edits: [],
  second: "",
  compare: null,
  tour: null,
  theme: "auto",
  wide: false,
  mask: true,
  part: "attention",
  pattern: "matrix",
  least: 0.05,
  filter: "",
};

/** What another trace depends on. */
const TRACED = /** @type {const} */ (["text", "ids", "model", "checkpoint"]);

/** The address is written this long after the last change: browsers allow only so many a second. */
const WRITE_AFTER_MS = 150;

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

class Store {
  /** @type {State} */ #state = { ...DEFAULTS };
  /** @type {Set<Listener>} */ #listeners = new Set();
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #writing;
  /** @type {Record<string, unknown>} what the present trace was asked with */ #traced = {};

  /** @type {Trace | null} the trace of the present text, or of the last one while a new one is made */
  trace = null;
  /** @type {ModelInfo | null} */
  info = null;
  /** @type {Intervention | null} what the edits do at the cursor's token; null without edits */
  intervention = null;
  /** @type {Trace | null} the trace of the second text, from which heads are patched */
  secondTrace = null;
  /** @type {string} why the edits could not be made */
  problem = "";
  /** @type {"loading" | "ready" | "error"} */
  status = "loading";
  /** @type {string} what went wrong, for people */
  error = "";

  get() {
    return this.#state;
  }

  /** The shape of the present model. */
  get config() {
    return this.info?.models[this.#state.model]?.config ?? this.info?.models[0]?.config ?? null;
  }

  /** The cursor, with every part where it can be: token -1 is the last one, layer -1 the embedding. */
  get cursor() {
    const { token, layer, head } = this.#state;
    const last = (this.trace?.tokens.length ?? 1) - 1;
    const config = this.config;
    return {
      token: token < 0 || token > last ? last : Math.floor(token),
      layer: Math.max(-1, Math.min(Math.floor(layer), (config?.n_layer ?? 1) - 1)),
      head: Math.max(0, Math.min(Math.floor(head), (config?.n_head ?? 1) - 1)),
    };
  }

  /** @param {Listener} listener @returns {() => void} to stop listening */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** @param {Iterable<Topic>} topics */
  #tell(topics) {
    const changed = new Set(topics);
    for (const listener of [...this.#listeners]) listener(changed);
  }

  /**
   * Merge a change into the state. A new list of ids (a token was appended) becomes a step in the browser's
   * history, so that Back undoes it; other changes replace the present step unless `push` says otherwise.
   * @param {Partial<State>} patch
   * @param {{push?: boolean}} [options]
   */
  set(patch, options = {}) {
    const keys = /** @type {(keyof State)[]} */ (Object.keys(patch));
    const changed = new Set(keys.filter((key) => !same(this.#state[key], patch[key])));
    if (changed.size === 0) return;
    const push = options.push ?? changed.has("ids");
    if (push) this.flush();
    this.#state = { ...this.#state, ...patch };
    if (push) this.#write(true);
    else {
      clearTimeout(this.#writing);
      this.#writing = setTimeout(() => this.flush(), WRITE_AFTER_MS);
    }
    this.#tell(changed);
    if (TRACED.some((key) => changed.has(key))) void this.load();
  }

  /** Something beside the state was computed. @param {Partial<Pick<Store, "intervention" | "problem" | "secondTrace">>} found @param {Topic} topic */
  learn(found, topic) {
    Object.assign(this, found);
    this.#tell([topic]);
  }

  /** The address of the present state: only what differs from the defaults. */
  address() {
    const parts = new URLSearchParams();
    for (const [name, value] of Object.entries(this.#state)) {
      const key = /** @type {keyof State} */ (name);
      if (key === "text" && this.#state.ids) continue;
      if (same(value, DEFAULTS[key])) continue;
      parts.set(name, typeof DEFAULTS[key] === "string" ? String(value) : JSON.stringify(value));
    }
    return `#${parts}`;
  }

  /** Write the address now. */
  flush() {
    clearTimeout(this.#writing);
    if (location.hash !== this.address()) this.#write(false);
  }

  /** A browser may refuse (Safari does after a hundred changes in half a minute): the page goes on without. @param {boolean} push */
  #write(push) {
    try {
      if (push) history.pushState(null, "", this.address());
      else history.replaceState(null, "", this.address());
    } catch {
      // The next change writes the whole state again.
    }
  }

  /** Take the state from the address. What is missing or makes no sense has its default. */
  read() {
    const parts = new URLSearchParams(location.hash.slice(1));
    /** @type {Record<string, unknown>} */
    const found = { ...DEFAULTS };
    for (const [name, value] of parts) {
      if (Object.hasOwn(DEFAULTS, name)) found[name] = readValue(/** @type {keyof State} */ (name), value);
    }
    const before = this.#state;
    this.#state = /** @type {State} */ (/** @type {unknown} */ (found));
    this.#tell(/** @type {Topic[]} */ (Object.keys(DEFAULTS)));
    if (!this.trace || TRACED.some((key) => !same(before[key], this.#state[key]))) void this.load();
  }

  /** Ask for the trace of the present text; `anew` when the server has dropped the one it had made. */
  async load(anew = false) {
    const { text, ids, model, checkpoint } = this.#state;
    this.status = "loading";
    this.#tell(["status"]);
    /** @type {Record<string, unknown>} */
    const body = ids ? { ids } : { text };
    if (model) body.model = model;
    if (checkpoint !== null) body.checkpoint = checkpoint;
    try {
      this.info ??= await api.get("/model");
      const grown = anew ? null : await this.#appended(body);
      this.trace = named(grown ?? (await api.post("/trace", body, { slot: "trace" })));
      this.#traced = body;
      this.status = "ready";
      this.error = "";
      this.#tell(["trace", "info", "status"]);
    } catch (error) {
      if (isAbort(error)) return;
      this.status = "error";
      this.error = messageOf(error);
      this.#tell(["status"]);
    }
  }

  /** One token more than the present trace: the server goes on with its cache. Null when that is not so. @param {Record<string, unknown>} body @returns {Promise<Trace | null>} */
  async #appended(body) {
    const had = this.trace?.tokens.map((token) => token.id);
    const ids = /** @type {number[] | undefined} */ (body.ids);
    if (api.offline || !this.trace || !had || ids?.length !== had.length + 1) return null;
    const sameModel = body.model === this.#traced.model && body.checkpoint === this.#traced.checkpoint;
    if (!sameModel || had.some((id, place) => id !== ids[place])) return null;
    try {
      return await api.post(`/trace/${this.trace.id}/append`, { token: ids[had.length] }, { slot: "trace" });
    } catch (error) {
      if (error instanceof ApiError) return null;
      throw error;
    }
  }
}

/** A token that is only a part of a character is called by its bytes. @param {Trace} trace */
function named(trace) {
  for (const token of trace.tokens) {
    if (token.text.includes("\ufffd")) token.text = token.bytes.map((byte) => `<${byte.toString(16).padStart(2, "0")}>`).join("");
  }
  return trace;
}

/** @param {keyof State} name @param {string} value @returns {unknown} */
function readValue(name, value) {
  const usual = DEFAULTS[name];
  if (typeof usual === "string") return value;
  try {
    const found = JSON.parse(value);
    if (name === "edits") return Array.isArray(found) ? found.filter((edit) => typeof edit?.kind === "string") : usual;
    const wanted = name === "ids" ? Array.isArray(found) : name === "compare" || typeof found === typeof (usual ?? 0);
    return wanted ? found : usual;
  } catch {
    return usual;
  }
}

export const store = new Store();

let renewed = 0;
api.expired = () => {
  if (Date.now() - renewed < 2000) return; // if a new trace does not help, another will not either
  renewed = Date.now();
  void store.load(true);
};
