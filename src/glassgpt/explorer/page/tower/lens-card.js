// Under the tower: the five most likely tokens of the cursor's cell, the final prediction, and a pinned token's way up.

import { api } from "../state/api.js";
import { color, el, exchange, percent, put, short, svg, visible } from "../draw/draw.js";
import { label } from "../panel.js";
import { store } from "../state/store.js";

/** A token of the list: its bar, and a button that pins it. @param {number} id @param {string} text @param {number} p */
function row(id, text, p) {
  const pinned = store.get().pin === id;
  return el("li", {},
    el("button", { class: "pin", "aria-pressed": String(pinned), title: "pin: follow its rank through the blocks", onclick: () =>
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
    const before = edits.length > 0 ? ", unedited" : "";
    exchange(this.#here, el("h3", {}, layer < 0 ? `embedding${before}` : `after block ${layer}${before}`), list(layer + 1));
    exchange(this.#final, el("h3", {}, `final prediction${before}`), list(last));
    const ranks = pin === null ? undefined : found.ranks[pin];
    const text = pin === null ? "" : found.texts.flat()[found.ids.flat().indexOf(pin)] ?? api.peek(`/vocabulary?model=${model}`)?.texts[pin] ?? `token ${pin}`;
    put(this.#rank, ranks ? rankLine(ranks, text)
      : el("p", { class: "small quiet" }, pin === null ? "Pin a word to follow its rank through the blocks." : "The rank of this word is not in the file."));
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
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `rank of ${visible(text)}: ` +
    `${ranks.map((rank, i) => `${i === 0 ? "embedding" : `block ${i - 1}`} ${rank}`).join(", ")}` },
    label(0, 11, `“${short(text, 9)}”: rank ${ranks[here].toLocaleString("en")} here, ${ranks.at(-1)?.toLocaleString("en")} at the ` +
      `end`, { "font-size": 10, fill: color("ink") }),
    ticks.flatMap((rank) => [svg("line", { x1: left, x2: width - 8, y1: y(rank), y2: y(rank), stroke: color("line") }),
      label(left - 4, y(rank) + 3, rank.toLocaleString("en"), { "text-anchor": "end" })]),
    svg("path", { d: `M${points.join("L")}`, fill: "none", stroke: color("accent"), "stroke-width": 2 }),
    ranks.map((rank, i) => svg("circle", { cx: x(i), cy: y(rank), r: i === here ? 4.5 : 2.5, fill: color("accent") })),
    label(left, height - 3, "embedding"), label(width - 8, height - 3, `block ${ranks.length - 2}`, { "text-anchor": "end" }));
}
