// Edits to the forward pass, as in inspect/edits/edits.py: they are part of the state, and the server runs them.

import { api, isAbort, messageOf } from "../state/api.js";
import { el, visible } from "../draw/draw.js";
import { store } from "../state/store.js";
import { t } from "../languages/language.js";

/** The source of a patch in the state; the second text itself is in the state too, and so in the URL. */
export const SECOND = "second";

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

/** A new trace of the second text is requested after this long without typing. */
const TYPED_MS = 300;
/** @type {ReturnType<typeof setTimeout> | undefined} */ let typing;
/** The request that `store.secondTrace` is the answer to; empty while another text is typed. */
let secondOf = "";

/** The request for the trace of the second text. @returns {Record<string, unknown>} */
function secondBody() {
  const { second, model, checkpoint } = store.get();
  return { text: second, ...(model ? { model } : {}), ...(checkpoint === null ? {} : { checkpoint }) };
}

/** The trace of the second text as it is written; null while it is computed. */
export const secondNow = () => (secondOf === JSON.stringify(secondBody()) ? store.secondTrace : null);

/** Whether an edit takes its values from the second text. @param {Edit} edit */
const isPatched = (edit) => edit.source === SECOND;

/** Take what is typed as the second text: from now on, what is shown is of the text before. @param {string} text */
export function typeSecond(text) {
  clearTimeout(typing);
  secondOf = "";
  store.update({}, "secondTrace");
  typing = setTimeout(() => {
    store.set({ second: text });
    void updateSecondTrace();
  }, TYPED_MS);
}

/** A button that adds an edit, or removes it. @param {Edit} edit @param {string} label @param {string} [name] @param {() => void} [run] */
export function editButton(edit, label, name, run = () => toggleEdit(edit)) {
  const active = hasEdit(edit);
  return el("button", { class: "edit", "aria-pressed": String(active), "aria-label": name, disabled: api.offline, title: api.offline
    ? t("edits.file") : null, onclick: run }, active ? `✓ ${label}` : label);
}

/** A token's text, if the vocabulary is loaded. @param {number} id */
const tokenText = (id) => visible(api.peek(`/vocabulary?model=${store.trace?.model ?? 0}`)?.texts[id] ?? t("lens.token", { id: String(id) }));

/** An edit in words. @param {Edit} edit */
export function describe(edit) {
  const { layer = 0, head, neuron, token = 0, strength = 1 } = edit;
  if (edit.kind === "steer_token") return t(strength < 0 ? "edit.away" : "edit.toward", { word: tokenText(token), strength: Math.abs(strength), layer });
  if (edit.kind === "patch") {
    const block = edit.step?.split(".")[1];
    if (head === undefined && edit.positions?.length === 1) {
      return t("edit.patch.at", { step: edit.step ?? "", word: visible(store.trace?.tokens[edit.positions[0]]?.text ?? "") });
    }
    return head === undefined ? t("edit.patch", { step: edit.step ?? "" }) : t("edit.patch.head", { head: `${block}.${head}` });
  }
  const how = edit.how === "mean" ? ".mean" : "";
  return t(`edit.${edit.kind.replace("ablate_", "")}${how}`, { layer, neuron: String(neuron), head: `${layer}.${head}` });
}

/** The edits as the server expects them, or null while the second text is loading. @returns {Edit[] | null} */
export function resolveSources() {
  const { edits } = store.get();
  const second = secondNow();
  if (!second && edits.some(isPatched)) return null;
  const both = Math.min(store.trace?.tokens.length ?? 0, second?.tokens.length ?? 0);
  const positions = Array.from({ length: both }, (_, place) => place);
  return edits.map((edit) => (isPatched(edit) && second ? { ...edit, source: second.id, positions: edit.positions ?? positions } : edit));
}

/**
 * The run with edits: what was asked for, and the columns that are known of its lens.
 * @type {{key: string, body: {id: string, edits: Edit[]}, lens: SparseLens | null} | null}
 */
let run = null;
/** The columns that the tower shows. @type {[number, number]} */
let columns = [0, 0];
/** So many more are computed on either side when it is scrolled. */
const MARGIN = 6;

/** What the effect belongs to: the text, the edits, the token, and the second text if a head is patched from it. */
function subject() {
  const { edits } = store.get();
  return JSON.stringify([store.trace?.id, edits, store.cursor.token, edits.some(isPatched) ? secondNow()?.id ?? "" : null]);
}

