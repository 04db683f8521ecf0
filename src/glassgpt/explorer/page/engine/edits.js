// Edits to the forward pass (inspect/edits): each becomes hooks, which change a step where it stands.
import { normOf } from "./model/arrays.js";
import { shown } from "./formats/bytes.js";
import { BLOCK_STEPS } from "./model/model.js";
import { UserError } from "./model/wasm.js";

/** @typedef {import("./model/trace.js").Trace} Trace */
/** @typedef {import("./model/trace.js").Hooks} Hooks */
/** @typedef {import("./model/model.js").Shown} Shown */

/** @param {string} message @param {string | null} [field] */
const invalid = (message, field = null) => new UserError(message, 422, field);

const HOW = ["zero", "mean"];
/** The fields of each kind, required ones with "!". @type {Record<string, string[]>} */
const FIELDS = {
  ablate_head: ["layer!", "head!", "how", "positions"],
  ablate_neuron: ["layer!", "neuron!", "how", "positions"],
  ablate_attention: ["layer!", "how", "positions"],
  ablate_mlp: ["layer!", "how", "positions"],
  ablate_block: ["layer!", "how", "positions"],
  patch: ["step!", "source!", "head", "positions", "source_positions"],
  steer_token: ["layer!", "token!", "strength", "positions"],
};
const INTEGERS = ["layer", "head", "neuron", "token"];
const LISTS = ["positions", "source_positions"];

/** An edit of a request, checked. @param {any} edit @param {number} number @returns {Edit} */
export function checkEdit(edit, number) {
  const place = `edits.${number}`;
  if (edit === null || typeof edit !== "object" || Array.isArray(edit)) throw invalid(`${place}: ${shown(edit)} is not an object.`, place);
  if (!Object.hasOwn(FIELDS, edit.kind ?? "")) throw invalid(`${place}: kind ${shown(edit.kind)} is not one of ${Object.keys(FIELDS).join(", ")}.`, place);
  const fields = FIELDS[edit.kind].map((name) => name.replace("!", ""));
  for (const name of Object.keys(edit)) if (name !== "kind" && !fields.includes(name)) throw invalid(`${place}.${name} is not a field of this request. Correct its name, or leave it out.`, `${place}.${name}`);
  for (const name of FIELDS[edit.kind]) if (name.endsWith("!") && (edit[name.slice(0, -1)] ?? null) === null) throw invalid(`${place}.${name.slice(0, -1)}: this field is missing.`, `${place}.${name.slice(0, -1)}`);
  for (const [name, value] of Object.entries(edit)) if (!fits(name, value)) throw invalid(`${place}.${name}: ${shown(value)} cannot be used here.`, `${place}.${name}`);
  return edit;
}

/** @param {string} name @param {unknown} value */
function fits(name, value) {
  const isIndex = (/** @type {unknown} */ one) => Number.isInteger(one) && /** @type {number} */ (one) >= 0 && /** @type {number} */ (one) < 2 ** 31;
  if (value === null) return ["head", ...LISTS].includes(name);
  if (INTEGERS.includes(name)) return isIndex(value);
  if (LISTS.includes(name)) return Array.isArray(value) && value.length <= 4096 && value.every(isIndex);
  if (name === "how") return HOW.includes(/** @type {string} */ (value));
  if (name === "strength") return typeof value === "number" && Math.abs(value) <= 1e6;
  return typeof value === "string" && value.length <= 60;
}

/** All edits as hooks. @param {readonly Edit[]} edits @param {Trace} trace without edits @param {(id: string) => Trace} source @returns {Hooks} */
export function hooksOf(edits, trace, source) {
  /** @type {Hooks} */
  const hooks = new Map();
  for (const edit of edits) {
    for (const [step, hook] of bind(edit, trace, source)) hooks.set(step, [...(hooks.get(step) ?? []), hook]);
  }
  return hooks;
}

/** The first block whose output may differ, as a number; -1 if the embedding changes. @param {Hooks} hooks @param {number} layers */
export function firstChanged(hooks, layers) {
  let first = layers;
  for (const step of hooks.keys()) {
    const found = /^h\.(\d+)\./.exec(step);
    if (!found && step !== "ln_f") return -1;
    if (found) first = Math.min(first, Number(found[1]));
  }
  return first;
}

/** @param {Edit} edit @param {Trace} trace @param {(id: string) => Trace} source @returns {[string, (shown: Shown) => void][]} */
function bind(edit, trace, source) {
  const { config } = trace.model;
  const rows = edit.positions ? edit.positions.map((position) => index("position", position, trace.length)) : null;
  const ablate = (/** @type {string} */ step, /** @type {Place} */ place) => /** @type {[string, (shown: Shown) => void]} */ ([step, (shown) => ablation(shown, edit.how ?? "zero", { ...place, rows })]);
  if (edit.kind === "patch") return [patch(edit, trace, source(/** @type {string} */ (edit.source)))];
  const layer = index("layer", edit.layer, config.n_layer);
  switch (edit.kind) {
    case "ablate_head": return [ablate(`h.${layer}.attn.z`, { head: index("head", edit.head, config.n_head) })];
    case "ablate_neuron": return [ablate(`h.${layer}.mlp.gelu`, { column: index("neuron", edit.neuron, config.d_mlp) })];
    case "ablate_attention": return [ablate(`h.${layer}.attn.proj`, {})];
    case "ablate_mlp": return [ablate(`h.${layer}.mlp.proj`, {})];
    case "ablate_block": return [ablate(`h.${layer}.attn.proj`, {}), ablate(`h.${layer}.mlp.proj`, {})];
    default: return [[`h.${layer}.resid_post`, steering(edit, trace, rows)]];
  }
}

