// The service worker of a site (`glassgpt site`): once loaded, the page opens without a network.
//
// Every file is stored under its SHA-256, and a worker serves the files of one version only: those of the files.json that
// it read when it was installed. A newer version is a new worker, which downloads what has changed, checks it, and waits
// until all tabs of the old one are closed. So no tab ever gets files of two versions. Models are kept when they are opened.

/** @typedef {{path: string, bytes: number, sha256: string}} SiteFile */
/** @typedef {{version: string, files: SiteFile[]}} SiteList */

const worker = /** @type {any} */ (self); // the types of a window are in scope here
const VERSION = new URL(worker.location.href).searchParams.get("version") ?? "";
const CACHE = "glassgpt-site";
const LARGE = 1e6; // bytes
const isModel = (/** @type {string} */ path) => path.startsWith("models/");

/** Where something is stored: not an address of the site. @param {string} name */
const place = (name) => new Request(`${worker.registration.scope}.stored/${name}`);

/** @type {Promise<Map<string, SiteFile>> | null} the files of this version, by path */
let listed = null;

function files() {
  listed ??= read();
  listed.catch(() => (listed = null));
  return listed;
}

async function read() {
  const cache = await caches.open(CACHE);
  const stored = await cache.match(place(`list-${VERSION}`));
  if (!stored) throw new Error(`version ${VERSION} is not stored`);
  const list = /** @type {SiteList} */ (await stored.json());
  return new Map(list.files.map((file) => [file.path, file]));
}

/** @param {ArrayBuffer} content */
async function digest(content) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A model as it comes: its digest would need all of it in memory. It is of this version if the site still has it. @param {Cache} cache @param {SiteFile} file @param {Response} response */
async function keepLarge(cache, file, response) {
  await cache.put(place(file.sha256), response);
  const stored = await cache.match(place(file.sha256));
  const list = /** @type {SiteList} */ (await (await fetch("files.json", { cache: "no-store" })).json());
  if (stored && (await stored.blob()).size === file.bytes && list.files.some(({ sha256 }) => sha256 === file.sha256)) return;
  await cache.delete(place(file.sha256));
  throw new Error(`${file.path} is of another version`);
}

/** Store a file, unless its content is another than the list says: then a newer version is being published. @param {Cache} cache @param {SiteFile} file @param {Response} response */
async function keep(cache, file, response) {
  if (isModel(file.path) && file.bytes > LARGE) return keepLarge(cache, file, response);
  const content = await response.arrayBuffer();
  if ((await digest(content)) !== file.sha256) throw new Error(`${file.path} is of another version`);
  const type = response.headers.get("content-type") ?? "application/octet-stream";
  await cache.put(place(file.sha256), new Response(content, { headers: { "content-type": type, "content-length": String(content.byteLength) } }));
}

async function install() {
  const cache = await caches.open(CACHE);
  const list = /** @type {SiteList} */ (await (await fetch("files.json", { cache: "no-store" })).json());
  if (list.version !== VERSION) throw new Error(`the site has version ${list.version} by now`);
  await Promise.all(list.files.filter(({ path }) => !isModel(path)).map(async (file) => {
    if (await cache.match(place(file.sha256))) return;
    const response = await fetch(file.path, { cache: "reload" });
    if (!response.ok) throw new Error(`${file.path}: ${response.status}`);
    await keep(cache, file, response);
  }));
  await cache.put(place(`list-${VERSION}`), new Response(JSON.stringify(list)));
}

/** The tabs of older versions are closed: what only they needed goes. */
async function activate() {
  const cache = await caches.open(CACHE);
  const needed = new Set([`list-${VERSION}`, ...[...(await files()).values()].map(({ sha256 }) => sha256)]);
  for (const request of await cache.keys()) {
    if (!needed.has(/** @type {string} */ (request.url.split("/").at(-1)))) await cache.delete(request);
  }
}

/** The list of the site as it is now; without a network, that of this version. @param {Request} request */
async function newest(request) {
  try {
    return await fetch(request);
  } catch {
    return (await (await caches.open(CACHE)).match(place(`list-${VERSION}`))) ?? Response.error();
  }
}

/** @param {any} event */
async function respond(event) {
  const { pathname } = new URL(event.request.url);
  const path = decodeURIComponent(pathname.slice(new URL(worker.registration.scope).pathname.length)) || "index.html";
  const list = await files().catch(() => null); // the browser may have removed all that was stored
  const file = list?.get(path);
  if (!file) return fetch(event.request);
  const cache = await caches.open(CACHE);
  const stored = await cache.match(place(file.sha256));
  if (stored) return stored;
  const response = await fetch(event.request);
  if (response.status !== 200) return response;
  const kept = keep(cache, file, response.clone());
  if (isModel(path)) {
    event.waitUntil(kept.catch(() => {})); // the page reads it as it comes, and checks it
    return response;
  }
  return kept.then(() => response, () => Response.error());
}

worker.addEventListener("install", (/** @type {any} */ event) => event.waitUntil(install()));
worker.addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(activate()));
worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const { method, url } = event.request;
  const { origin, pathname } = new URL(url);
  if (method !== "GET" || origin !== worker.location.origin || pathname.endsWith("/sw.js")) return;
  event.respondWith(pathname.endsWith("/files.json") ? newest(event.request) : respond(event));
});
/** Store a model that was loaded when no worker was there yet. @param {string} folder */
async function store(folder) {
  const cache = await caches.open(CACHE);
  for (const file of (await files()).values()) {
    if (!file.path.startsWith(folder) || (await cache.match(place(file.sha256)))) continue;
    await keep(cache, file, await fetch(file.path, { cache: "force-cache" })).catch(() => {});
  }
}

// A page that was loaded before there was a worker asks to be served by this one, if it is of the same version.
worker.addEventListener("message", (/** @type {any} */ event) => {
  if (event.data?.claim === VERSION) event.waitUntil(worker.clients.claim());
  if (event.data?.store) event.waitUntil(store(event.data.store));
});
