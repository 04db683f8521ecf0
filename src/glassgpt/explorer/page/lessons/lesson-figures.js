// The drawings of the lessons: blocks opened, who sees whom, the rows of a batch, how heads are cut from one matrix.

import { color, diverging, el, percent, PARTS, shade, short, svg } from "../draw/draw.js";
import { figure, head, label, line, scroll } from "../panel.js";
import { store } from "../state/store.js";
import { t } from "../languages/language.js";

/**
 * A box with words in its middle.
 * @param {number} x @param {number} y @param {number} w @param {number} h @param {string} words @param {{fill: string, ink: string}} paint
 */
const box = (x, y, w, h, words, paint) => [
  svg("rect", { x, y, width: w, height: h, rx: 4, fill: paint.fill, stroke: color("line-strong") }),
  label(x + w / 2, y + h / 2 + 4, words, { "text-anchor": "middle", "font-size": 11, fill: paint.ink }),
];

/** An arrow upwards. @param {number} x @param {number} from @param {number} to */
const up = (x, from, to) => svg("path", { d: `M${x} ${from}V${to}m-4 6l4 -6l4 6`, fill: "none", stroke: color("soft") });

/** In words they are `opened.NAME`. @type {{name: string, layers: [name: string, part: string][]}[]} from the bottom up */
const BLOCKS = [
  { name: "encoder", layers: [["self", "attn."], ["mlp", "mlp."]] },
  { name: "decoder", layers: [["masked", "attn."], ["cross", "wpe"], ["mlp", "mlp."]] },
  { name: "gpt2", layers: [["masked", "attn."], ["mlp", "mlp."]] },
];

/** The blocks of the family, opened. */
export function openedBlocks() {
  const [wide, gap, tall] = [168, 26, 168];
  const drawn = BLOCKS.flatMap(({ name, layers }, i) => {
    const x = i * (wide + gap);
    return [
      svg("rect", { x: x + 0.5, y: 16, width: wide - 1, height: tall - 36, rx: 8, fill: "none", stroke: color(i === 2 ? "accent" : "line-strong"),
        ...(i === 2 && { "stroke-width": 2 }) }),
      ...layers.flatMap(([words, part], row) => box(x + 8, tall - 56 - row * 36, wide - 16, 28, words === "mlp" ? "MLP" : t(`opened.${words}`), PARTS[part]())),
      up(x + wide / 2, 16, 3),
      label(x + wide / 2, tall - 3, t(`opened.${name}`), { "text-anchor": "middle", "font-size": 12, fill: color("ink"), ...(i === 2 && { "font-weight": 700 }) }),
    ];
  });
  const y = tall - 56 - 36 + 14; // the middle of the cross-attention
  drawn.push(svg("path", { d: `M${wide} ${y}H${wide + gap + 6}m-6 -4l6 4l-6 4`, fill: "none", stroke: color("d-plus"), "stroke-width": 1.5 }),
    label(wide + gap / 2, y - 6, "k, v", { "text-anchor": "middle", fill: color("ink") }));
  return figure(3 * wide + 2 * gap + 2, tall, t("opened.label"), drawn);
}

/** The order in which XLNet may guess five words, in the drawing. */
const ORDER = [2, 4, 0, 3, 1];

/** Who sees whom: the mask of GPT-2, BERT's, and one of XLNet's. */
export function masks() {
  const [cell, gap, size] = [18, 46, 5];
  const place = ORDER.map((_, word) => ORDER.indexOf(word));
  const kinds = /** @type {[string, string, (query: number, key: number) => boolean][]} */ ([
    ["GPT-2", t("masks.before"), (query, key) => key <= query],
    ["BERT", t("masks.all"), () => true],
    ["XLNet", t("masks.order", { order: ORDER.map((word) => word + 1).join(" ") }), (query, key) => place[key] <= place[query]],
  ]);
  const [seen, unseen] = [shade("attention", 0.6).fill, shade("attention", 0.02).fill];
  const drawn = kinds.flatMap(([name, words, sees], i) => {
    const x = i * (size * cell + gap);
    return [
      label(x, 12, name, { "font-size": 12, "font-weight": 700, fill: color("ink") }),
      ...Array.from({ length: size * size }, (_, at) =>
        svg("rect", { x: x + (at % size) * cell, y: 20 + Math.floor(at / size) * cell, width: cell - 2, height: cell - 2, rx: 2,
        fill: sees(Math.floor(at / size), at % size) ? seen : unseen, stroke: color("line") })),
      label(x, 20 + size * cell + 14, words, { "font-size": 11 }),
    ];
  });
  return figure(3 * size * cell + 3 * gap, 20 + size * cell + 20, t("masks.label", { order: ORDER.map((word) => word + 1).join(", ") }), drawn);
}

const ROWS = 4;