/** @typedef {{head?: number, column?: number, rows?: number[] | null}} Place the part of a step that changes */

/** @param {string} what @param {number | undefined} value @param {number} size */
function index(what, value, size) {
  if (value === undefined || value >= size) throw new UserError(`${what} ${value} is out of range. Use 0 to ${size - 1}.`);
  return value;
}

/** Zero ablation, or mean ablation over all positions of this text. @param {Shown} shown @param {string} how @param {Place} place */
function ablation({ head, values, rows, columns, ld }, how, place) {
  if (place.head !== undefined && place.head !== head) return;
  const [from, to] = place.column === undefined ? [0, columns] : [place.column, place.column + 1];
  const changed = place.rows ?? Array.from({ length: rows }, (_, i) => i);
  for (let j = from; j < to; j++) {
    let mean = 0;
    if (how === "mean") {
      for (let i = 0; i < rows; i++) mean += values[i * ld + j];
      mean /= rows;
    }
    for (const i of changed) values[i * ld + j] = mean;
  }
}

/** Steer the stream towards a token, along its row of the head; strength 1 adds a vector of the stream's mean norm. @param {Edit} edit @param {Trace} trace @param {number[] | null} positions @returns {(shown: Shown) => void} */
function steering(edit, trace, positions) {
  const { model } = trace;
  const row = model.output(-1, "lm_head.weight", index("token id", edit.token, model.config.vocab_size));
  const length = Math.max(normOf(row), 1e-12);
  return ({ values, rows, columns, ld }) => {
    let sum = 0;
    for (let i = 0; i < rows; i++) sum += normOf(values.subarray(i * ld, i * ld + columns));
    const size = ((edit.strength ?? 1) * sum) / rows / length;
    for (const i of positions ?? Array.from({ length: rows }, (_, at) => at)) for (let j = 0; j < columns; j++) values[i * ld + j] += size * row[j];
  };
}

/** The step behind a name: `h.3.resid_pre` is `h.2.resid_post`. @param {string} name @param {number} layers */
export function resolveStep(name, layers) {
  const found = /^h\.(\d+)\.(.+)$/.exec(name);
  if (!found) {
    if (!["wte", "wpe", "embedding", "ln_f"].includes(name)) throw new UserError(name === "logits" ? "logits are the output and cannot be edited. Edit ln_f or an earlier step." : `${shown(name)} is not a step of the model.`);
    return name;
  }
  const layer = index("layer", Number(found[1]), layers);
  if (found[2] === "resid_pre") return layer === 0 ? "embedding" : `h.${layer - 1}.resid_post`;
  if (!BLOCK_STEPS.includes(found[2])) throw new UserError(`${shown(name)} is not a step of the model. Steps of a block are ${BLOCK_STEPS.join(", ")}.`);
  return name;
}

/** Activation patching. @param {Edit} edit @param {Trace} trace @param {Trace} source @returns {[string, (shown: Shown) => void]} */
function patch(edit, trace, source) {
  const { config } = trace.model;
  const step = resolveStep(/** @type {string} */ (edit.step), config.n_layer);
  const { shape, data } = source.step(step);
  const hasHeads = shape.length === 3;
  const head = edit.head ?? null;
  if (head !== null && !hasHeads) throw new UserError(`${step} has no heads. Omit head, or use h.N.attn.z.`);
  if (head !== null) index("head", head, config.n_head);
  const positions = edit.positions ?? null;
  const there = edit.source_positions ?? positions;
  if (positions === null && there === null && source.length !== trace.length) {
    throw new UserError(`the text has ${trace.length} tokens, but the source of the patch has ${source.length}. Use texts of the same length, or pass positions.`);
  }
  for (const position of positions ?? []) index("position", position, trace.length);
  for (const position of there ?? []) index("position", position, source.length);
  const [rows, columns] = shape.slice(-2);
  const from = there ?? Array.from({ length: rows }, (_, i) => i);
  return [step, (shown) => {
    if (head !== null && shown.head !== head) return;
    const to = positions ?? Array.from({ length: shown.rows }, (_, i) => i);
    if (to.length !== from.length || columns !== shown.columns) {
      throw new UserError(`a patch of (${from.length}, ${columns}) does not fit ${edit.step}, (${to.length}, ${shown.columns}). Pass as many positions as source_positions, and for attention texts of the same length.`);
    }
    const start = hasHeads ? shown.head * rows * columns : 0;
    to.forEach((row, i) => shown.values.set(data.subarray(start + from[i] * columns, start + (from[i] + 1) * columns), row * shown.ld));
  }];
}
