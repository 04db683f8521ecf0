// Under the tower: the five most likely tokens of the cursor's cell, the final prediction, and a pinned token's way up.

import { api } from "../state/api.js";
import { color, el, exchange, percent, put, short, svg, visible } from "../draw/draw.js";
import { label } from "../panel.js";
import { store } from "../state/store.js";
import { number, t } from "../languages/language.js";

/** A token of the list: its bar, and a button that pins it. @param {number} id @param {string} text @param {number} p */
function row(id, text, p) {
  const pinned = store.get().pin === id;
  return el("li", {},
    el("button", { class: "pin", "aria-pressed": String(pinned), title: t("lens.pin"), onclick: () =>
      store.set({ pin: pinned ? null : id }) },
      el("span", { class: "word" }, short(text, 12)), el("span", { class: "gauge" }, el("span", { style: { width: `${100 * p}%` } })),
      el("span", { class: "share" }, percent(p))));
}

export class LensCard {
  #here = el("div", { class: "cell-top" });
  #final = el("div", { class: "cell-top" });
  #rank = el("figure");
  element = el("div", { class: "lens-card" }, this.#here, this.#final, this.#rank);
  /** @type {LensColumn | null} */ #found = null;
  #asked = "";
  #shown = "";

  /** Show the column of the cursor. @param {(response: Promise<any>, use: (found: any) => void) => Promise<void>} load of the view */
  render(load) {
    const { trace } = store;
    if (!trace) return;
    const { token } = store.cursor;
    const { pin } = store.get();
    const plain = `/trace/${trace.id}/lens?position=${token}`;
    const path = pin === null || api.offline ? plain : `${plain}&token=${pin}`; // an exported page has the ranks of all that is listed
    if (path === this.#asked && this.#found) return this.#show(this.#found);
    void load(api.get(path, { slot: "lens" }), (/** @type {LensColumn} */ found) => {
      [this.#found, this.#asked] = [found, path];
      this.#show(found);
    });
  }

  /** @param {LensColumn} found */
  #show(found) {
    const { layer } = store.cursor;
    const { edits, pin, model } = store.get();
    const what = JSON.stringify([this.#asked, layer, pin, edits.length > 0, color("ink"), api.peek(`/vocabulary?model=${model}`) !== undefined]);
    if (what === this.#shown) return;
    this.#shown = what;
    const last = found.ids.length - 1;
    const list = (/** @type {number} */ at) => el("ol", {}, found.ids[at].map((id, i) => row(id, found.texts[at][i], found.p[at][i])));
    const where = (/** @type {string} */ name) => (edits.length > 0 ? t("lens.unedited", { where: name }) : name);
    exchange(this.#here, el("h3", {}, where(layer < 0 ? t("lens.embedding") : t("lens.after", { layer }))), list(layer + 1));
    exchange(this.#final, el("h3", {}, where(t("lens.final"))), list(last));
    const ranks = pin === null ? undefined : found.ranks[pin];
    const text = pin === null ? "" : found.texts.flat()[found.ids.flat().indexOf(pin)] ?? api.peek(`/vocabulary?model=${model}`)?.texts[pin] ?? t("lens.token", { id: String(pin) });
    put(this.#rank, ranks ? rankLine(ranks, text)
      : el("p", { class: "small quiet" }, t(pin === null ? "lens.none" : "lens.missing")));
  }
}

/** The rank of a token after each layer, rank 1 on top, with a log axis. @param {number[]} ranks @param {string} text */
function rankLine(ranks, text) {
  const [width, height, left, top, bottom] = [210, 118, 34, 22, 16];
  const most = Math.max(10, ...ranks);
  const x = (/** @type {number} */ i) => left + ((width - left - 8) * i) / (ranks.length - 1);
  const y = (/** @type {number} */ rank) => top + ((height - top - bottom) * Math.log(rank)) / Math.log(most);
  const ticks = [1, 10, 100, 1000, 10000].filter((rank) => rank <= most);
  const points = ranks.map((rank, i) => `${x(i).toFixed(1)} ${y(rank).toFixed(1)}`);
  const here = store.cursor.layer + 1;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": t("lens.ranks", { word: visible(text),
    ranks: ranks.map((rank, i) => `${i === 0 ? t("tower.embedding") : t("tower.block", { layer: i - 1 })} ${rank}`).join(", ") }) },
    label(0, 11, t("lens.rank", { word: short(text, 9), here: ranks[here], end: ranks[ranks.length - 1] }), { "font-size": 10, fill: color("ink") }),
    ticks.flatMap((rank) => [svg("line", { x1: left, x2: width - 8, y1: y(rank), y2: y(rank), stroke: color("line") }),
      label(left - 4, y(rank) + 3, number(rank), { "text-anchor": "end" })]),
    svg("path", { d: `M${points.join("L")}`, fill: "none", stroke: color("accent"), "stroke-width": 2 }),
    ranks.map((rank, i) => svg("circle", { cx: x(i), cy: y(rank), r: i === here ? 4.5 : 2.5, fill: color("accent") })),
    label(left, height - 3, t("tower.embedding")), label(width - 8, height - 3, t("tower.block", { layer: ranks.length - 2 }), { "text-anchor": "end" }));
}