/** The first rows of the text as a batch: what is seen, what follows, and how likely the model found it. @param {Trace} trace */
export function batchTable({ tokens, token_loss: losses }) {
  const rows = tokens.slice(0, ROWS).flatMap((_, last) => {
    const loss = losses[last + 1];
    return loss ? [{ seen: tokens.slice(0, last + 1).map(({ text }) => short(text, 10)), next: short(tokens[last + 1].text, 12), p: loss.p,
      bits: -Math.log2(Math.max(loss.p, 1e-30)) }] : [];
  });
  if (rows.length === 0) return el("p", { class: "small quiet" }, t("batch.short"));
  const mean = rows.reduce((sum, { bits }) => sum + bits, 0) / rows.length;
  const cells = ({ seen = [""], next = "", p = 0, bits = 0 }) =>
    [...Array.from({ length: rows.length }, (_, i) => el("td", { class: seen[i] ? "seen" : "struck" }, seen[i] ?? "×")),
    el("td", {}, el("b", {}, next)), percent(p), bits.toFixed(2)];
  return scroll(t("batch.label"), el("table", { class: "figures batch" },
    head([t("batch.row"), ...Array.from({ length: rows.length }, (_, i) => t("batch.position", { n: i })), t("batch.next"), t("batch.probability"),
      t("batch.loss")]),
    el("tbody", {}, rows.map((row, i) => line(String(i + 1), cells(row))), el("tr", { class: "sum" }, el("th", { scope: "row" }, t("batch.mean")),
      el("td", { colspan: rows.length + 2 }, t("batch.says")), el("td", {}, mean.toFixed(2))))));
}

/**
 * One product, cut into q, k and v, and each into heads; the cursor's head is lit.
 * @param {ModelConfig} config @param {number[] | null} q of the cursor's head
 */
export function splitHeads({ n_embd, n_head, d_head }, q) {
  const [wide, x, third] = [540, 0, 180];
  const { head: lit } = store.cursor;
  const paints = [shade("probability", 0.45), shade("attention", 0.45), shade("loss", 0.45)];
  const piece = third / n_head;
  const strip = ["q", "k", "v"].flatMap((name, i) => [...box(x + i * third, 24, third, 24, `${name}: ${n_embd}`, paints[i])]);
  const cuts = Array.from({ length: n_head }, (_, i) =>
    svg("rect", { x: x + i * piece, y: 76, width: Math.max(1, piece - 2), height: 18, rx: 2, fill: paints[0].fill,
    stroke: color(i === lit ? "accent" : "line-strong"), "stroke-width": i === lit ? 2.5 : 1 }));
  const row = Math.max(4, Math.min(11, Math.floor(110 / n_head)));
  const stacked = Array.from({ length: n_head }, (_, i) =>
    svg("rect", { x: 290, y: 76 + i * row, width: 120, height: row - 1.5, rx: 1, fill: paints[0].fill,
    stroke: color(i === lit ? "accent" : "line-strong"), "stroke-width": i === lit ? 2 : 0.6 }));
  const most = Math.max(...(q ?? [0]).map(Math.abs)) || 1;
  const values = (q ?? []).map((value, i) =>
    svg("rect", { x: 290 + (i * 120) / d_head, y: 76 + lit * row, width: 120 / d_head, height: row - 1.5, fill: diverging(value, most).fill }));
  const tall = Math.max(126, 82 + n_head * row);
  return figure(wide, tall + 16, t("split.label", { width: n_embd, all: 3 * n_embd, heads: n_head, each: d_head }),
    label(0, 14, t("split.product", { width: n_embd, all: 3 * n_embd }), { "font-size": 11.5, fill: color("ink") }),
    strip,
    svg("path", { d: `M0 50L0 72M${third} 50L${third} 72`, stroke: color("soft"), "stroke-dasharray": "3 2" }),
    cuts,
    label(0, 110, t("split.cut", { heads: n_head, each: d_head }), { "font-size": 11 }),
    label(0, 124, t("split.head", { head: lit, from: lit * d_head, to: (lit + 1) * d_head - 1 }), { "font-size": 11 }),
    svg("path", { d: "M200 85H276m-7 -5l7 5l-7 5", fill: "none", stroke: color("soft") }),
    label(238, 77, t("split.reshape"), { "text-anchor": "middle", "font-size": 11 }),
    stacked, values,
    label(420, 88, t("split.shape", { heads: n_head, each: d_head }), { "font-size": 11.5, fill: color("ink") }),
    label(420, 103, t("split.same"), { "font-size": 11 }));
}

/** How many bytes the sizes take, to scale. @param {[name: string, parameters: number][]} models @param {number} width */
export function storage(models, width) {
  const most = Math.max(...models.map(([, parameters]) => parameters));
  const room = width - 210;
  const bytes = (/** @type {number} */ n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : `${Math.round(n / 1e6)} MB`);
  const drawn = models.flatMap(([name, parameters], i) => [
    label(92, i * 22 + 14, name, { "text-anchor": "end", "font-size": 12, fill: color("ink") }),
    svg("rect", { x: 100, y: i * 22 + 3, width: Math.max(1, (room * parameters) / most), height: 15, rx: 2,
      fill: shade("probability", i === 0 ? 0.8 : 0.45).fill }),
    label(108 + (room * parameters) / most, i * 22 + 14, bytes(4 * parameters), { "font-size": 12 }),
  ]);
  return figure(width, models.length * 22 + 4,
    t("storage.label", { sizes: models.map(([name, parameters]) => `${name} ${bytes(4 * parameters)}`).join(", ") }), drawn);
}

