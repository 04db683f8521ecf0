// The state of the page. Views read it, change it with `set` and subscribe to changes; all of it is in the URL.

import { ApiError, api, isAbort, messageOf } from "./api.js";

/** @typedef {(changed: Set<Topic>) => void} Listener */

/** @type {State} */
const DEFAULTS = {
  text: "A robot must obey the orders given it",
  ids: null,
  model: 0,
  checkpoint: null,
  token: -1,
  layer: null,
  head: null,
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
  part: "",
  pattern: "matrix",
  least: 0.05,
  filter: "",
  sort: false,
  skipFirst: false,
  overlay: [],
  play: null,
  speed: 1,
  pin: null,
  target: null,
  method: "input_x_gradient",
  welcome: true,
  arcs: "head",
};

/** What numbers of the state may be; others get their default. @type {Partial<Record<keyof State, (value: number) => boolean>>} */
const VALID = {
  temperature: (value) => value >= 0 && value <= 100,
  topP: (value) => value > 0 && value <= 1,
  minP: (value) => value >= 0 && value <= 1,
  least: (value) => value >= 0 && value <= 1,
  speed: (value) => value > 0 && value <= 8,
  seed: (value) => Number.isSafeInteger(value) && value >= 0,
  topK: (value) => Number.isSafeInteger(value) && value >= 0,
};

/** The fields that an edit of each kind needs; one that lacks them is left out. @type {Record<string, string[]>} */
const EDIT_NEEDS = {
  ablate_head: ["layer", "head"],
  ablate_neuron: ["layer", "neuron"],
  ablate_attention: ["layer"],
  ablate_mlp: ["layer"],
  ablate_block: ["layer"],
  patch: ["step", "source"],
  steer_token: ["layer", "token"],
};

/** A change of these needs another trace. */
const TRACED = /** @type {const} */ (["text", "ids", "model", "checkpoint"]);

/** The URL is updated this long after the last change: browsers limit how often. */
const WRITE_AFTER_MS = 150;

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

class Store {
  /** @type {State} */ #state = { ...DEFAULTS };
  /** @type {Set<Listener>} */ #listeners = new Set();
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #writing;
  /** @type {Record<string, unknown>} the request body of the current trace */ #traced = {};

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

  get() {
    return this.#state;
  }

  /** The config of the model whose trace is shown: another one may have been chosen, and is loading. */
  get config() {
    return this.info?.models[this.trace?.model ?? this.#state.model]?.config ?? this.info?.models[0]?.config ?? null;
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
    if (changed.size === 0) return;
    const push = options.push ?? changed.has("ids");
    if (push) this.flush();
    this.#state = { ...this.#state, ...patch };
    clearTimeout(this.#writing);
    if (!push) this.#writing = setTimeout(() => this.flush(), WRITE_AFTER_MS);
    this.#notify(changed);
    if (TRACED.some((key) => changed.has(key))) void this.load();
    if (push) this.#write(true); // while the server computes
  }

  /** Store a result that is not part of the state. @param {Partial<Pick<Store, "intervention" | "problem" | "secondTrace">>} found @param {Topic} topic */
  update(found, topic) {
    Object.assign(this, found);
    this.#notify([topic]);
  }

  /** The URL fragment of the current state: only what differs from the defaults. */
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
    for (const [name, value] of parts) {
      if (Object.hasOwn(DEFAULTS, name)) found[name] = readValue(/** @type {keyof State} */ (name), value);
    }
    const before = this.#state;
    this.#state = /** @type {State} */ (/** @type {unknown} */ (found));
    const again = !this.trace || TRACED.some((key) => !same(before[key], this.#state[key]));
    if (!again) this.#openPlace();
    this.#notify(/** @type {Topic[]} */ (Object.keys(DEFAULTS)));
    if (again) void this.load();
  }

  /** Request the trace of the current text; with `again` when the server has dropped it. */
  async load(again = false) {
    this.status = "loading";
    this.#notify(["status"]);
    try {
      if (!this.info) await this.#open();
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
      this.#notify(["trace", "info", "status", ...this.#openPlace()]);
    } catch (error) {
      if (isAbort(error)) return;
      this.status = "error";
      this.error = messageOf(error);
      this.#notify(["status"]);
    }
  }

  /** What the page needs first: which models there are, and what to show without a text. */
  async #open() {
    this.info = await api.get("/model");
    const asked = this.#state;
    const found = await this.opening();
    if (!found || this.#state.text !== asked.text || this.#state.ids || this.#state.model !== asked.model) return; // or a text was typed meanwhile
    this.#state = { ...this.#state, ...found };
    this.#notify(/** @type {Topic[]} */ (Object.keys(found)));
  }

  /** Where no block or head was named, open the one that shows most of this text. @returns {Topic[]} what has changed */
  #openPlace() {
    const { layer, head } = this.#state;
    if (layer !== null && head !== null) return [];
    const place = (layer === null && head === null && this.trace?.telling) || { layer: layer ?? 0, head: head ?? 0 };
    this.#state = { ...this.#state, layer: place.layer, head: place.head };
    return ["layer", "head"];
  }

  /** Whether the cursor is at the head that the page opened. */
  get isAtTelling() {
    const { telling, tokens } = this.trace ?? {};
    const { token, layer, head } = this.cursor;
    return Boolean(telling) && token === (tokens?.length ?? 0) - 1 && layer === telling?.layer && head === telling?.head;
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

/** @param {keyof State} name @param {string} value @returns {unknown} */
function readValue(name, value) {
  const initial = DEFAULTS[name];
  if (typeof initial === "string") return value;
  try {
    const found = JSON.parse(value);
    if (name === "edits") return Array.isArray(found) ? found.filter(isEdit) : initial;
    if (name === "ids") return Array.isArray(found) && found.every((id) => Number.isSafeInteger(id) && id >= 0) ? found : initial;
    if (name === "overlay") return Array.isArray(found) ? found.filter((head) => /^\d+\.\d+$/.test(head)) : initial;
    if (name === "compare") return found;
    if (found === null && initial === null) return null;
    if (typeof found !== typeof (initial ?? 0)) return initial;
    return typeof found === "number" && !(VALID[name] ?? Number.isSafeInteger)(found) ? initial : found;
  } catch {
    return initial;
  }
}

/** @param {any} edit @returns {boolean} */
function isEdit(edit) {
  const text = (/** @type {string} */ field) => field === "step" || field === "source";
  return (EDIT_NEEDS[edit?.kind] ?? ["?"]).every((field) => (text(field) ? typeof edit[field] === "string" : Number.isSafeInteger(edit[field]) && edit[field] >= 0));
}

export const store = new Store();

let reloaded = 0;
api.expired = () => {
  if (Date.now() - reloaded < 2000) return; // if one reload did not help, another will not
  reloaded = Date.now();
  void store.load(true);
};
