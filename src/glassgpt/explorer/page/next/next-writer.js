// "Generate": tokens are streamed and appended; stopping keeps those so far.

import { api, isAbort, messageOf } from "../state/api.js";
import { el, percent, put, shade, visible } from "../draw/draw.js";
import { knownExamples } from "../text/examples.js";
import { current } from "../panel.js";
import { store } from "../state/store.js";
import { resolveSources } from "../edits/edits.js";
import { appendTokens } from "../text/text.js";
import { t } from "../languages/language.js";

/** Written text with real spaces, where lines can break. @param {string} text */
const breakable = (text) => (text.trim() === "" ? visible(text) : text);

/** @type {SamplingParams} */
const GREEDY = { temperature: 0, topK: null, topP: null, minP: null };
const WHOLE = 128; // tokens at most, if the model does not end

export class Writer {
  /** @type {AbortController | null} */ #running = null;
  #count = el("input", { type: "text", inputmode: "numeric", id: "write-count", size: 4, value: "20" });
  #button = el("button", { disabled: api.offline, onclick: () => (this.#running ? this.stop() : void this.start()) }, t("write.generate"));
  #whole = el("button", { hidden: true, title: t("write.out.hint"),
    onclick: () => this.#running === null && void this.start(GREEDY, WHOLE) }, t("write.out"));
  #output = el("p", { class: "written" });
  element = el("div", {}, el("div", { class: "acts" }, this.#button, this.#count, el("label", { for: "write-count" }, t("write.tokens")), this.#whole), this.#output);

  /** @param {() => SamplingParams} params @param {(words: string) => void} say */
  constructor(params, say) {
    this.params = params;
    this.say = say;
  }

  /** A model with a task has a way of its own to go on. */
  render() {
    this.#whole.hidden = api.offline || knownExamples().kind !== "task";
  }

  /** Remove what was written after another text. */
  clear() {
    put(this.#output);
    this.say("");
  }

  stop() {
    this.#running?.abort();
  }

  /** @param {SamplingParams} [params] @param {number} [wanted] tokens */
  async start(params = this.params(), wanted = Number(this.#count.value)) {
    if (store.status !== "ready" || store.typing) return; // the numbers are of the text before
    if (!Number.isInteger(wanted) || wanted < 1) return this.say(t("write.number", { n: this.#count.value }));
    const at = store.cursor.token;
    const ids = current().trace.tokens.slice(0, at + 1).map((token) => token.id);
    const room = Math.min(store.info?.limits.tokens ?? 1024, store.config?.n_positions ?? 1024) - ids.length;
    if (room < 1) return this.say(t("write.full", { n: ids.length }));
    const { temperature, topK, topP, minP } = params;
    const { seed, model, checkpoint } = store.get();
    const edits = resolveSources();
    if (!edits) return; // the second text is on its way
    const body = { ...(edits.length > 0 ? { edits } : {}), ids, model, checkpoint, temperature, top_k: topK, top_p: topP, min_p: minP, seed, max_new_tokens: Math.min(wanted, room) };
    const running = (this.#running = new AbortController());
    const { textKey } = store;
    const isCurrent = () => store.textKey === textKey;
    const unsubscribe = store.subscribe(() => isCurrent() || running.abort());
    put(this.#button, t("write.stop"));
    put(this.#output);
    /** @type {number[]} */
    const added = [];
    let problem = "";
    try {
      for await (const event of api.events("/generate", body, running.signal)) {
        if (event.error) problem = event.error.message;
        if (event.done || event.error) break;
        added.push(event.token);
        const { fill, ink } = shade("probability", event.p);
        this.#output.append(el("span", { title: percent(event.p), style: { background: fill, color: ink } }, breakable(event.text)));
      }
    } catch (error) {
      if (!isAbort(error)) problem = messageOf(error);
    }
    unsubscribe();
    this.#running = null;
    put(this.#button, t("write.generate"));
    if (!isCurrent()) return this.clear(); // another text was opened meanwhile: that is not continued
    const how = running.signal.aborted ? "write.stopped" : wanted > room && added.length === room ? "write.context" : "write.done";
    if (this.element.isConnected) appendTokens(added, at);
    this.say(problem || t(how, { n: added.length, context: room + ids.length }));
  }
}
