// The page: its views and their tabs, the theme and the keyboard.

import { NO_SERVER, api } from "./state/api.js";
import { color, el, resetColors, put } from "./draw/draw.js";
import { bind, bound } from "./keys.js";
import { store } from "./state/store.js";
import { light } from "./state/hover.js";
import { isComputing, PATIENCE_MS } from "./view.js";
import { isEditing } from "./edits/edits.js";
import "./edits/edits-view.js";
import "./views/strip.js";
import "./views/tower.js";
import "./views/block.js";
import "./views/heads.js";
import "./views/next.js";
import { examplesOf, openExample, openModel } from "./text/examples.js";
import { acceptFiles } from "./music/midi-files.js";
import "./views/welcome.js";

/**
 * The views of the panel, in the order of their tabs: <glass-NAME>, defined by views/NAME.js. Those that are opened
 * less often are loaded then.
 * @type {ViewEntry[]}
 */
export const VIEWS = [
  { name: "block", title: "Block", hint: "Self-attention and the MLP, step by step", key: "b" },
  { name: "heads", title: "Heads", hint: "The attention pattern of every head; ablate one and see the effect", key: "h" },
  { name: "next", title: "Next token", hint: "The next-token distribution, and sampling from it", key: "n" },
  { name: "why", title: "Why this word?", hint: "Where the next token comes from: tokens, heads and MLPs; steering", key: "y", load: () =>
    import("./views/why.js") },
  { name: "cache", title: "KV cache", hint: "Generation step by step, with and without the KV cache", key: "c", load: () => import("./views/cache.js") },
  { name: "tally", title: "Weights", hint: "Every matrix, drawn to scale", key: "t", load: () => import("./views/tally.js") },
  { name: "compare", title: "Compare", hint: "Two models, or two checkpoints of a training run, on the same text", key: "m", load: () =>
    import("./views/compare.js") },
  { name: "family", title: "Family tree", hint: "Where this model belongs among the transformers, and the sizes of GPT-2", key: "f", load: () =>
    import("./views/family.js") },
];

/** The guided tour, which is loaded when it is asked for. */
async function loadTour() {
  try {
    return await import("./tour/tour.js");
  } catch {
    put(at("notice"), NO_SERVER);
    at("notice").hidden = false; // until the server is back
    api.lost();
    return null;
  }
}

/** @param {Element | null} from where the focus goes when it is closed */
const openTour = async (from) => (await loadTour())?.openTour(from);
const closeTour = async () => store.get().tour !== null && (await loadTour())?.closeTour();

/** On a phone the tower is one of the views; elsewhere it is always there. @type {ViewEntry} */
const TOWER = { name: "tower", title: "Tower", hint: "The logit lens at every token and block", key: "" };

const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
const dark = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
let printed = false;
const small = matchMedia("(max-width: 900px)");

/** @param {string} id @returns {HTMLElement} */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** A button of the bar. @param {string} label @param {string} title @param {() => void} run */
export function tool(label, title, run) {
  const button = el("button", { title, onclick: run }, label);
  at("tools").append(button);
  return button;
}

function buildTabs() {
  const tab = (/** @type {ViewEntry} */ { name, title, hint }, small = false) =>
    el("button", { role: "tab", id: `tab-${name}`, class: small ? "only-small" : null, title: hint, "aria-controls": small ? "tower" : "sheet",
      onclick: (/** @type {MouseEvent} */ event) => openTab(name, event) }, title);
  const tabs = [tab(TOWER, true), ...VIEWS.map((view) => tab(view))];
  at("tabs").append(...tabs);
  at("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const now = VIEWS.findIndex(({ name }) => name === currentView());
    const next = VIEWS[(now + step + VIEWS.length) % VIEWS.length].name;
    store.set({ view: next });
    at(`tab-${next}`).focus();
  });
}

/** After a click the arrow keys move the cursor again; who came by keyboard stays on the tabs. @param {string} name @param {MouseEvent} event */
function openTab(name, { detail }) {
  store.set({ view: name });
  if (detail > 0) at("sheet").focus({ preventScroll: true });
}

