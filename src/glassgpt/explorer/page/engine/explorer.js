// The page's own requests under /api/v1, answered without a server: the counterpart of explorer/routes. Each answer has
// the same fields and, up to rounding, the same numbers.
import { attentionRollout, directLogitAttribution } from "./attribution.js";
import { klDivergence, largest, list, lists, logSoftmax, rankOf, rowOf, softmax } from "./arrays.js";
import { shown } from "./bytes.js";
import { checkEdit, firstChanged, hooksOf } from "./edits.js";
import { generate } from "./generate.js";
import { neuronTokens, tallyOf } from "./parameters.js";
import { Trace } from "./trace.js";
import { examplesOfKinds, mostSalientHead, splitIntoWords } from "./words.js";
import { UserError } from "./wasm.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./parameters.js").Facts} Facts */
/** @typedef {(name: string) => number} IndexOf a whole number of the query */

const LENS_TOP = 5;
const CANDIDATES = 10;
const TOP_CHANGES = 10;
const NEURONS = 8;
const MAX_ROWS = 16;
const MAX_ALL_PATTERNS = 256;
const KEEP_BYTES = 32 * 2 ** 20; // a longer text opens at no head
const TRACE_BYTES = 48e6; // of all texts together
const MAX_TRACES = 32;
const MAX_INTERVENTIONS = 4;
const MAX_CHARACTERS = 20_000;
/** The methods that need no gradients. @type {Record<string, typeof attentionRollout | typeof directLogitAttribution>} */
const METHODS = { attention_rollout: attentionRollout, direct_logit_attribution: directLogitAttribution };
const GRADIENTS = ["input_x_gradient", "integrated_gradients"];

/** The steps of a block that each answer has. */
const HEAD_STEPS = ["attn.q", "attn.k", "attn.v", "attn.scores", "attn.scaled", "attn.masked", "attn.weights", "attn.z"];
const ATTENTION_STEPS = ["ln_1", "attn.merged", "attn.proj", "resid_mid"];
const MLP_STEPS = ["resid_mid", "ln_2", "mlp.fc", "mlp.gelu", "mlp.proj", "resid_post"];

/** @param {string} message @param {string | null} [field] */
const invalid = (message, field = null) => new UserError(message, 422, field);

/**
 * @typedef {object} Library the models, which open when they are asked for
 * @property {(number: number) => Promise<Model>} model
 * @property {() => any[]} describe
 * @property {(number: number) => any} examples of a model, if the site has them
 * @property {Facts} facts
 * @property {string} version
 */

export class Explorer {
  /** @param {Library} library */
  constructor(library) {
    this.library = library;
    /** @type {Map<string, {trace: Trace, number: number}>} the least recently used first */
    this.traces = new Map();
    /** @type {Map<string, Trace>} */
    this.edited = new Map();
  }

