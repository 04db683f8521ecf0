// How far a model has come: bytes, time left, memory. And on a small device, whether a large one is to be opened at all.

import { el, put } from "../draw/draw.js";
import { t } from "../languages/language.js";

/** @typedef {{name: string, bytes: number}} SiteModel */
/** @typedef {{name: string, phase: "download" | "open" | "ready" | "failed", loaded: number, total: number, message?: string}} Loading */

/** Bytes in memory for each of the file: weights, caches, activations; measured by benchmarks/explorer_site.py. */
const MEMORY = 3;
/** A device with at most this much memory, in GB (browsers tell no more than 8), or a phone that does not tell. */
const SMALL_GB = 3;
/** What a small device opens without a question. */
const SMALL_MODEL = 20_000_000;

/** @param {number} bytes */
const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 10e6 ? 1 : 0);

/** Whether this device has little memory. */
export function isSmallDevice() {
  const { deviceMemory } = /** @type {{deviceMemory?: number}} */ (navigator);
  return deviceMemory === undefined ? matchMedia("(hover: none) and (max-width: 600px)").matches : deviceMemory <= SMALL_GB;
}

/** The smallest model, if it is small enough to be opened without a question. @param {SiteModel[]} models */
export const smallest = (models) => [...models].sort((a, b) => a.bytes - b.bytes).find(({ bytes }) => bytes <= SMALL_MODEL);

/** Ask before a large model is opened on a small device. @param {SiteModel} model @param {SiteModel[]} models @returns {Promise<boolean>} */
export function ask(model, models) {
  const small = smallest(models);
  if (model.bytes <= SMALL_MODEL || !isSmallDevice() || !small) return Promise.resolve(true);
  const { name } = model;
  const dialog = el("dialog", { class: "ask", "aria-labelledby": "ask-title" },
    el("h2", { id: "ask-title" }, t("site.ask", { name })),
    el("p", {}, t("site.ask.says", { name, bytes: megabytes(model.bytes), memory: megabytes(MEMORY * model.bytes), small: small.name,
      few: megabytes(small.bytes) })),
    el("form", { method: "dialog" }, el("button", { type: "submit", value: "no", class: "primary" }, t("site.ask.no", { name: small.name })),
      el("button", { type: "submit", value: "yes" }, t("site.ask.yes", { name }))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "yes");
  }));
}

/** Show how far models have come, in the page's bar. @param {HTMLElement} bar @param {() => boolean} isReadable whether there is nothing else to see yet */
export function showLoading(bar, isReadable) {
  const [words, progress] = [el("span"), el("progress", { max: 1 })];
  const box = el("p", { class: "loading", role: "status", hidden: true }, words, progress);
  bar.append(box);
  let [begun, name] = [0, ""];
  document.addEventListener("glass-loading", (event) => {
    const now = /** @type {CustomEvent<Loading>} */ (event).detail;
    box.hidden = now.phase === "ready";
    progress.hidden = now.phase !== "download";
    if (now.phase !== "download") {
      name = "";
      return put(words, now.phase === "ready" ? null : now.phase === "open" ? t("site.opening", { name: now.name })
        : t("site.failed", { name: now.name, why: now.message ?? "" }));
    }
    if (name !== now.name) [begun, name] = [performance.now(), now.name];
    progress.value = now.total > 0 ? now.loaded / now.total : 0;
    progress.ariaLabel = t("site.progress");
    put(words, textOf(now, (performance.now() - begun) / 1000), isReadable() ? [" ", t("site.meanwhile")] : null);
  });
}

/** @param {Loading} now @param {number} seconds since it began */
function textOf({ name, loaded, total }, seconds) {
  const progress = t("site.download", { name, loaded: megabytes(loaded), total: megabytes(total) });
  if (seconds < 1 || loaded === 0) return progress; // too early to tell
  const left = Math.ceil((seconds * (total - loaded)) / loaded);
  return t("site.left", { progress, time: left < 100 ? t("site.seconds", { n: left }) : t("site.minutes", { n: Math.ceil(left / 60) }) });
}
