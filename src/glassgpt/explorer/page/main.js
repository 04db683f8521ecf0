// The page: the views there are, the tabs that choose among them, the theme and the keys.

import { colour, el, forgetColours, put } from "./draw.js";
import { openExport } from "./export.js";
import { bind, bound } from "./keys.js";
import { store } from "./store.js";
import "./edits-view.js";
import "./views/strip.js";
import "./views/tower.js";
import "./views/block.js";
import "./views/heads.js";
import "./views/next.js";
import "./views/cache.js";
import "./views/tally.js";
import "./views/compare.js";
import { closeTour, openTour } from "./views/tour.js";

/**
 * The views of the panel, in the order of their tabs: <glass-NAME>, defined by views/NAME.js (imported above).
 * @type {ViewEntry[]}
 */
export const VIEWS = [
  { name: "block", title: "Block", hint: "Self-attention and the MLP, step by step", key: "b" },
  { name: "heads", title: "Heads", hint: "Every head's pattern; take one out and see what changes", key: "h" },
  { name: "next", title: "Next words", hint: "What may follow, and how one is chosen", key: "n" },
  { name: "cache", title: "Cache", hint: "Writing step by step: what is computed, what is remembered", key: "c" },
  { name: "tally", title: "Tally", hint: "Every matrix, drawn to scale", key: "t" },
  { name: "compare", title: "Compare", hint: "Two models, or two moments of one training run, on the same text", key: "m" },
];

const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @param {string} id @returns {HTMLElement} */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** A button of the bar. @param {string} label @param {string} title @param {() => void} run */
export function tool(label, title, run) {
  const button = el("button", { type: "button", title, onclick: run }, label);
  at("tools").append(button);
  return button;
}

function buildTabs() {
  const tabs = VIEWS.map(({ name, title, hint }) =>
    el("button", { type: "button", role: "tab", id: `tab-${name}`, title: hint, "aria-controls": "sheet", onclick: () => store.set({ view: name }) }, title),
  );
  at("tabs").append(...tabs);
  at("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const now = VIEWS.findIndex(({ name }) => name === present());
    const next = VIEWS[(now + step + VIEWS.length) % VIEWS.length].name;
    store.set({ view: next });
    at(`tab-${next}`).focus();
  });
}

/** The name of the view that is shown. */
function present() {
  const { view } = store.get();
  return VIEWS.some(({ name }) => name === view) ? view : VIEWS[0].name;
}

/** The view elements in the page: the two that are always there, and the one of the panel. */
export function shownViews() {
  return /** @type {View[]} */ ([...document.querySelectorAll("glass-strip, glass-tower, #sheet > *")]);
}

function showView() {
  const name = present();
  for (const view of VIEWS) {
    const tab = at(`tab-${view.name}`);
    tab.setAttribute("aria-selected", String(view.name === name));
    tab.tabIndex = view.name === name ? 0 : -1;
  }
  const sheet = at("sheet");
  sheet.setAttribute("aria-labelledby", `tab-${name}`);
  if (sheet.firstElementChild?.localName === `glass-${name}`) return;
  sheet.replaceChildren(document.createElement(`glass-${name}`));
  sheet.scrollTop = 0;
}

function showTheme() {
  const { theme } = store.get();
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  forgetColours();
  document.dispatchEvent(new CustomEvent("glass-theme", { detail: colour("ground") }));
}

function nextTheme() {
  const { theme } = store.get();
  store.set({ theme: THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] });
}

/** The panel gets twice the room, or its usual half again. */
function turnWide() {
  store.set({ wide: !store.get().wide });
}

function showModel() {
  const model = store.info?.models[store.get().model] ?? store.info?.models[0];
  if (!model) return;
  const { n_layer, n_head, n_embd } = model.config;
  const millions = (model.parameters / 1e6).toFixed(model.parameters < 1e8 ? 1 : 0);
  put(at("model"), el("b", {}, model.name), ` ${n_layer} blocks × ${n_head} heads, width ${n_embd}, ${millions} M parameters`);
}

function showStatus() {
  const status = at("status");
  document.body.dataset.is = status.dataset.is = store.status;
  put(status, store.status === "error" ? store.error : store.status === "loading" ? "computing…" : "");
}

function showKeys() {
  const rows = bound().flatMap(({ keys, what }) => [el("dt", {}, keys.map((key) => el("kbd", {}, NAMES[key] ?? key))), el("dd", {}, what)]);
  put(at("keys-list"), rows);
  /** @type {HTMLDialogElement} */ (at("keys")).showModal();
}

/** @type {Record<string, string>} how some keys are written */
const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

/** Move the cursor and let the tower keep it in sight. @param {number} tokens @param {number} layers */
function move(tokens, layers) {
  const { token, layer } = store.cursor;
  const last = (store.trace?.tokens.length ?? 1) - 1;
  const top = (store.config?.n_layer ?? 1) - 1;
  store.set({ token: Math.max(0, Math.min(last, token + tokens)), layer: Math.max(-1, Math.min(top, layer + layers)) });
}

/** @param {number} step */
function turnHead(step) {
  const heads = store.config?.n_head ?? 1;
  store.set({ head: (store.cursor.head + step + heads) % heads });
}

function bindKeys() {
  /** @param {[string, string]} keys @param {string} what @param {(step: number) => void} run with -1 for the first of the two, 1 for the other */
  const pair = (keys, what, run) => bind(keys, what, ({ key }) => run(key === keys[0] ? -1 : 1));
  pair(["ArrowLeft", "ArrowRight"], "the token before, the next one", (step) => move(step, 0));
  pair(["ArrowDown", "ArrowUp"], "one block down, one up", (step) => move(0, step));
  pair(["Home", "End"], "the first token, the last", (step) => move(step * Infinity, 0));
  pair(["[", "]"], "the head before, the next one", turnHead);
  for (const { name, title, key } of VIEWS) bind([key], `show ${title}`, () => store.set({ view: name }));
  bind(["e"], "edit the text", () => document.querySelector("textarea")?.focus());
  bind(["w"], "widen the panel, or narrow it again", turnWide);
  bind(["d"], "light, dark, or as the system has it", nextTheme);
  bind(["x"], "the guided tour", () => openTour(document.activeElement));
  bind(["Escape"], "close the tour", closeTour);
  bind(["?"], "this list", showKeys);
}

function start() {
  buildTabs();
  const explain = tool("Explain", "A guided tour (x)", () => openTour(explain));
  explain.classList.add("primary");
  tool("Export", "Pictures of the views, or the whole page as one file", () => openExport(shownViews(), VIEWS));
  const theme = tool("Theme", "", nextTheme);
  const wide = tool("Wide", "Give the panel more room (w)", turnWide);
  wide.className = "only-large";
  tool("Keys", "What the keys do (?)", showKeys);
  bindKeys();
  at("skip").addEventListener("click", (event) => {
    event.preventDefault();
    /** @type {HTMLElement | null} */ (document.querySelector("glass-tower [role=grid]"))?.focus();
  });
  dark.addEventListener("change", showTheme);
  addEventListener("popstate", () => store.read());
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
    if (changed.has("trace")) document.body.classList.add("traced");
  });
  store.read();
}

start();