  /** The answer to a request. @param {string} key "/path?query", or "/path {body}" @returns {Promise<any>} */
  async respond(key) {
    const [url, ...rest] = key.split(" ");
    const body = rest.length ? parseBody(rest.join(" ")) : undefined;
    const [path, search] = url.split("?");
    const query = new URLSearchParams(search ?? "");
    const found = /^\/trace\/(\w+)\/([\w-]+)$/.exec(path);
    if (found) return this.#ofTrace(found[1], found[2], query, body);
    switch (path) {
      case "/model": return this.#modelJSON();
      case "/vocabulary": return { texts: (await this.#model(query)).texts };
      case "/tally": return tallyOf((await this.#model(query)).config, this.library.facts);
      case "/examples": return this.#examples(query);
      case "/trace": return this.#opened(await this.#trace(body));
      case "/tokenize": return this.#tokenize(body);
      case "/compare": return this.#compare(body);
      case "/intervene": return this.#intervene(body);
      case "/attribute": return this.#attribute(body);
      case "/batch": return this.#batch(body);
      case "/midi": throw new UserError("A MIDI file is read by the server: glassgpt explore --model music", 501);
      case "/export": throw new UserError("This page is a site already: copy its folder, or write one file with: glassgpt explore", 501);
      default: throw new UserError(`Not found: ${path.slice(0, 200)}.`, 404);
    }
  }

  /** A model was closed: its texts are asked for again. @param {number} which */
  forget(which) {
    for (const [id, { number: of }] of this.traces) if (of === which) this.traces.delete(id);
    for (const [key, { model }] of this.edited) if (model.number === which) this.edited.delete(key);
  }

  /** The tokens of a generation, one by one. @param {any} body */
  async *events(body) {
    const model = await this.library.model(number(body, "model"));
    yield* generate(model, checkIds(model, body.ids, "ids"), body);
  }

  #modelJSON() {
    const models = this.library.describe();
    return { models, methods: Object.keys(METHODS), checkpoints: [], limits: { tokens: Math.min(1024, models[0].config.n_positions), traces: MAX_TRACES }, version: this.library.version };
  }

  /** @param {URLSearchParams} query */
  #model(query) {
    return this.library.model(indexOf(query, "model", 0));
  }

  /** @param {URLSearchParams} query */
  async #examples(query) {
    const which = indexOf(query, "model", 0);
    const known = this.library.examples(which);
    if (known) return known;
    const model = await this.library.model(which);
    const { tokenizer } = model;
    const inserts = tokenizer ? [...tokenizer.special].filter(([, id]) => id < model.size).map(([name, id]) => ({ name, ids: [id], special: true })) : [];
    if (!tokenizer) return { kind: "ids", examples: [{ name: "The first ids", words: "a model without a tokenizer", text: "0 1 2 3", ids: null, state: {} }], inserts };
    const kind = tokenizer.kind === "performance" ? "music" : "text";
    return { kind, examples: this.library.facts.examples[kind], inserts };
  }

  /** @param {any} body @returns {Promise<{id: string, trace: Trace, number: number}>} */
  async #trace(body) {
    checkFields(body, ["model", "checkpoint", "text", "ids"]);
    const which = number(body, "model");
    const model = await this.library.model(which);
    if ((body.checkpoint ?? null) !== null) throw new UserError(`There is no checkpoint for step ${body.checkpoint}. This model is not a training run.`, 404, "checkpoint");
    const [text, given] = [body.text ?? null, body.ids ?? null];
    if ((text === null) === (given === null)) throw invalid("Send either text or ids.", "text");
    if (text !== null && typeof text !== "string") throw invalid(`text: ${shown(text)} is not a string.`, "text");
    if (text !== null && text.length > MAX_CHARACTERS) throw invalid(`text: ${text.length.toLocaleString("en")} characters are over the limit of ${MAX_CHARACTERS.toLocaleString("en")}.`, "text");
    const ids = checkIds(model, text !== null ? model.encode(text) : given, text !== null ? "text" : "ids");
    const id = idOf(which, ids);
    if (!this.traces.has(id)) this.#add(id, new Trace(model, ids), which);
    return { id, ...this.#cached(id) };
  }

  /** @param {string} id @param {Trace} trace @param {number} which */
  #add(id, trace, which) {
    this.traces.set(id, { trace, number: which });
    let bytes = 0;
    for (const { trace: one } of this.traces.values()) bytes += one.bytes;
    for (const [old, { trace: one }] of this.traces) {
      if (old === id || (bytes <= TRACE_BYTES && this.traces.size <= MAX_TRACES)) break;
      bytes -= one.bytes;
      this.traces.delete(old);
    }
  }

