// Edits to the forward pass, as in inspect/edits.py: they are part of the state, and the server runs them.

import { api, isAbort, messageOf } from "./api.js";
import { el } from "./draw.js";
import { store } from "./store.js";

/** The source of a patch in the state; the second text itself is in the state too, and so in the URL. */
const SECOND = "second";

/** @param {Edit} edit */
const keyOf = (edit) => JSON.stringify(Object.entries(edit).sort(([a], [b]) => (a < b ? -1 : 1)));

/** Whether this edit is active. @param {Edit} edit */
export function hasEdit(edit) {
  return store.get().edits.some((other) => keyOf(other) === keyOf(edit));
}

/** Add an edit, or remove it. @param {Edit} edit */
export function toggleEdit(edit) {
  const { edits } = store.get();
  const others = edits.filter((other) => keyOf(other) !== keyOf(edit));
  store.set({ edits: others.length < edits.length ? others : [...edits, edit] });
}

/** Zero ablation of a head. @param {{layer: number, head: number}} place @returns {Edit} */
export function ablateHead({ layer, head }) {
  return { kind: "ablate_head", layer, head, how: "zero" };
}

/** Patch a head from the second text. @param {{layer: number, head: number}} place @returns {Edit} */
export function patchHead({ layer, head }) {
  return { kind: "patch", step: `h.${layer}.attn.z`, source: SECOND, head };
}

/** A button that adds an edit, or removes it. @param {Edit} edit @param {string} label @param {string} [name] @param {() => void} [run] */
export function editButton(edit, label, name, run = () => toggleEdit(edit)) {
  const active = hasEdit(edit);
  return el("button", { type: "button", class: "edit", "aria-pressed": String(active), "aria-label": name, onclick: run }, active ? `✓ ${label}` : label);
}

/** An edit in words. @param {Edit} edit */
export function describe(edit) {
  const how = edit.how === "mean" ? "mean-ablated" : "ablated";
  if (edit.kind === "ablate_head") return `head ${edit.layer}.${edit.head} ${how}`;
  if (edit.kind === "ablate_neuron") return `neuron ${edit.neuron} of block ${edit.layer} ${how}`;
  if (edit.kind === "ablate_attention") return `attention of block ${edit.layer} ${how}`;
  if (edit.kind === "ablate_mlp") return `MLP of block ${edit.layer} ${how}`;
  if (edit.kind === "ablate_block") return `block ${edit.layer} ${how}`;
  if (edit.kind === "steer_token") return `steered towards token ${edit.token} by ${edit.strength}`;
  const block = edit.step?.split(".")[1];
  return edit.head === undefined ? `${edit.step} patched from the second text` : `head ${block}.${edit.head} patched from the second text`;
}

/** The edits as the server expects them, or null while the second text is loading. @returns {Edit[] | null} */
function resolveSources() {
  const { edits } = store.get();
  const second = store.secondTrace;
  if (!second && edits.some((edit) => edit.source === SECOND)) return null;
  const both = Math.min(store.trace?.tokens.length ?? 0, second?.tokens.length ?? 0);
  const positions = Array.from({ length: both }, (_, place) => place);
  return edits.map((edit) => (edit.source === SECOND && second ? { ...edit, source: second.id, positions } : edit));
}

async function updateIntervention() {
  const { trace } = store;
  const edits = resolveSources();
  if (!trace || !edits || edits.length === 0) {
    if (store.intervention || store.problem) store.update({ intervention: null, problem: "" }, "intervention");
    return;
  }
  try {
    const found = await api.post("/intervene", { id: trace.id, edits, position: store.cursor.token }, { slot: "intervene" });
    store.update({ intervention: found, problem: "" }, "intervention");
  } catch (error) {
    if (isAbort(error)) return;
    store.update({ intervention: null, problem: messageOf(error) }, "intervention");
  }
}

async function updateSecondTrace() {
  const { second, model, checkpoint } = store.get();
  if (second.trim() === "") {
    if (store.secondTrace) store.update({ secondTrace: null }, "secondTrace");
    return;
  }
  /** @type {Record<string, unknown>} */
  const body = { text: second };
  if (model) body.model = model;
  if (checkpoint !== null) body.checkpoint = checkpoint;
  try {
    const secondTrace = await api.post("/trace", body, { slot: "second" });
    if (secondTrace !== store.secondTrace) store.update({ secondTrace }, "secondTrace");
  } catch (error) {
    if (!isAbort(error)) store.update({ secondTrace: null }, "secondTrace");
  }
}

store.subscribe((changed) => {
  if (changed.has("second") || changed.has("trace")) void updateSecondTrace();
  const needed = changed.has("edits") || changed.has("trace") || changed.has("secondTrace");
  if (needed || (changed.has("token") && store.get().edits.length > 0)) void updateIntervention();
});