/** The effect of the current edits at the cursor; null while it is computed. */
export const effectNow = () => (store.intervention?.of === subject() ? store.intervention : null);

/** Whether the effect of the edits is being computed. */
export const isEditing = () => store.get().edits.length > 0 && effectNow() === null && store.problem === "";

/** The lens with the current edits; null while it is computed. */
export const lensNow = () => run?.lens ?? null;

/** The effect on the next token, and the lens of the columns in sight: one request, and one frame. */
async function updateIntervention() {
  const { trace } = store;
  const edits = resolveSources();
  if (!trace || !edits || edits.length === 0) {
    run = null;
    if (store.intervention || store.problem) store.update({ intervention: null, problem: "" }, "intervention");
    return;
  }
  const body = { id: trace.id, edits };
  const key = JSON.stringify(body);
  if (run?.key !== key) run = { key, body, lens: null };
  const of = subject();
  try {
    const effect = api.post("/intervene", { ...body, position: store.cursor.token, only: "next" }, { slot: "intervene", together: true });
    const [found] = await Promise.all([effect, loadColumns()]);
    if (run?.key === key) store.update({ intervention: { ...found, of, lens: run.lens }, problem: "" }, "intervention");
  } catch (error) {
    if (isAbort(error)) return;
    store.update({ intervention: null, problem: messageOf(error) }, "intervention");
  }
}

/** The tower shows other columns: with edits, their lens is computed now. @param {number} first @param {number} last */
export function showColumns(first, last) {
  columns = [first, last];
  if (lensNow()) void scrolled();
}

/** Load what has come into sight, and some columns next to it. */
async function scrolled() {
  const before = lensNow();
  try {
    await loadColumns(MARGIN);
    if (lensNow() === before) return;
    store.update({ intervention: store.intervention && { ...store.intervention, lens: lensNow() } }, "intervention");
    void scrolled(); // it may have been scrolled meanwhile
  } catch (error) {
    store.update({ problem: messageOf(error) }, "intervention");
  }
}

/** Load the lens of the columns in sight, with a margin on either side, unless it is known. */
async function loadColumns(margin = 0) {
  const [current, { trace }] = [run, store];
  if (!current || !trace) return;
  const end = trace.tokens.length - 1;
  const known = (/** @type {number} */ token) => current.lens?.ids[0][token] !== undefined;
  const trim = (/** @type {number} */ first, /** @type {number} */ last) => {
    while (first <= last && known(first)) first++;
    while (first <= last && known(last)) last--;
    return [first, last];
  };
  let [first, last] = trim(columns[0], Math.min(columns[1], end));
  if (first > last) return;
  [first, last] = trim(Math.max(0, first - margin), Math.min(last + margin, end));
  try {
    const { lens } = await api.post("/intervene", { ...current.body, first, last, only: "lens" }, { slot: "intervene-lens", together: true });
    if (run !== current) return;
    const merge = (/** @type {"ids" | "texts" | "p"} */ name) =>
      lens[name].map((/** @type {any[]} */ row, /** @type {number} */ layer) => Object.assign([...(current.lens?.[name][layer] ?? [])],
        Object.fromEntries(row.map((value, i) => [first + i, value]))));
    current.lens = { ids: merge("ids"), texts: merge("texts"), p: merge("p") };
  } catch (error) {
    if (!isAbort(error)) throw error;
  }
}

async function updateSecondTrace() {
  const { second, edits } = store.get();
  const body = secondBody();
  if (second.trim() === "") {
    if (edits.some(isPatched)) store.set({ edits: edits.filter((edit) => !isPatched(edit)) }); // from nothing
    if (store.secondTrace) store.update({ secondTrace: null }, "secondTrace");
    return;
  }
  try {
    const secondTrace = await api.post("/trace", body, { slot: "second" });
    if (secondTrace === secondNow()) return;
    secondOf = JSON.stringify(body);
    store.update({ secondTrace }, "secondTrace");
  } catch (error) {
    if (isAbort(error)) return;
    store.update({ secondTrace: null }, "secondTrace");
    if (edits.some(isPatched)) store.update({ problem: messageOf(error) }, "intervention");
  }
}

store.subscribe((changed) => {
  if (changed.has("second") || changed.has("trace")) void updateSecondTrace();
  const needed = changed.has("edits") || changed.has("trace") || changed.has("second") || changed.has("secondTrace");
  if (needed || (changed.has("token") && store.get().edits.length > 0)) void updateIntervention();
});