/** The name of the open view. */
function currentView() {
  const { view } = store.get();
  return VIEWS.some(({ name }) => name === view) ? view : VIEWS[0].name;
}

/** The view elements in the page: the two that are always there, and the one of the panel. */
export function shownViews() {
  return /** @type {View[]} */ ([...document.querySelectorAll("glass-strip, glass-tower, #sheet > *")]);
}

function showView() {
  const name = currentView();
  const open = small.matches && store.get().view === TOWER.name ? TOWER.name : name;
  document.body.classList.toggle("shows-tower", open === TOWER.name);
  for (const view of [TOWER, ...VIEWS]) {
    const tab = at(`tab-${view.name}`);
    tab.setAttribute("aria-selected", String(view.name === open));
    tab.tabIndex = view.name === open ? 0 : -1;
  }
  const sheet = at("sheet");
  sheet.setAttribute("aria-labelledby", `tab-${name}`);
  if (sheet.firstElementChild?.localName === `glass-${name}`) return;
  sheet.replaceChildren(document.createElement(`glass-${name}`));
  const gone = () => put(sheet, el("p", { class: "problem", role: "alert" }, NO_SERVER));
  VIEWS.find((view) => view.name === name)?.load?.().catch(() => {
    gone();
    api.lost();
  });
  sheet.scrollTop = 0;
}

function showTheme() {
  const { theme } = store.get();
  const shown = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  document.documentElement.dataset.theme = printed || printing.matches ? "light" : shown; // paper is light
  resetColors();
  document.dispatchEvent(new CustomEvent("glass-theme", { detail: color("ground") }));
}

function nextTheme() {
  const { theme } = store.get();
  store.set({ theme: THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] });
}

/** Widen the panel, or narrow it again. */
function toggleWide() {
  store.set({ wide: !store.get().wide });
}

function showModel() {
  const models = store.info?.models ?? [];
  const number = models[store.get().model] ? store.get().model : 0;
  if (!models[number]) return;
  const picker = /** @type {HTMLSelectElement} */ (at("model"));
  const names = models.map(({ name }, i) => el("option", { value: i }, name));
  if (picker.options.length !== names.length) put(picker, names);
  picker.value = String(number);
  picker.disabled = models.length < 2 || api.offline;
  showShape(models[number]);
}

/** @param {ModelInfo["models"][number]} model */
function showShape(model) {
  const { n_layer, n_head, n_embd } = model.config;
  const millions = (model.parameters / 1e6).toFixed(model.parameters < 1e8 ? 1 : 0);
  put(at("shape"), `${n_layer} blocks × ${n_head} heads, width ${n_embd}, ${millions} M parameters`);
}

