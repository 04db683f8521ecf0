// What a model opens with: its examples, and the tokens that can be inserted into a text. The server knows them.

import { api } from "../state/api.js";
import { store } from "../state/store.js";
import { isKnown, t } from "../languages/language.js";

/**
 * @typedef {{key?: string, name: string, words: string, text: string | null, ids: number[] | null, state: Partial<State>}} Example
 * @typedef {{name: string, ids: number[], special: boolean}} Insert
 * @typedef {{kind: "text" | "task" | "music" | "ids", examples: Example[], inserts: Insert[]}} Examples
 */

/** @type {Examples} of a page without a server */
const NONE = { kind: "text", examples: [], inserts: [] };

/** @param {number} model */
const path = (model) => `/examples?model=${model}`;

/** @param {number} model @returns {Promise<Examples>} */
export const examplesOf = (model) => (api.offline && !api.known(path(model)) ? Promise.resolve(NONE) : api.get(path(model)));

/** The same, if it is known. @param {number} [model] @returns {Examples} */
export const knownExamples = (model = store.get().model) => api.peek(path(model)) ?? NONE;

/** An example's name and words in the reader's language, if it is one of ours. @param {Example} example */
export const named = ({ key, name, words }) =>
  (key && isKnown(`example.${key}`) ? { name: t(`example.${key}`), words: t(`example.${key}.says`) } : { name, words });

/** What changes with the text, whatever it is: nothing of the one before stays. @type {Partial<State>} */
const FRESH = { prompt: null, token: -1, layer: null, head: null, edits: [], overlay: [], pin: null, target: null, step: null, play: null };

/** An example shows the model's own probabilities, unless it says otherwise: those of the one before are not its. @type {Partial<State>} */
const UNSHAPED = { temperature: 1, topK: 0, topP: 1, minP: 0 };

/** Two that were chosen to be compared may not fit another model. @type {Partial<State>} */
const UNCOMPARED = { compare: null };

/** The part of the state that is an example's. @param {Example} example @returns {Partial<State>} */
const promptOf = ({ text, ids }) => (ids ? { ids, text: "" } : { text: text ?? "", ids: null });

/** Open an example of the current model, or of another one. @param {Example} example @param {Partial<State>} [also] */
export function openExample(example, also = {}) {
  const other = also.model !== undefined && also.model !== store.get().model;
  store.set({ ...FRESH, ...UNSHAPED, ...promptOf(example), ...example.state, ...(other ? UNCOMPARED : {}), ...also }, { push: true });
}

/** Whether the page shows this example. @param {Example} example */
export function isOpen({ text, ids }) {
  const state = store.get();
  return ids ? JSON.stringify(state.ids) === JSON.stringify(ids) : state.ids === null && state.text === text;
}

/** How often a model or a file was picked. */
let picks = 0;

/** Open a file's text once it has come, unless a model was picked or a text written meanwhile. @returns {(example: Example, also: Partial<State>) => boolean} */
export function openLater() {
  const [number, { textKey }] = [picks, store];
  return (example, also) => {
    if (number !== picks || textKey !== store.textKey) return false;
    picks++; // an earlier pick that is still pending
    openExample(example, also);
    return true;
  };
}

/**
 * Open a model. A text of one's own stays if the model reads text; else it opens with its first example, since a
 * sentence means nothing to a model of music, and a translator waits for its token.
 * @param {number} model @param {string} [key] of the example to open
 */
export async function openModel(model, key) {
  const before = knownExamples();
  const own = !before.examples.some(isOpen);
  const number = ++picks;
  store.update({ typing: true }, "status"); // the numbers are not those of the model that the picker names
  try {
    const { kind, examples } = await examplesOf(model);
    if (number !== picks) return; // another one was picked meanwhile
    const chosen = examples.find((example) => key !== undefined && example.key === key);
    if (chosen || kind !== "text" || before.kind !== "text" || !own) {
      const same = kind === before.kind ? examples.find(isOpen) : undefined;
      openExample(chosen ?? same ?? examples[0], { model, checkpoint: null });
      if (store.status !== "loading") store.update({ typing: false }, "status"); // it was open
      return;
    }
  } catch {
    // The trace says what is wrong.
  }
  const { text, ids } = store.get();
  const written = ids && store.trace ? store.trace.words.map((word) => word.text).join("") : text;
  store.set({ ...FRESH, ...UNCOMPARED, model, checkpoint: null, text: written, ids: null }, { push: true });
}

/** What a page opens with whose address has no text: the model's first example. */
store.opening = async () => {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (api.offline || asked.has("text") || asked.has("ids")) return null;
  const { kind, examples } = await examplesOf(store.get().model);
  if (kind === "text") return null; // the default text is its first example
  const given = Object.fromEntries(Object.entries(examples[0].state).filter(([key]) => !asked.has(key)));
  return { ...promptOf(examples[0]), ...given };
};
