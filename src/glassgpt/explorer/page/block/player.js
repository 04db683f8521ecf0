// The block's player: what happens in a block, frame by frame, and the buttons that move through it.

import { el, format, put, visible } from "../draw/draw.js";
import { math } from "../draw/math.js";
import { store } from "../state/store.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const PART_FRAMES = 16; // dot products and values come one by one, of a long text several at a time
const SLOW_MS = 1500; // a new step, at speed 1
const QUICK_MS = 380; // one more of the same

/**
 * `line` and `key`: how far the table of scores is filled, its lines counted as in scores.js.
 * @typedef {{stage: string, line: number, key: number}} Frame
 * @typedef {{title: string, formula: string, says: string}} Stage
 */

/** @type {Record<string, Stage>} in order */
export const STAGES = {
  read: { title: "Read the stream", formula: "LN(x) = (x − μ) / √(σ^2 + ε) · g + b", says: "The block takes the token’s vector x from the residual " +
    "stream, brings it to mean 0 and variance 1, and then multiplies each number by a learned g and adds a learned b." },
  qkv: { title: "Query, key, value", formula: "q = LN(x) W_q + b_q,   k = LN(x) W_k + b_k,   v = LN(x) W_v + b_v",
    says: "Three matrices make three short vectors: q, what this token looks for; k, what it can be found by; v, what it passes on. Every token " +
      "has made its own." },
  dots: { title: "Dot products", formula: "s_j = q · k_j", says: "The query is multiplied with the key of every token, number by number, and " +
    "summed. A large score is a good match." },
  scale: { title: "Divide by the root of the width", formula: "s_j / √d_{head}",
    says: "Long vectors make large sums. Dividing by the root of their length keeps the scores moderate." },
  mask: { title: "The mask falls", formula: "j > i: −∞", says: "Later tokens are struck out: while writing they are not there yet." },
  softmax: { title: "Softmax", formula: "a_j = e^{s_j} / Σ_i e^{s_i}",
    says: "The number e is raised to each score, and each result is divided by the sum of all: weights that sum to one." },
  values: { title: "Values flow into z", formula: "z = Σ_j a_j v_j",
    says: "Each token’s value is multiplied by its weight, and all of them are added up: that is what this head found." },
  merge: { title: "Heads merge", formula: "merged = [z_0, z_1, …]", says: "Every head has found something. The results are laid side by side, as " +
    "wide as the stream again; this head’s part is bright." },
  add: { title: "Back into the stream", formula: "x ← x + merged W_o + b_o",
    says: "One more matrix mixes them, and the sum is added to the stream: nothing is replaced." },
  ln2: { title: "The MLP reads", formula: "LN(x)", says: "The second half of the block works on this token alone. It also begins with a LayerNorm." },
  widen: { title: "Four times as wide", formula: "GELU( LN(x) W_{fc} + b_{fc} )", says: "A matrix widens the vector fourfold. GELU lets positive " +
    "numbers through and nearly silences negative ones; each of these numbers is a neuron." },
  narrow: { title: "And back", formula: "… W_{proj} + b_{proj}",
    says: "Every neuron that fires adds its own direction; together they have the old width again." },
  out: { title: "Out of the block", formula: "x ← x + proj", says: "This is also added to the stream, which goes on to the next block." },
};

/** The lines of the table that each stage of attention fills. @type {Record<string, number>} */
const LINE_OF = { dots: 2, scale: 3, mask: 4, softmax: 5, values: 6 };

/** All frames for a text of this many tokens. @param {number} tokens @returns {Frame[]} */
export function framesOf(tokens) {
  const every = Math.ceil(tokens / PART_FRAMES);
  return Object.keys(STAGES).flatMap((stage) => {
    const line = LINE_OF[stage] ?? (stage === "read" || stage === "qkv" ? 1 : 6);
    if (stage !== "dots" && stage !== "values") return [{ stage, line, key: tokens - 1 }];
    const ends = Array.from({ length: Math.ceil(tokens / every) }, (_, i) => Math.min(tokens - 1, (i + 1) * every - 1));
    return ends.map((key) => ({ stage, line, key }));
  });
}

/** Whether a stage comes later than another. @param {string} stage @param {string} now */
export const isLater = (stage, now) => Object.keys(STAGES).indexOf(stage) > Object.keys(STAGES).indexOf(now);

