// What the user meddles with: edits are part of the state, and what they do is asked of the server.

import { api, isAbort, messageOf } from "./api.js";
import { el } from "./draw.js";
import { store } from "./store.js";

/** In the state a patch names its source so; the second text itself is in the state too, and so in the URL. */
const SECOND = "second";

/** @param {Edit} edit */
const nameOf = (edit) => JSON.stringify(Object.entries(edit).sort(([a], [b]) => (a < b ? -1 : 1)));

/** Is this edit made? @param {Edit} edit */
export function hasEdit(edit) {
  return store.get().edits.some((other) => nameOf(other) === nameOf(edit));
}

/** Make an edit, or take it back. @param {Edit} edit */
export function toggleEdit(edit) {
  const { edits } = store.get();
  const others = edits.filter((other) => nameOf(other) !== nameOf(edit));
  store.set({ edits: others.length < edits.length ? others : [...edits, edit] });
}

/** Take a head out. @param {{layer: number, head: number}} place @returns {Edit} */
export function cutHead({ layer, head }) {
  return { kind: "head", layer, head, how: "zero" };
}

/** Let a head say what it said in the second text. @param {{layer: number, head: number}} place @returns {Edit} */
export function patchHead({ layer, head }) {
  return { kind: "patch", tap: `h.${layer}.attn.z`, source: SECOND, head };
}

/** A button that makes an edit, or takes it back. @param {Edit} edit @param {string} label @param {string} [name] @param {() => void} [run] */
export function editButton(edit, label, name, run = () => toggleEdit(edit)) {
  const made = hasEdit(edit);
  return el("button", { type: "button", class: "edit", "aria-pressed": String(made), "aria-label": name, onclick: run }, made ? `✓ ${label}` : label);
}

/** An edit in words. @param {Edit} edit */
export function describe(edit) {
  const how = edit.how === "mean" ? "set to its mean" : "taken out";
  if (edit.kind === "head") return `head ${edit.layer}.${edit.head} ${how}`;
  if (edit.kind === "neuron") return `neuron ${edit.neuron} of block ${edit.layer} ${how}`;
  if (edit.kind === "attn") return `attention of block ${edit.layer} ${how}`;
  if (edit.kind === "mlp") return `MLP of block ${edit.layer} ${how}`;
  if (edit.kind === "block") return `block ${edit.layer} ${how}`;
  if (edit.kind === "steer") return `steered towards token ${edit.token} by ${edit.strength}`;
  const block = edit.tap?.split(".")[1];
  return edit.head === undefined ? `${edit.tap} from the second text` : `head ${block}.${edit.head} from the second text`;
}

/** The edits as the server knows them, or null while the second text is not there yet. @returns {Edit[] | null} */
function resolved() {
  const { edits } = store.get();
  const second = store.secondTrace;
  if (!second && edits.some((edit) => edit.source === SECOND)) return null;
  const both = Math.min(store.trace?.tokens.length ?? 0, second?.tokens.length ?? 0);
  const positions = Array.from({ length: both }, (_, place) => place);
  return edits.map((edit) => (edit.source === SECOND && second ? { ...edit, source: second.id, positions } : edit));
}

async function ask() {
  const { trace } = store;
  const edits = resolved();
  if (!trace || !edits || edits.length === 0) {
    if (store.intervention || store.problem) store.learn({ intervention: null, problem: "" }, "intervention");
    return;
  }
  try {
    const found = await api.post("/intervene", { id: trace.id, edits, token: store.cursor.token }, { slot: "intervene" });
    store.learn({ intervention: found, problem: "" }, "intervention");
  } catch (error) {
    if (isAbort(error)) return;
    store.learn({ intervention: null, problem: messageOf(error) }, "intervention");
  }
}

async function askSecond() {
  const { second, model, checkpoint } = store.get();
  if (second.trim() === "") {
    if (store.secondTrace) store.learn({ secondTrace: null }, "secondTrace");
    return;
  }
  /** @type {Record<string, unknown>} */
  const body = { text: second };
  if (model) body.model = model;
  if (checkpoint !== null) body.checkpoint = checkpoint;
  try {
    const secondTrace = await api.post("/trace", body, { slot: "second" });
    if (secondTrace !== store.secondTrace) store.learn({ secondTrace }, "secondTrace");
  } catch (error) {
    if (!isAbort(error)) store.learn({ secondTrace: null }, "secondTrace");
  }
}

store.subscribe((changed) => {
  if (changed.has("second") || changed.has("trace")) void askSecond();
  const asked = changed.has("edits") || changed.has("trace") || changed.has("secondTrace");
  if (asked || (changed.has("token") && store.get().edits.length > 0)) void ask();
});