  /** @param {string} id */
  #cached(id) {
    const found = this.traces.get(id);
    if (!found) throw new UserError(`Trace '${id.slice(0, 40)}' is not cached (any more). Send its text again.`, 404, "id");
    this.traces.delete(id);
    this.traces.set(id, found);
    for (const { trace } of [...this.traces.values()].slice(0, -2)) trace.clear();
    return found;
  }

  /** @param {{id: string, trace: Trace, number: number}} found */
  #opened(found) {
    const { trace } = found;
    const { n_layer, n_head } = trace.model.config;
    const isLong = 4 * n_layer * n_head * trace.length ** 2 > KEEP_BYTES;
    if (trace.opening === undefined) trace.opening = isLong ? null : mostSalientHead(trace, trace.length - 1);
    return { ...traceJSON(found), salient_head: trace.opening };
  }

  /** @param {string} id @param {string} what @param {URLSearchParams} query @param {any} body @returns {any} */
  #ofTrace(id, what, query, body) {
    const found = { id, ...this.#cached(id) };
    const { trace } = found;
    const { config } = trace.model;
    const position = () => below("position", indexOf(query, "position"), trace.length);
    const layer = () => below("layer", indexOf(query, "layer"), config.n_layer);
    const head = () => below("head", indexOf(query, "head"), config.n_head);
    switch (what) {
      case "append": return this.#append(found, body);
      case "patterns": return patternsJSON(trace, query.has("layer") ? layer() : null);
      case "salient-heads": return { position: position(), best: mostSalientHead(trace, position()), kinds: examplesOfKinds(trace) };
      case "embedding": return embeddingJSON(trace, position());
      case "lens": return lensColumnJSON(trace, position(), query.has("token") ? below("token", indexOf(query, "token"), trace.model.size) : null, query.get("ranks") === "true");
      case "scores": return scoresJSON(trace, layer(), head());
      case "neurons": return neuronsJSON(trace, layer(), position());
      case "final": return finalJSON(trace, position(), query.getAll("token"));
      case "head": return headJSON(trace, layer(), head(), position());
      case "mlp": return mlpJSON(trace, layer(), position());
      case "next": return { logits: { shape: [trace.model.size], data: trace.logitsAt(position()).slice() } };
      default: throw new UserError(`Not found: /trace/${id}/${what}.`, 404);
    }
  }

  /** @param {{trace: Trace, number: number}} found @param {any} body */
  #append({ trace, number: which }, body) {
    const ids = checkIds(trace.model, [...trace.ids, body?.token], "token");
    const id = idOf(which, ids);
    if (!this.traces.has(id)) this.#add(id, trace.append(ids[ids.length - 1]), which);
    return traceJSON({ id, ...this.#cached(id) });
  }

  /** @param {any} body */
  async #tokenize(body) {
    const model = await this.library.model(number(body, "model"));
    const parts = Array.isArray(body?.parts) ? body.parts : [];
    const ids = parts.flatMap((/** @type {any} */ part) => (typeof part === "string" ? model.encode(part) : part));
    return { ids: checkIds(model, ids, "parts") };
  }

  /** @param {any} body */
  async #compare(body) {
    const choice = (/** @type {any} */ which, /** @type {number} */ usual) => ({ model: usual, ...which, ...(body.text === undefined ? {} : { text: body.text }), ...(body.ids === undefined ? {} : { ids: body.ids }) });
    const a = await this.#trace(choice(body.a, 0));
    const b = await this.#trace(choice(body.b, 1));
    const [one, other] = [a.trace.model, b.trace.model];
    if (one.size !== other.size || one.texts.some((text, id) => text !== other.texts[id])) {
      throw invalid(`${one.name} and ${other.name} have different vocabularies, so their tokens cannot be compared. Compare two models with the same vocabulary.`, "b");
    }
    const losses = [a, b].map(({ trace }) => trace.tokenLoss());
    return { a: traceJSON(a), b: traceJSON(b), kl: klPerToken(a.trace, b.trace), p_difference: losses[0].map((loss, i) => (loss ? /** @type {any} */ (losses[1][i]).p - loss.p : null)) };
  }

  /** @param {any} body */
  async #intervene(body) {
    checkFields(body, ["id", "edits", "position", "only", "first", "last"]);
    const { trace } = this.#cached(String(body.id));
    if ((body.edits ?? []).length > 256) throw invalid("edits: more than 256.", "edits");
    const edits = (body.edits ?? []).map(checkEdit);
    const position = below("position", body.position ?? trace.length - 1, trace.length);
    const key = JSON.stringify([body.id, edits]);
    let after = this.edited.get(key);
    if (!after) {
      const plain = trace.incremental ? new Trace(trace.model, trace.ids) : trace; // the same bits as the edited pass
      const hooks = hooksOf(edits, plain, (id) => this.#source(id, trace));
      const first = firstChanged(hooks, trace.model.config.n_layer);
      after = new Trace(trace.model, trace.ids, hooks, first < 0 ? null : { base: plain, first });
      this.edited.set(key, after);
      if (this.edited.size > MAX_INTERVENTIONS) this.edited.delete(/** @type {string} */ (this.edited.keys().next().value));
    }
    const next = () => nextTokenJSON(trace, /** @type {Trace} */ (after), position);
    if (body.only === "next") return next();
    const first = below("position", body.first ?? 0, trace.length);
    const last = below("position", body.last ?? trace.length - 1, trace.length);
    if (first > last) throw invalid(`last: ${last} is before the first position, ${first}.`, "last");
    const { ids, p } = after.lens(1, first, last);
    const lens = lensJSON(trace.model, ids, p, last - first + 1, 1);
    if (body.only === "lens") return { first, last, lens };
    return { ...next(), first, last, lens, logits_before: { shape: [trace.model.size], data: trace.logitsAt(position).slice() }, kl_per_token: klPerToken(trace, after) };
  }

  /** @param {string} id @param {Trace} trace */
  #source(id, trace) {
    const source = this.#cached(id).trace;
    const same = ["n_layer", "n_head", "n_embd", "d_mlp", "vocab_size", "n_positions"].every((name) => /** @type {any} */ (source.model.config)[name] === /** @type {any} */ (trace.model.config)[name]);
    if (!same) throw invalid("source: a patch needs a trace of a model of the same shape.", "source");
    return source;
  }

  /** @param {any} body */
  #attribute(body) {
    const { trace } = this.#cached(String(body?.id));
    const position = below("position", body.position, trace.length);
    const target = below("target", body.target, trace.model.size);
    const method = body.method ?? "direct_logit_attribution";
    if (GRADIENTS.includes(method)) throw new UserError(`${method} needs gradients, which this page cannot compute. Without them there are ${Object.keys(METHODS).join(" and ")}; with a server: glassgpt explore`, 400);
    if (!Object.hasOwn(METHODS, method)) throw invalid(`method: ${shown(method)} is not one of ${Object.keys(METHODS).join(", ")}.`, "method");
    return METHODS[method](trace, target, position);
  }

  /** @param {any} body */
  async #batch(body) {
    const answers = [];
    let latest = "";
    for (const key of /** @type {string[]} */ (body?.requests ?? [])) {
      const path = key.split(/[ ?]/)[0];
      try {
        if (["/generate", "/export", "/batch"].includes(path)) throw new UserError("Not found.", 404);
        const found = await this.respond(key.replace("/trace/latest/", `/trace/${latest}/`));
        if (found?.tokens && found.id) latest = found.id;
        answers.push({ status: 200, body: found });
      } catch (error) {
        answers.push(failure(error));
      }
    }
    return answers;
  }
}

