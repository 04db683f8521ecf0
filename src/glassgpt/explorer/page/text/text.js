// Changes of the text: append tokens, undo.

import { api } from "../state/api.js";
import { store } from "../state/store.js";

/** How many tokens are the prompt, and were not appended here. */
export function promptLength() {
  const { ids, prompt } = store.get();
  const length = store.trace?.tokens.length ?? 0;
  return ids === null || prompt === null ? length : Math.max(1, Math.min(prompt, length));
}

/**
 * Append tokens after the cursor's; what followed it is dropped. One entry in the browser's history.
 * @param {number[]} added
 * @param {number} [at] the token to append to
 */
export function appendTokens(added, at = store.cursor.token) {
  if (!store.trace || added.length === 0) return;
  const before = store.trace.tokens.slice(0, at + 1).map((token) => token.id);
  const prompt = Math.min(promptLength(), before.length);
  store.set({ ids: [...before, ...added], prompt, token: -1, step: null, edits: [] }, { push: true });
  appendedLengths.push(before.length + added.length);
}

/** @type {number[]} the text lengths after each `appendTokens`, the latest last: there Back leads to the text before */
const appendedLengths = [];

/** Undo the last change of the text: with the browser's Back where that does it, keeping the settings. */
export function undo() {
  if (api.offline) return;
  const length = store.trace?.tokens.length ?? 0;
  while (appendedLengths.length > 0 && /** @type {number} */ (appendedLengths.at(-1)) > length) appendedLengths.pop();
  if (appendedLengths.at(-1) === length) {
    appendedLengths.pop();
    const kept = { ...store.get() };
    for (const key of /** @type {const} */ (["text", "ids", "prompt", "token", "edits"])) delete (/** @type {Partial<typeof kept>} */ (kept)[key]);
    addEventListener("popstate", () => store.set(kept), { once: true });
    history.back();
  } else if (length > 1 && store.trace) {
    store.set({ ids: store.trace.tokens.slice(0, -1).map((token) => token.id), token: -1, edits: [] }, { push: false });
  }
}
