// A site can be installed, and opens without a network: its service worker (sw.js) stores the files of one version.

import { el } from "../draw/draw.js";

/**
 * Keep the site for later. Without a network, or where a browser allows no service workers, the page is as it is.
 * @param {{version: string, models: {name: string, folder: string}[]}} site
 */
export async function keepSite({ version, models }) {
  document.head.append(el("link", { rel: "manifest", href: "manifest.webmanifest" }));
  const workers = navigator.serviceWorker;
  if (!workers) return;
  document.addEventListener("glass-loading", (event) => {
    const { phase, name } = /** @type {CustomEvent} */ (event).detail;
    const folder = phase === "ready" && models.find((model) => model.name === name)?.folder;
    if (folder) void workers.ready.then(({ active }) => active?.postMessage({ store: `${folder}/` }));
  });
  try {
    const list = await (await fetch("files.json", { cache: "no-store" })).json();
    await workers.register(`sw.js?version=${list.version}`, { updateViaCache: "none" });
    if (workers.controller || list.version !== version) return; // another version opens when all its tabs are closed
    (await workers.ready).active?.postMessage({ claim: version });
  } catch {
    // No network: what is stored is there.
  }
}
