// A site (`glassgpt site`) has no server: a worker (engine/worker.js) has the models and answers the page's requests.

import { t } from "../languages/language.js";
import { translated } from "../languages/server.js";

/** @typedef {{name: string, folder: string, bytes: number}} SiteModel */
/** @typedef {{status: number, body: any}} Answer */

/** What `glassgpt site` wrote into the page; null where there is a server. */
const written = document.getElementById("glass-site");
const facts = written ? JSON.parse(written.textContent ?? "{}") : null;

class Site {
  #worker = new Worker(new URL("../engine/worker.js", import.meta.url), { type: "module", name: "engine" });
  #last = 0;
  /** @type {Map<number, (message: any) => void>} who waits for which answer */
  #waiting = new Map();
  /** @type {string} */ version = facts.version;
  /** @type {SiteModel[]} */ models = facts.models;
  /** Asked before a model is downloaded. @type {(model: {name: string, bytes: number}) => Promise<boolean>} */
  confirm = async () => true;

  constructor() {
    this.#worker.onmessage = ({ data }) => void this.#receive(data);
    this.#worker.onerror = () => this.#fail();
    this.#worker.postMessage({ type: "start", site: facts, base: document.baseURI });
    if (facts.text && !location.hash) history.replaceState(history.state, "", `#text=${encodeURIComponent(facts.text)}`);
  }

  /** @param {any} data */
  async #receive(data) {
    if (data.type === "loading") document.dispatchEvent(new CustomEvent("glass-loading", { detail: data }));
    else if (data.type === "confirm") this.#worker.postMessage({ type: "confirmed", number: data.number, yes: await this.confirm(data.model) });
    else this.#waiting.get(data.number)?.(data);
  }

  /** The worker itself broke: nobody is left waiting. */
  #fail() {
    const body = { error: { message: t("error.engine"), field: null } };
    for (const [number, tell] of this.#waiting) tell({ type: "answer", number, status: 500, body, done: true, failed: { body } });
  }

  /** @param {any} message @param {AbortSignal | null | undefined} [signal] @returns {Promise<Answer>} */
  #ask(message, signal) {
    const number = ++this.#last;
    return new Promise((resolve, reject) => {
      const end = () => this.#waiting.delete(number);
      const abort = () => {
        end();
        this.#worker.postMessage({ type: "abort", number });
        reject(new DOMException("nobody waits for it any more", "AbortError"));
      };
      if (signal?.aborted) return reject(new DOMException("nobody waits for it any more", "AbortError"));
      signal?.addEventListener("abort", abort, { once: true });
      this.#waiting.set(number, (answer) => {
        end();
        signal?.removeEventListener("abort", abort);
        resolve(answer);
      });
      this.#worker.postMessage({ ...message, number });
    });
  }

  /** What `fetch` would give for a request under /api/v1. @param {string} path @param {RequestInit} init @returns {Promise<Pick<Response, "ok" | "status" | "json" | "text" | "body">>} */
  async respond(path, { body, signal }) {
    if (path === "/generate") return this.#generate(JSON.parse(String(body)), signal);
    const key = typeof body === "string" ? `${path} ${body}` : path;
    const { status, body: found } = await this.#ask({ type: "ask", key }, signal);
    return { ok: status === 200, status, json: async () => found, text: async () => JSON.stringify(found), body: null };
  }

  /** Tokens as server-sent events, like those of a server. @param {any} body @param {AbortSignal | null | undefined} signal */
  #generate(body, signal) {
    const number = ++this.#last;
    const encoder = new TextEncoder();
    const stop = () => {
      this.#waiting.delete(number);
      this.#worker.postMessage({ type: "abort", number });
    };
    const stream = /** @type {ReadableStream<any>} */ (new ReadableStream({
      start: (controller) => {
        const send = (/** @type {unknown} */ event) => controller.enqueue(encoder.encode(`data: ${JSON.stringify(event)}\n\n`));
        signal?.addEventListener("abort", () => {
          stop();
          controller.error(new DOMException("stopped", "AbortError"));
        }, { once: true });
        this.#waiting.set(number, ({ value, done, failed }) => {
          if (value !== undefined) send(value);
          if (failed) send({ error: { ...failed.body.error, message: translated(failed.body.error.message) } });
          if (!done) return;
          this.#waiting.delete(number);
          controller.close();
        });
        this.#worker.postMessage({ type: "generate", number, body });
      },
      cancel: stop,
    }));
    return { ok: true, status: 200, json: async () => null, text: async () => "", body: stream };
  }

  /** Open the files of a model of one's own; a mistake in them is an Error of one line. @param {File[]} files @returns {Promise<{number: number, name: string}>} */
  async open(files) {
    const { status, body } = await this.#ask({ type: "open", files });
    if (status !== 200) throw new Error(body.error.message);
    document.dispatchEvent(new CustomEvent("glass-models"));
    return body;
  }
}

/** The site that this page is; null where there is a server. */
export const site = facts ? new Site() : null;
