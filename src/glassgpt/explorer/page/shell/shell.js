// The page as a site, without a server: its models are downloaded, or one's own are opened; it can be kept for later.

import { openModel } from "../text/examples.js";
import { keepSite } from "./offline-site.js";
import { ask, isSmallDevice, showLoading, smallest } from "./loading.js";
import { store } from "../state/store.js";

/** @typedef {import("./loading.js").SiteModel} SiteModel */
/** @typedef {{version: string, models: (SiteModel & {folder: string})[], confirm: (model: SiteModel) => Promise<boolean>}} Site */

/** Before the address is read: what a site shows besides the page. @param {Site} site @param {HTMLElement} bar */
export function openShell(site, bar) {
  const small = smallest(site.models);
  const asked = new URLSearchParams(location.hash.slice(1));
  if (small && !asked.has("model") && isSmallDevice()) {
    asked.set("model", small.name);
    history.replaceState(null, "", `#${asked}`);
  }
  site.confirm = async (model) => {
    const yes = await ask(model, site.models);
    if (!yes && small) void openModel(site.models.findIndex(({ name }) => name === small.name));
    return yes;
  };
  showLoading(bar, () => store.trace === null);
  void keepSite(site);
}
