// The page's own requests under /api/v1, answered without a server: the counterpart of explorer/routes. Each answer has
// the same fields and, up to rounding, the same numbers.
import { attentionRollout, directLogitAttribution } from "./attribution.js";
import {
  embeddingJSON, finalJSON, headJSON, klPerToken, lensColumnJSON, lensJSON, mlpJSON, neuronsJSON, nextTokenJSON, patternsJSON, scoresJSON, traceJSON,
} from "./answers.js";
import { shown } from "./formats/bytes.js";
import { checkEdit, firstChanged, hooksOf } from "./edits.js";
import { generate } from "./generate.js";
import { tallyOf } from "./model/parameters.js";
import { below, checkFields, checkIds, idOf, indexOf, invalid, number, parseBody } from "./request.js";
import { Trace } from "./model/trace.js";
import { examplesOfKinds, mostSalientHead } from "./text/words.js";
import { UserError } from "./model/wasm.js";

/** @typedef {import("./model/model.js").Model} Model */
/** @typedef {import("./model/parameters.js").Facts} Facts */
/** @typedef {(name: string) => number} IndexOf a whole number of the query */

const KEEP_BYTES = 32 * 2 ** 20; // a longer text opens at no head
const TRACE_BYTES = 32e6; // of all texts together
const MAX_TRACES = 32;
const MAX_INTERVENTIONS = 4;
const MAX_CHARACTERS = 20_000;
/** The methods that need no gradients. @type {Record<string, typeof attentionRollout | typeof directLogitAttribution>} */
const METHODS = { attention_rollout: attentionRollout, direct_logit_attribution: directLogitAttribution };
const GRADIENTS = ["input_x_gradient", "integrated_gradients"];

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
    for (const { trace } of [...this.traces.values()].slice(0, -1)) trace.clear();
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
