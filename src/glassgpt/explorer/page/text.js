// Changes of the text that views share: going on with a token, taking the last one back.

import { api } from "./api.js";
import { store } from "./store.js";

/** How many of the tokens were given, and not appended here. */
export function promptLength() {
  const { ids, prompt } = store.get();
  const length = store.trace?.tokens.length ?? 0;
  return ids === null || prompt === null ? length : Math.max(1, Math.min(prompt, length));
}

/**
 * Go on with these tokens after the cursor's; what stood after it is dropped. One step in the browser's history.
 * @param {number[]} added
 * @param {number} [at] the token after which to go on
 */
export function goOn(added, at = store.cursor.token) {
  if (!store.trace || added.length === 0) return;
  const before = store.trace.tokens.slice(0, at + 1).map((token) => token.id);
  const prompt = Math.min(promptLength(), before.length);
  store.set({ ids: [...before, ...added], prompt, token: -1, step: null, edits: [] }, { push: true });
  went.push(before.length + added.length);
}

/** @type {number[]} the lengths that `goOn` left, the latest last: where Back leads to the text before it */
const went = [];

/** Take the last change of the text back: by the browser's Back where that is what it does, keeping the settings. */
export function undo() {
  if (api.offline) return;
  const length = store.trace?.tokens.length ?? 0;
  while (went.length > 0 && /** @type {number} */ (went.at(-1)) > length) went.pop();
  if (went.at(-1) === length) {
    went.pop();
    const kept = { ...store.get() };
    for (const key of /** @type {const} */ (["text", "ids", "prompt", "token", "edits"])) delete (/** @type {Partial<typeof kept>} */ (kept)[key]);
    addEventListener("popstate", () => store.set(kept), { once: true });
    history.back();
  } else if (length > 1 && store.trace) {
    store.set({ ids: store.trace.tokens.slice(0, -1).map((token) => token.id), token: -1, edits: [] }, { push: false });
  }
}