/** An error as a status and a body. @param {unknown} error @returns {{status: number, body: {error: {message: string, field: string | null}}}} */
export function failure(error) {
  const known = error instanceof UserError;
  const message = error instanceof Error ? error.message : String(error);
  return { status: known ? error.status : 500, body: { error: { message: known ? message : `Something in this page failed: ${message}. Reload it.`, field: known ? error.field : null } } };
}

/** @param {string} text */
function parseBody(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw invalid("The body is not JSON.");
  }
}

/** @param {any} body @param {string[]} known */
function checkFields(body, known) {
  if (body === null || typeof body !== "object" || Array.isArray(body)) throw invalid("The body is not a JSON object.");
  const other = Object.keys(body).find((name) => !known.includes(name));
  if (other !== undefined) throw invalid(`${other.slice(0, 100)} is not a field of this request. Correct its name, or leave it out.`, other);
}

/** @param {any} body @param {string} name */
function number(body, name) {
  const value = body?.[name] ?? 0;
  if (!Number.isInteger(value) || value < 0) throw invalid(`${name}: ${shown(value)} is not an integer.`, name);
  return value;
}

/** @param {URLSearchParams} query @param {string} name @param {number} [usual] */
function indexOf(query, name, usual) {
  const text = query.get(name);
  if (text === null && usual !== undefined) return usual;
  if (text === null) throw invalid(`${name}: this field is missing.`, name);
  if (!/^\d{1,10}$/.test(text)) throw invalid(`${name}: ${shown(text)} is not an integer.`, name);
  return Number(text);
}

/** @param {string} name @param {unknown} value @param {number} size @returns {number} */
function below(name, value, size) {
  if (!Number.isInteger(value) || /** @type {number} */ (value) < 0) throw invalid(`${name}: ${shown(value ?? null)} is not an integer.`, name);
  if (/** @type {number} */ (value) >= size) {
    throw invalid(name === "token" || name === "target" ? `${name}: ${value} is not a token id of this model.` : `${name}: ${value} is out of range. Use 0 to ${size - 1}.`, name);
  }
  return /** @type {number} */ (value);
}