export class Player {
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  #play = el("button", { class: "primary", title: "p", onclick: () => this.toggle() }, "Play");
  #slider = el("input", { type: "range", id: "play", min: 0, "aria-label": "Step of the block", oninput: () => this.go(Number(this.#slider.value)) });
  #speed = el("select", { id: "speed", "aria-label": "Speed", onchange: () => store.set({ speed: Number(this.#speed.value) }) },
    [0.5, 1, 2, 4].map((speed) => el("option", { value: speed }, `${speed} ×`)));
  #all = el("button", { onclick: () => this.go(null) }, "Show all");
  #said = el("p", { class: "caption", role: "status" });
  element = el("div", { class: "player" },
    el("div", { class: "acts", role: "group", "aria-label": "Player" },
      this.#play,
      el("button", { title: ",", "aria-label": "Step back", onclick: () => this.move(-1) }, "◀"),
      el("button", { title: ".", "aria-label": "Step forward", onclick: () => this.move(1) }, "▶"),
      this.#slider, this.#speed, this.#all),
    this.#said);

  /** @returns {Frame[]} */
  get frames() {
    return framesOf(store.trace?.tokens.length ?? 1);
  }

  /** The current frame, or null when all is shown. */
  get frame() {
    const { play } = store.get();
    return play === null ? null : this.frames[Math.max(0, Math.min(play, this.frames.length - 1))];
  }

  get playing() {
    return this.#timer !== undefined;
  }

  /** @param {number | null} frame */
  go(frame) {
    this.pause();
    store.set({ play: frame === null ? null : Math.max(0, Math.min(frame, this.frames.length - 1)) });
  }

  /** @param {number} by */
  move(by) {
    const { play } = store.get();
    this.go(play === null ? (by > 0 ? 0 : this.frames.length - 1) : play + by);
  }

  pause() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    put(this.#play, "Play");
  }

  /** Play from here, or from the start when the end is reached; or pause. */
  toggle() {
    if (this.playing) return this.pause();
    const { play } = store.get();
    if (play === null || play >= this.frames.length - 1) store.set({ play: 0 });
    put(this.#play, "Pause");
    this.#next();
  }

  #next() {
    const frame = this.frame;
    const following = this.frames[(store.get().play ?? 0) + 1];
    const wait = (following?.stage === frame?.stage ? QUICK_MS : SLOW_MS) / store.get().speed;
    this.#timer = setTimeout(() => {
      const { play } = store.get();
      if (play === null || play >= this.frames.length - 1) return this.pause();
      store.set({ play: play + 1 });
      this.#next();
    }, calm.matches ? Math.max(wait, 1000) : wait);
  }

  /** Show where the player is. @param {HeadSteps | null} head */
  render(head) {
    const { play, speed } = store.get();
    const { frames, frame } = this;
    this.#slider.max = String(frames.length - 1);
    this.#slider.value = String(play ?? frames.length - 1);
    this.#speed.value = [0.5, 1, 2, 4].includes(speed) ? String(speed) : "1";
    this.#all.disabled = play === null;
    if (!frame) {
      put(this.#said, "Press ", el("b", {}, "Play"), " to watch this block at work, step by step.");
      this.#slider.setAttribute("aria-valuetext", "all steps");
      return;
    }
    const { title, formula, says } = STAGES[frame.stage];
    const number = Object.keys(STAGES).indexOf(frame.stage) + 1;
    this.#slider.setAttribute("aria-valuetext", title);
    put(this.#said, el("b", {}, `${number}. ${title}`), " ", math(formula), el("br"), says, " ", this.#worked(frame, head));
  }

  /** The numbers of this frame. @param {Frame} frame @param {HeadSteps | null} head */
  #worked({ stage, key }, head) {
    const tokens = store.trace?.tokens;
    if (!head || !tokens?.[key]) return "";
    const name = visible(tokens[key].text);
    if (stage === "dots") return el("b", {}, `“${name}”: ${format(head["attn.scores"][key], 2)}`);
    if (stage === "mask") {
      const later = head["attn.masked"].filter((score) => score === null).length;
      return el("b", {}, later === 0 ? "This is the last token: no column is struck out here. Choose an earlier token to see the mask fall."
        : `${later} ${later === 1 ? "column is" : "columns are"} struck out.`);
    }
    if (stage === "values") return el("b", {}, `“${name}”: ${format(head["attn.weights"][key])} × v`);
    return "";
  }
}
