// The block's player: what happens in a block, frame by frame, and the buttons that move through it.

import { el, format, put, visible } from "../draw/draw.js";
import { math } from "../draw/math.js";
import { store } from "../state/store.js";
import { say } from "../text/terms.js";
import { t } from "../languages/language.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const PART_FRAMES = 16; // dot products and values come one by one, of a long text several at a time
const SLOW_MS = 1500; // a new step, at speed 1
const QUICK_MS = 380; // one more of the same

/**
 * `line` and `key`: how far the table of scores is filled, its lines counted as in scores.js.
 * @typedef {{stage: string, line: number, key: number}} Frame
 */

/** The stages in order, with their formulas; in words they are `stage.NAME`. @type {Record<string, string>} */
export const STAGES = {
  read: "LN(x) = (x − μ) / √(σ^2 + ε) · g + b",
  qkv: "q = LN(x) W_q + b_q,   k = LN(x) W_k + b_k,   v = LN(x) W_v + b_v",
  dots: "s_j = q · k_j",
  scale: "s_j / √d_{head}",
  mask: "j > i: −∞",
  softmax: "a_j = e^{s_j} / Σ_i e^{s_i}",
  values: "z = Σ_j a_j v_j",
  merge: "merged = [z_0, z_1, …]",
  add: "x ← x + merged W_o + b_o",
  ln2: "LN(x)",
  widen: "GELU( LN(x) W_{fc} + b_{fc} )",
  narrow: "… W_{proj} + b_{proj}",
  out: "x ← x + proj",
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
  #play = el("button", { class: "primary", title: "p", onclick: () => this.toggle() }, t("player.play"));
  #slider = el("input", { type: "range", id: "play", min: 0, "aria-label": t("player.step"), oninput: () => this.go(Number(this.#slider.value)) });
  #speed = el("select", { id: "speed", "aria-label": t("player.speed"), onchange: () => store.set({ speed: Number(this.#speed.value) }) },
    [0.5, 1, 2, 4].map((speed) => el("option", { value: speed }, `${speed} ×`)));
  #all = el("button", { onclick: () => this.go(null) }, t("player.all"));
  #said = el("p", { class: "caption", role: "status" });
  element = el("div", { class: "player" },
    el("div", { class: "acts", role: "group", "aria-label": t("player.label") },
      this.#play,
      el("button", { title: ",", "aria-label": t("player.back"), onclick: () => this.move(-1) }, "◀"),
      el("button", { title: ".", "aria-label": t("player.forward"), onclick: () => this.move(1) }, "▶"),
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
    put(this.#play, t("player.play"));
  }

  /** Play from here, or from the start when the end is reached; or pause. */
  toggle() {
    if (this.playing) return this.pause();
    const { play } = store.get();
    if (play === null || play >= this.frames.length - 1) store.set({ play: 0 });
    put(this.#play, t("player.pause"));
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
      put(this.#said, say("player.start"));
      this.#slider.setAttribute("aria-valuetext", t("player.every"));
      return;
    }
    const title = t(`stage.${frame.stage}`);
    const number = Object.keys(STAGES).indexOf(frame.stage) + 1;
    this.#slider.setAttribute("aria-valuetext", title);
    put(this.#said, el("b", {}, `${number}. ${title}`), " ", math(STAGES[frame.stage]), el("br"), t(`stage.${frame.stage}.says`), " ", this.#worked(frame, head));
  }

  /** The numbers of this frame. @param {Frame} frame @param {HeadSteps | null} head */
  #worked({ stage, key }, head) {
    const tokens = store.trace?.tokens;
    if (!head || !tokens?.[key]) return "";
    const name = visible(tokens[key].text);
    if (stage === "dots") return el("b", {}, `“${name}”: ${format(head["attn.scores"][key], 2)}`);
    if (stage === "mask") {
      const later = head["attn.masked"].filter((score) => score === null).length;
      return el("b", {}, later === 0 ? t("player.nomask") : t("player.struck", { n: later }));
    }
    if (stage === "values") return el("b", {}, `“${name}”: ${format(head["attn.weights"][key])} × v`);
    return "";
  }
}