/** The ids, once it is sure that this model can read them. @param {Model} model @param {any} ids @param {string} field @returns {number[]} */
function checkIds(model, ids, field) {
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
function idOf(which, ids) {
  let [a, b] = [0x811c9dc5, 0x01000193];
  for (const id of [which, ...ids]) {
    a = Math.imul(a ^ id, 0x01000193);
    b = Math.imul(b + id, 0x85ebca6b) ^ (b >>> 13);
  }
  return `${(a >>> 0).toString(16).padStart(8, "0")}${(b >>> 0).toString(16).padStart(8, "0")}${ids.length.toString(16)}`;
}

/** @param {Model} model @param {Int32Array} ids @param {ArrayLike<number>} p @param {number} n columns @param {number} k of each cell */
function lensJSON(model, ids, p, n, k) {
  const rows = ids.length / (n * k);
  const some = (/** @type {ArrayLike<number>} */ values) => Array.from({ length: rows }, (_, layer) => Array.from({ length: n }, (_, i) => values[(layer * n + i) * k]));
  const first = some(ids);
  return { ids: first, texts: first.map((row) => row.map((id) => model.text(id))), p: some(p) };
}

/** What the page needs of a trace when it opens. @param {{id: string, trace: Trace, number: number}} found */
function traceJSON({ id, trace, number: which }) {
  const { model, ids } = trace;
  const { words, ofToken } = splitIntoWords(model, ids);
  const k = Math.min(LENS_TOP, model.size);
  const lens = trace.wholeLens(k);
  return {
    id, model: which, checkpoint: null, text: model.decode(ids),
    tokens: ids.map((token, i) => ({ id: token, text: model.text(token), bytes: [...model.bytesOf(token)], word: ofToken[i] })),
    words, token_loss: trace.tokenLoss().slice(), lens: lensJSON(model, lens.ids, lens.p, ids.length, k), norms: trace.norms(),
  };
}

/** The patterns of a block, (H, T, T), or of a short text's whole model, (L, H, T, T), as bytes. @param {Trace} trace @param {number | null} layer */
function patternsJSON(trace, layer) {
  const { n_layer, n_head } = trace.model.config;
  const T = trace.length;
  if (layer === null && T > MAX_ALL_PATTERNS) throw invalid(`layer: name one; this text has more than ${MAX_ALL_PATTERNS} tokens.`, "layer");
  const layers = layer === null ? Array.from({ length: n_layer }, (_, i) => i) : [layer];
  const data = new Uint8Array(layers.length * n_head * T * T);
  layers.forEach((each, i) => data.set(Uint8Array.from(trace.attention(each), (x) => roundToEven(x * 255)), i * n_head * T * T));
  return { "attn.weights": { shape: layer === null ? [n_layer, n_head, T, T] : [n_head, T, T], data } };
}

/** @param {number} x */
function roundToEven(x) {
  const below = Math.floor(x);
  const rest = x - below;
  return rest > 0.5 || (rest === 0.5 && below % 2) ? below + 1 : below;
}

/** @param {Trace} trace @param {number} position */
function embeddingJSON(trace, position) {
  const C = trace.model.config.n_embd;
  return Object.fromEntries(["wpe", "wte", "embedding"].map((step) => [step, list(rowOf(trace.step(step).data, position, C))]));
}

/** The five most likely tokens of every cell of a column, and ranks of tokens in all layers. @param {Trace} trace @param {number} position @param {number | null} token @param {boolean} all */
function lensColumnJSON(trace, position, token, all) {
  const { model } = trace;
  const k = Math.min(LENS_TOP, model.size);
  const { ids, p } = trace.wholeLens(k);
  const layers = trace.residuals().length;
  const column = (/** @type {ArrayLike<number>} */ values) => Array.from({ length: layers }, (_, layer) => Array.from({ length: k }, (_, i) => values[(layer * trace.length + position) * k + i]));
  const top = column(ids);
  const tokens = all ? [...new Set(top.flat())] : token === null ? [] : [token];
  const ranks = Object.fromEntries(tokens.map((each) => [each, /** @type {number[]} */ ([])]));
  if (tokens.length) {
    const C = model.config.n_embd;
    for (let layer = 0; layer < layers; layer++) {
      const vector = rowOf(trace.residuals()[layer], position, C);
      const logits = layer === layers - 1 ? trace.logitsAt(position) : model.logits(model.finalNorm(vector));
      for (const each of tokens) ranks[each].push(rankOf(logits, each));
    }
  }
  return { ids: top, texts: top.map((row) => row.map((id) => model.text(id))), p: column(p), ranks };
}

/** One head of a step, (T, T) or (T, D). @param {import("./trace.js").Floats} floats @param {number} head @returns {import("./trace.js").Floats} */
function ofHead({ shape, data }, head) {
  const [, rows, columns] = shape;
  return { shape: [rows, columns], data: data.slice(head * rows * columns, (head + 1) * rows * columns) };
}

/** @param {Trace} trace @param {number} layer @param {number} head */
function scoresJSON(trace, layer, head) {
  const steps = trace.block(layer, ["attn.q", "attn.k", "attn.scores", "attn.scaled"]);
  return Object.fromEntries(Object.entries(steps).map(([step, floats]) => [step, ofHead(floats, head)]));
}

/** The most active neurons of a block at a position. @param {Trace} trace @param {number} layer @param {number} position */
function neuronsJSON(trace, layer, position) {
  const { model } = trace;
  const { data } = trace.block(layer, ["mlp.gelu"])["mlp.gelu"];
  const M = model.config.d_mlp;
  const neurons = largest(rowOf(data, position, M).map(Math.abs), NEURONS);
  const known = neuronTokens(model, layer, neurons);
  return {
    neurons: neurons.map((neuron) => {
      const [reads, writes] = /** @type {[number[], number[]]} */ (known.get(neuron));
      return { neuron, reads: reads.map((id) => model.text(id)), writes: writes.map((id) => model.text(id)), activations: Array.from({ length: trace.length }, (_, t) => data[t * M + neuron]) };
    }),
  };
}

/** @param {Trace} trace @param {number} position @param {string[]} asked */
function finalJSON(trace, position, asked) {
  const { model } = trace;
  if (asked.length > MAX_ROWS) throw invalid(`token: ${asked.length} items are over the limit of ${MAX_ROWS}.`, "token");
  const tokens = asked.length ? asked.map((text) => below("token", Number(text), model.size)) : largest(trace.logitsAt(position), CANDIDATES);
  return { ln_f: list(rowOf(trace.finals(), position, model.config.n_embd)), tokens, rows: tokens.map((token) => list(model.output(-1, "lm_head.weight", token))) };
}

/** One head at one position, from the block's input to `resid_mid`. @param {Trace} trace @param {number} layer @param {number} head @param {number} position */
function headJSON(trace, layer, head, position) {
  const C = trace.model.config.n_embd;
  const found = trace.block(layer, [...HEAD_STEPS, ...ATTENTION_STEPS]);
  /** @type {Record<string, any>} */
  const steps = { resid_pre: list(rowOf(trace.residuals()[layer], position, C)) };
  for (const step of ATTENTION_STEPS) steps[step] = list(rowOf(found[step].data, position, C));
  for (const step of HEAD_STEPS) {
    const { shape, data } = ofHead(found[step], head);
    steps[step] = step === "attn.k" || step === "attn.v" ? lists(data, shape[1]) : list(rowOf(data, position, shape[1]));
  }
  steps.unmasked = list(softmax(steps["attn.scaled"]));
  return steps;
}

/** @param {Trace} trace @param {number} layer @param {number} position */
function mlpJSON(trace, layer, position) {
  const found = trace.block(layer, MLP_STEPS);
  return Object.fromEntries(MLP_STEPS.map((step) => [step, list(rowOf(found[step].data, position, found[step].shape[1]))]));
}

/** @param {Trace} before @param {Trace} after @param {number} position */
function nextTokenJSON(before, after, position) {
  const { model } = before;
  const [p, q] = [before, after].map((trace) => logSoftmax(trace.logitsAt(position)));
  const [was, is] = [p, q].map((logs) => logs.map(Math.exp));
  const change = was.map((x, i) => Math.abs(Math.fround(x) - Math.fround(is[i])));
  const order = largest(change, TOP_CHANGES).filter((id) => change[id] > 0);
  return {
    logits: { shape: [model.size], data: after.logitsAt(position).slice() },
    kl: klDivergence(p, q),
    changes: order.map((id) => ({ id, text: model.text(id), before: was[id], after: is[id] })),
  };
}

/** KL(first || second) of the next-token distributions at every position. @param {Trace} first @param {Trace} second */
function klPerToken(first, second) {
  const C = [first, second].map(({ model }) => model.config.n_embd);
  const rows = (/** @type {Trace} */ trace, /** @type {number} */ i, /** @type {number} */ position) => logSoftmax(trace.model.logits(trace.finals().subarray(position * C[i], (position + 1) * C[i])));
  return Array.from({ length: first.length }, (_, position) => klDivergence(rows(first, 0, position), rows(second, 1, position)));
}
