// The end, whole: the final vector times the rows of the token table, then logit, temperature, exp and probability.

import { api } from "../state/api.js";
import { el, format, percent, put } from "../draw/draw.js";
import { math } from "../draw/math.js";
import { head } from "../panel.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { GlassVector } from "../draw/vector.js";
import { t } from "../languages/language.js";

const SHOWN = 10;

export class FromVector {
  #body = el("tbody");
  #vectors = [new GlassVector(), new GlassVector(), new GlassVector()];
  #says = el("p", { class: "small", role: "status" });
  /** @type {(response: Promise<any>, use: (found: any) => void) => Promise<void>} of the view */ #load;
  #rank = 0;
  #asked = "";
  #shows = ""; // the same, of the table's rows
  /** @type {{ln_f: number[], tokens: number[], rows: number[][]} | null} */ #found = null;
  /** @type {ArrayLike<number>} the tokens of the rows of the table */ #tokens = [];
  /** @type {(rank: number) => string} */ #word = () => "";
  element = el("section", { class: "from-vector" },
    el("h3", {}, t("table.title"), math("p = softmax( x W^T / T )")),
    el("p", { class: "says" }, say("table.says")),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("table.label") },
      el("table", { class: "figures" }, head([t("table.token"), t("table.logit"), "÷ T", t("table.exp"), t("table.probability")]), this.#body)),
    this.#says,
    ...this.#vectors);

  /** @param {(response: Promise<any>, use: (found: any) => void) => Promise<void>} load of the view */
  constructor(load) {
    this.#load = load;
  }

  get #path() {
    return `/trace/${store.trace?.id}/final?position=${store.cursor.token}`;
  }

  /** @param {import("./sampling.js").Sampler} sampler @param {number} temperature @param {(rank: number) => string} word */
  show(sampler, temperature, word) {
    this.#word = word;
    const count = Math.min(SHOWN, sampler.size);
    this.#rank = Math.min(this.#rank, count - 1);
    const rows = Array.from({ length: count }, (_, rank) => {
      const logit = sampler.values[rank];
      const p = sampler.probability(rank);
      const scaled = temperature === 0 ? null : logit / temperature;
      const name = el("button", { class: "edit", "aria-pressed": String(rank === this.#rank), onclick: () => this.#choose(rank) }, word(rank));
      return el("tr", { onmouseenter: () => this.#choose(rank) }, el("th", { scope: "row" }, name),
        [format(logit, 3), scaled === null ? t("table.greedy") : format(scaled, 3), scaled === null ? "–" : format(sampler.weight[rank], 4), p === 0 ? t("next.cut")
        : percent(p)].map((text) => el("td", {}, text)));
    });
    const rest = sampler.kept > count ? t("table.rest", { n: sampler.kept - count }) : t("table.rest.none");
    const left = 1 - Array.from({ length: count }, (_, rank) => sampler.probability(rank)).reduce((a, b) => a + b, 0);
    const before = this.#body.contains(document.activeElement);
    put(this.#body, rows, el("tr", { class: "sum" }, el("th", { scope: "row" }, rest), el("td", { colspan: 3 }, t("table.sum")), el("td", {}, percent(Math.max(0, left)))));
    if (before) this.#body.querySelectorAll("button")[this.#rank]?.focus();
    [this.#tokens, this.#shows] = [sampler.order, this.#path];
    this.load();
  }

  /** Ask for the vectors, if they are needed; they are shown when the logits are there as well. */
  load() {
    const edited = store.get().edits.length > 0;
    for (const vector of this.#vectors) vector.hidden = edited;
    this.#says.hidden = edited; // the vector of an edited pass is not kept
    if (edited) return;
    const path = this.#path;
    if (path === this.#asked) return this.#multiply();
    if (api.offline && !api.known(path)) {
      // An exported file has the rows of some positions only.
      for (const vector of this.#vectors) vector.hidden = true;
      return put(this.#says, t("table.missing"));
    }
    void this.#load(api.get(path, { slot: "final" }), (found) => {
      [this.#found, this.#asked] = [found, path];
      if (this.#shows === path) this.#multiply();
    });
  }

  /** @param {number} rank */
  #choose(rank) {
    if (rank === this.#rank) return;
    this.#rank = rank;
    this.#body.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(i === rank)));
    this.#multiply();
  }

  #multiply() {
    const found = this.#found;
    const row = found?.rows[found.tokens.indexOf(this.#tokens[this.#rank])];
    if (!found || !row) return;
    const products = found.ln_f.map((value, i) => value * row[i]);
    this.#vectors[0].show("x", found.ln_f);
    this.#vectors[1].show(t("table.row", { word: this.#word(this.#rank) }), row);
    this.#vectors[2].show(t("table.product"), products);
    put(this.#says, t("table.products", { n: products.length, word: this.#word(this.#rank), sum: format(products.reduce((a, b) => a + b, 0), 3) }));
  }
}