/** Another model reads the same text, if it can; its tokens may be others. */
function pickModel() {
  const number = Number(/** @type {HTMLSelectElement} */ (at("model")).value);
  const model = store.info?.models[number];
  if (model) showShape(model); // at once, like its name
  void openModel(number);
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let late;

/** Gray what is not of the text or the model written above: at once; what is still of it, when it takes long. */
function showComputing() {
  const [status, loading] = [at("status"), store.status === "loading"];
  clearTimeout(late);
  document.body.classList.toggle("old", store.isOld);
  if (!loading && !store.typing && !isComputing() && !isEditing()) {
    if (status.firstChild) put(status);
    return;
  }
  late = setTimeout(() => {
    put(status, "computing…");
    document.body.classList.toggle("old", store.isOld || loading);
  }, PATIENCE_MS);
}

function showStatus() {
  document.body.dataset.is = at("status").dataset.is = store.status;
  showComputing();
  const failed = store.status === "error";
  const notice = at("notice");
  notice.hidden = !failed;
  if (!failed) return put(notice);
  const example = () => void examplesOf(0).then(({ examples }) => {
    openExample(examples[0], { model: 0, checkpoint: null });
    if (store.status === "error") void store.load();
  });
  put(notice, el("span", {}, store.error), " ", store.trace ? el("span", {}, "What is shown below belongs to the text before.")
    : el("button", { onclick: example }, "Show the example"));
}

function showKeys() {
  const rows = bound().flatMap(({ keys, what }) => [el("dt", {}, keys.map((key) => el("kbd", {}, NAMES[key] ?? key))), el("dd", {}, what)]);
  put(at("keys-list"), rows);
  /** @type {HTMLDialogElement} */ (at("keys")).showModal();
}

/** @type {Record<string, string>} how some keys are written */
const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

/** Move the cursor. @param {number} tokens @param {number} layers */
function move(tokens, layers) {
  const { token, layer } = store.cursor;
  const last = (store.trace?.tokens.length ?? 1) - 1;
  const top = (store.config?.n_layer ?? 1) - 1;
  store.set({ token: Math.max(0, Math.min(last, token + tokens)), layer: Math.max(-1, Math.min(top, layer + layers)) });
}

/** @param {number} step */
function moveHead(step) {
  const heads = store.config?.n_head ?? 1;
  store.set({ head: (store.cursor.head + step + heads) % heads });
}

function bindKeys() {
  /** @param {[string, string]} keys @param {string} what @param {(step: number) => void} run with -1 for the first of the two, 1 for the other */
  const pair = (keys, what, run) => bind(keys, what, ({ key }) => run(key === keys[0] ? -1 : 1));
  pair(["ArrowLeft", "ArrowRight"], "previous or next token", (step) => move(step, 0));
  pair(["ArrowDown", "ArrowUp"], "one block down or up", (step) => move(0, step));
  pair(["Home", "End"], "first or last token", (step) => move(step * Infinity, 0));
  pair(["[", "]"], "previous or next head", moveHead);
  for (const { name, title, key } of VIEWS) bind([key], `show ${title}`, () => store.set({ view: name }));
  bind(["e"], "edit the text", () => document.querySelector("textarea")?.focus());
  bind(["w"], "widen or narrow the panel", toggleWide);
  bind(["d"], "theme: auto, light or dark", nextTheme);
  bind(["x"], "guided tour", () => void openTour(document.activeElement));
  bind(["Escape"], "close the tour", () => void closeTour());
  bind(["?"], "this list of keys", showKeys);
}

function start() {
  buildTabs();
  const explain = tool("Explain", "A guided tour (x)", () => void openTour(explain));
  explain.classList.add("primary");
  tool("Export", "Views as SVG or PNG, or the whole page as one file", () => void import("./export.js").then(({ openExport }) =>
    openExport(shownViews(), VIEWS)));
  const theme = tool("Theme", "", nextTheme);
  const wide = tool("Wide", "Widen the panel (w)", toggleWide);
  wide.className = "only-large";
  tool("Keys", "Keyboard shortcuts (?)", showKeys);
  bindKeys();
  at("skip").addEventListener("click", (event) => {
    event.preventDefault();
    /** @type {HTMLElement | null} */ (document.querySelector("glass-tower [role=grid]"))?.focus();
  });
  at("model").addEventListener("change", pickModel);
  acceptFiles(document.body);
  for (const query of [dark, printing]) query.addEventListener("change", showTheme);
  for (const name of ["beforeprint", "afterprint"]) {
    addEventListener(name, () => {
      printed = name === "beforeprint";
      showTheme();
    });
  }
  small.addEventListener("change", showView);
  addEventListener("popstate", () => store.read());
  document.addEventListener("glass-computing", showComputing);
  store.subscribe((changed) => {
    if (changed.has("view")) showView();
    if (changed.has("theme")) showTheme();
    if (changed.has("wide")) {
      document.body.classList.toggle("wide", store.get().wide);
      wide.setAttribute("aria-pressed", String(store.get().wide));
    }
    if (changed.has("theme")) theme.title = `Theme: ${store.get().theme} (d)`;
    if (changed.has("info") || changed.has("model")) showModel();
    if (changed.has("status")) showStatus();
    else if (changed.has("edits") || changed.has("intervention")) showComputing();
    if (changed.has("tour") && store.get().tour !== null) void loadTour();
    else if (changed.has("trace")) setTimeout(() => void import("./tour/tour.js").catch(() => {})); // it is there if the server stops
    if (changed.has("trace")) {
      document.body.classList.add("traced");
      showView(); // its file may have failed to come
      light();
    }
  });
  store.read();
}

start();
