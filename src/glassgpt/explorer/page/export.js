// Exports: each view as SVG or PNG, and the page with its trace as one HTML file that needs no server.

import { api, messageOf } from "./state/api.js";
import { el, put } from "./draw/draw.js";
import { store } from "./state/store.js";
import { t } from "./languages/language.js";

const PNG_SCALE = 2; // sharp on paper and on fine screens

/** Download a file. @param {Blob} blob @param {string} name */
function save(blob, name) {
  const link = el("a", { download: name, href: URL.createObjectURL(blob) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** @param {string} source of an SVG @returns {Promise<Blob>} the same as PNG */
export async function toPNG(source) {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
    const canvas = el("canvas", { width: Math.round(image.naturalWidth * PNG_SCALE), height: Math.round(image.naturalHeight * PNG_SCALE) });
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(image, 0, 0, canvas.width, canvas.height);
    const made = await new Promise((/** @type {BlobCallback} */ done) => canvas.toBlob(done));
    if (!made) throw new Error(t("export.large"));
    return made;
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** The page with everything it needs for the current text. @returns {Promise<Blob>} */
export async function wholePage() {
  const { text, ids, model, checkpoint } = store.get();
  const body = { ...(ids ? { ids } : { text }), model, checkpoint, hash: store.address(), requests: api.cachedRequests() };
  return new Blob([await api.text("/export", body)], { type: "text/html" });
}

/**
 * Open the export dialog.
 * @param {View[]} views those in the page
 */
export function openExport(views) {
  const message = el("p", { role: "status", class: "small" });
  const run = async (/** @type {() => Promise<void>} */ work) => {
    put(message, t("export.working"));
    try {
      await work();
      put(message, t("export.saved"));
    } catch (error) {
      put(message, messageOf(error));
    }
  };
  const rows = views.map((view) => {
    const name = view.localName.replace("glass-", "");
    const title = t(`view.${name}`);
    const button = (/** @type {string} */ kind, /** @type {() => Promise<Blob>} */ make) =>
      el("button", { "aria-label": t("export.as", { view: title, kind }), onclick: () =>
        void run(async () => save(await make(), `glassgpt-${name}.${kind.toLowerCase()}`)) }, kind);
    return el("li", {}, el("span", {}, title), button("SVG", async () => new Blob([view.toSVG()], { type: "image/svg+xml" })),
      button("PNG", () => toPNG(view.toSVG())));
  });
  const page = el("button", { class: "primary", disabled: api.offline, onclick: () =>
    void run(async () => save(await wholePage(), "glassgpt-page.html")) }, t("export.page"));
  const dialog = el("dialog", { class: "export", "aria-labelledby": "export-title" },
    el("h2", { id: "export-title" }, t("export.title")),
    el("p", { class: "small quiet" }, t("export.says")),
    el("ul", {}, rows),
    page,
    el("p", { class: "small quiet" }, t(api.offline ? "export.already" : "export.file")),
    message,
    el("form", { method: "dialog" }, el("button", { type: "submit" }, t("close"))),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
