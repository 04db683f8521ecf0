// The page: its views and their tabs, the theme and the keyboard.

import { api } from "./state/api.js";
import { color, el, resetColors, put } from "./draw/draw.js";
import { bind, showKeys } from "./keys.js";
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
import { LANGUAGES, TAGS, language, large, readersLanguage, speak, t } from "./languages/language.js";
import { site } from "./state/site.js";
import { ownModelButton, takeDropped } from "./shell/own-models.js";

/**
 * The views of the panel, in the order of their tabs: <glass-NAME>, defined by views/NAME.js, in words `view.NAME`. Those
 * that are opened less often are loaded then.
 * @type {ViewEntry[]}
 */
export const VIEWS = [
  { name: "block", key: "b" },
  { name: "heads", key: "h" },
  { name: "next", key: "n" },
  { name: "why", key: "y", load: () => import("./views/why.js") },
  { name: "cache", key: "c", load: () => import("./views/cache.js") },
  { name: "tally", key: "t", load: () => import("./views/tally.js") },
  { name: "compare", key: "m", load: () => import("./views/compare.js") },
  { name: "family", key: "f", load: () => import("./views/family.js") },
];

/** The guided tour, which is loaded when it is asked for. */
async function loadTour() {
  try {
    return await import("./tour/tour.js");
  } catch {
    put(at("notice"), t("error.server"));
    at("notice").hidden = false; // until the server is back
    api.lost();
    return null;
  }
}

/** @param {Element | null} from where the focus goes when it is closed */
const openTour = async (from) => (await loadTour())?.openTour(from);
const closeTour = async () => store.get().tour !== null && (await loadTour())?.closeTour();

/** On a phone the tower is one of the views; elsewhere it is always there. @type {ViewEntry} */
const TOWER = { name: "tower", key: "" };

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
  const tab = (/** @type {ViewEntry} */ { name }, small = false) =>
    el("button", { role: "tab", id: `tab-${name}`, class: small ? "only-small" : null, title: t(`view.${name}.hint`), "aria-controls": small ? "tower" : "sheet",
      onclick: (/** @type {MouseEvent} */ event) => openTab(name, event) }, t(`view.${name}`));
  put(at("tabs"), tab(TOWER, true), VIEWS.map((view) => tab(view)));
}

function bindTabs() {
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
  const gone = () => put(sheet, el("p", { class: "problem", role: "alert" }, t("error.server")));
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
  put(at("shape"), t("bar.shape", { layers: n_layer, heads: n_head, width: String(n_embd),
    parameters: large(model.parameters, { digits: model.parameters < 1e8 ? 1 : 0 }) }));
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
    put(status, t("computing"));
    document.body.classList.toggle("old", store.isOld || loading);
  }, PATIENCE_MS);
}

function showStatus() {
  document.body.dataset.is = at("status").dataset.is = store.status;
  showComputing();
  const failed = store.status === "error" && !store.typing; // else it is about the text or the model before
  const notice = at("notice");
  notice.hidden = !failed;
  if (!failed) return put(notice);
  const example = () => void examplesOf(0).then(({ examples }) => {
    openExample(examples[0], { model: 0, checkpoint: null });
    if (store.status === "error") void store.load();
  });
  put(notice, el("span", {}, store.error), " ", store.trace ? el("span", {}, t("notice.before"))
    : el("button", { onclick: example }, t("notice.example")));
}

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

/** @type {(() => void)[]} */
let unbind = [];

