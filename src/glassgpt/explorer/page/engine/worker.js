// The worker of a site: it has the models and answers the page's requests (state/site.js), one after the other. A
// generation pauses after each token, so that other requests are answered meanwhile.
import { Explorer, failure } from "./explorer.js";
import { openModel } from "./formats/open.js";
import { UserError } from "./model/wasm.js";

/** @typedef {import("./model/model.js").Model} Model */
/** @typedef {import("./formats/open.js").ModelFile} ModelFile */
/** @typedef {{name: string, describe: any, examples: any, files: ModelFile[] | null, bytes: number}} Offered a model of the site, or a file that was dropped */

const MAX_OPEN = 2; // to compare; a third takes the place of the least recently used

/** @type {Offered[]} */
const offered = [];
/** @type {Map<number, Promise<Model>>} the least recently used first */
const open = new Map();
/** @type {Promise<WebAssembly.Module> | undefined} */
let module;
/** @type {Explorer} */
let explorer;
/** What is computed now: one request at a time. */
let turn = Promise.resolve();
/** @type {Map<number, AsyncGenerator<any>>} */
const generations = new Map();

/** @param {any} message */
const post = (message) => /** @type {any} */ (self).postMessage(message);

/** @param {string} name @param {string} url @param {number} size @returns {ModelFile} */
function fetched(name, url, size) {
  return {
    name, size,
    stream: async () => {
      const response = await fetch(url).catch(() => null);
      if (!response?.ok || !response.body) throw new UserError(`${url} cannot be loaded. Is the site's folder complete?`, 503);
      return response.body;
    },
  };
}

/** @param {File} file @returns {ModelFile} */
function dropped(file) {
  return { name: file.name, size: file.size, stream: async () => file.stream() };
}

/** @param {any} site what the page knows of itself @param {string} base */
function start(site, base) {
  for (const model of site.models) {
    const files = model.files.map((/** @type {{name: string, bytes: number}} */ { name, bytes }) => fetched(name, new URL(`${model.folder}/${name}`, base).href, bytes));
    offered.push({ name: model.name, describe: model.describe, examples: model.examples, files, bytes: model.bytes });
  }
  module = fetch(new URL("./glassgpt.wasm", import.meta.url)).then(async (response) => {
    if (!response.ok) throw new UserError("The engine of this page, engine/glassgpt.wasm, cannot be loaded.", 503);
    return WebAssembly.compile(await response.arrayBuffer());
  });
  explorer = new Explorer({
    model: openNumber,
    describe: () => offered.map(({ describe }, i) => ({ ...describe, is_open: open.has(i) })),
    examples: (number) => offered[number]?.examples ?? null,
    facts: site.facts,
    version: site.package,
  });
}

/** @param {number} number @returns {Promise<Model>} */
async function openNumber(number) {
  const model = offered[number];
  if (!model) throw new UserError(`There is no model ${number}.`, 404, "model");
  let opening = open.get(number);
  if (!opening) {
    for (const old of [...open.keys()].slice(0, Math.max(0, open.size - MAX_OPEN + 1))) forget(old);
    opening = load(number, model);
    opening.catch(() => open.delete(number));
  }
  open.delete(number);
  open.set(number, opening);
  return opening;
}

/** @param {number} number */
function forget(number) {
  open.delete(number);
  explorer.forget(number);
}

/** @param {number} number @param {Offered} model @returns {Promise<Model>} */
async function load(number, { name, files, bytes }) {
  const report = (/** @type {string} */ phase, loaded = 0, total = bytes, message = "") => post({ type: "loading", name, number, phase, loaded, total, message });
  try {
    if (!(await confirmed(number, name, bytes))) throw new UserError(`${name} was not opened: its ${Math.round(bytes / 1e6)} MB were not wanted.`, 409);
    report("download");
    const found = await openModel(/** @type {ModelFile[]} */ (files), await /** @type {Promise<WebAssembly.Module>} */ (module), { name, number }, (loaded, total) => report("download", loaded, total));
    report("ready", bytes);
    return found;
  } catch (error) {
    report("failed", 0, bytes, error instanceof Error ? error.message : String(error));
    throw error;
  }
}

/** @type {Map<number, (yes: boolean) => void>} questions that the page has not answered yet */
const questions = new Map();

/** Whether a model of the site is to be downloaded: the page asks where it would be too much. @param {number} number @param {string} name @param {number} bytes @returns {Promise<boolean>} */
function confirmed(number, name, bytes) {
  if (offered[number]?.describe === null) return Promise.resolve(true); // it was dropped, and is here already
  return new Promise((resolve) => {
    questions.set(number, resolve);
    post({ type: "confirm", number, model: { name, bytes } });
  });
}

/** A model that was dropped on the page: it is opened at once, so that a mistake is known at once. @param {File[]} files */
async function openFiles(files) {
  const list = files.map(dropped);
  const weights = files.find(({ name }) => /\.(gguf|safetensors)$/i.test(name)) ?? files[0];
  const folder = (weights?.webkitRelativePath ?? "").split("/")[0];
  const name = folder || (weights?.name ?? "a file").replace(/\.(gguf|safetensors)$/i, "");
  const number = offered.length;
  offered.push({ name, describe: null, examples: null, files: list, bytes: weights?.size ?? 0 });
  try {
    const model = await openNumber(number);
    const { n_layer, n_head, n_embd, d_head, vocab_size, n_positions, d_mlp } = model.config;
    offered[number].describe = { name, config: { n_layer, n_head, n_embd, d_head, vocab_size, n_positions, d_mlp }, parameters: model.parameters, shipped: false, has_tokenizer: model.tokenizer !== null };
    return { number, name };
  } catch (error) {
    offered.length = number;
    throw error;
  }
}

/** Run when everything before has ended. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
function inTurn(work) {
  const result = turn.then(work);
  turn = result.then(() => {}, () => {});
  return result;
}

/** @type {Set<number>} requests that nobody waits for any more */
const aborted = new Set();

/** @param {any} message */
async function answer({ type, number, key, body, files, site, base, yes }) {
  switch (type) {
    case "confirmed": return questions.get(number)?.(yes);
    case "start": return start(site, base);
    case "abort":
      aborted.add(number);
      return;
    case "open":
      return inTurn(async () => post({ type: "answer", number, status: 200, body: await openFiles(files) })).catch((error) => post({ type: "answer", number, ...failure(error) }));
    case "ask":
      return inTurn(async () => {
        if (aborted.delete(number)) return;
        post({ type: "answer", number, status: 200, body: await explorer.respond(key) });
      }).catch((error) => post({ type: "answer", number, ...failure(error) }));
    case "generate":
      generations.set(number, explorer.events(body));
      return nextEvent(number);
  }
}

/** The next token of a generation; others have their turn in between. @param {number} number */
async function nextEvent(number) {
  const events = generations.get(number);
  if (!events) return;
  try {
    const { done, value } = await inTurn(async () => (aborted.delete(number) ? { done: true, value: undefined } : events.next()));
    if (done) {
      generations.delete(number);
      post({ type: "event", number, done: true });
      return;
    }
    post({ type: "event", number, value });
    breathe(() => void nextEvent(number));
  } catch (error) {
    generations.delete(number);
    post({ type: "event", number, done: true, failed: failure(error) });
  }
}

const channel = new MessageChannel();
/** @type {(() => void)[]} */
const later = [];
channel.port1.onmessage = () => later.shift()?.();

/** Let messages come in first. @param {() => void} next */
function breathe(next) {
  later.push(next);
  channel.port2.postMessage(null);
}

self.onmessage = ({ data }) => void answer(data);