function bindKeys() {
  for (const undo of unbind) undo();
  /** @param {[string, string]} keys @param {string} what @param {(step: number) => void} run with -1 for the first of the two, 1 for the other */
  const pair = (keys, what, run) => bind(keys, what, ({ key }) => run(key === keys[0] ? -1 : 1));
  unbind = [
    pair(["ArrowLeft", "ArrowRight"], t("keys.tokens"), (step) => move(step, 0)),
    pair(["ArrowDown", "ArrowUp"], t("keys.blocks"), (step) => move(0, step)),
    pair(["Home", "End"], t("keys.ends"), (step) => move(step * Infinity, 0)),
    pair(["[", "]"], t("keys.heads"), moveHead),
    ...VIEWS.map(({ name, key }) => bind([key], t("keys.show", { view: t(`view.${name}`) }), () => store.set({ view: name }))),
    bind(["e"], t("keys.edit"), () => document.querySelector("textarea")?.focus()),
    bind(["w"], t("keys.wide"), toggleWide),
    bind(["d"], t("keys.theme"), nextTheme),
    bind(["x"], t("keys.tour"), () => void openTour(document.activeElement)),
    bind(["Escape"], t("keys.close"), () => void closeTour()),
    bind(["?"], t("keys.list"), showKeys),
  ];
}

/** The buttons of the bar, in the page's language. */
function buildTools() {
  put(at("tools"));
  const explain = tool(t("bar.explain"), t("bar.explain.hint"), () => void openTour(explain));
  explain.classList.add("primary");
  tool(t("bar.export"), t("bar.export.hint"), () => void import("./export.js").then(({ openExport }) => openExport(shownViews())));
  const theme = tool(t("bar.theme"), "", nextTheme);
  theme.id = "theme";
  const wide = tool(t("bar.wide"), t("bar.wide.hint"), toggleWide);
  [wide.id, wide.className] = ["wide", "only-large"];
  tool(t("bar.keys"), t("bar.keys.hint"), showKeys);
  if (site) at("tools").prepend(ownModelButton(site));
  markTools();
}

/** The buttons say what is set. */
function markTools() {
  const { theme, wide } = store.get();
  at("theme").title = t("bar.theme.hint", { theme: t(`bar.theme.${THEMES.includes(theme) ? theme : "auto"}`) });
  at("wide").setAttribute("aria-pressed", String(wide));
}

/** What stands in index.html, and the bar, in the page's language. */
function showWords() {
  document.title = t("page.title");
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-t]"))) put(element, t(element.dataset.t ?? ""));
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-t-label]"))) element.ariaLabel = t(element.dataset.tLabel ?? "");
  document.body.dataset.drop = t(site ? "site.drop" : "drop.says");
  buildTools();
  buildTabs();
  bindKeys();
  /** @type {HTMLSelectElement} */ (at("language")).value = language();
}

/** Say everything in the language of the address: the views are made anew, and show the state that there is. */
async function changeLanguage() {
  const wanted = readersLanguage(store.get().lang);
  if (wanted === language()) return;
  try {
    await speak(wanted);
  } catch {
    return api.lost(); // the language stays
  }
  showWords();
  const views = document.querySelectorAll("glass-welcome, glass-strip, glass-tower, glass-edits, glass-tour, #sheet > *");
  for (const view of views) {
    const fresh = /** @type {HTMLElement} */ (view.cloneNode(false));
    fresh.classList.remove("stale", "failed", "computing", "lit");
    view.replaceWith(fresh);
  }
  showView();
  showModel();
  showStatus();
  light();
}

async function start() {
  put(at("language"), Object.entries(LANGUAGES).map(([code, name]) => el("option", { value: code, lang: TAGS[code] }, name)));
  at("language").addEventListener("change", () => store.set({ lang: /** @type {HTMLSelectElement} */ (at("language")).value }));
  showWords();
  bindTabs();
  at("skip").addEventListener("click", (event) => {
    event.preventDefault();
    /** @type {HTMLElement | null} */ (document.querySelector("glass-tower [role=grid]"))?.focus();
  });
  at("model").addEventListener("change", pickModel);
  const own = site;
  acceptFiles(document.body, own ? (dropped) => void takeDropped(dropped, own) : undefined);
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
    if (changed.has("wide")) document.body.classList.toggle("wide", store.get().wide);
    if (changed.has("wide") || changed.has("theme")) markTools();
    if (changed.has("lang")) void changeLanguage();
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
  if (site) (await import("./shell/shell.js")).openShell(site, at("loading"));
  store.read();
}

void start();
