// A piano roll that plays: what the events of a model of music sound like. Time runs to the right, pitch upwards.

import { el, put, svg } from "../draw/draw.js";
import { notesOf, pitchesOf, pitchName, timesOf } from "./music-events.js";
import { t } from "../languages/language.js";

/** @typedef {import("./music-events.js").Note} Note */

const BLACK_KEYS = [1, 3, 6, 8, 10];
const WIDE = 1000; // units of the drawing, which scales
const ROW = 7;
const LEAST = 0.02; // of the attention that is drawn
const HARMONICS = [1, 0.5, 0.3, 0.16, 0.08, 0.04]; // a struck string, roughly

/** `show` draws the tokens of a trace, `mark` the current one; a click on a note is an event "pick" with its token. */
export class PianoRoll extends HTMLElement {
  #button = el("button", { class: "play", "aria-pressed": "false" }, t("roll.play"));
  #picture = svg("svg", { class: "roll", role: "img", "aria-label": t("roll.label") });
  #cursor = svg("line", { class: "cursor", y1: 0 });
  #arcs = svg("g", { class: "arcs" });
  /** @type {number[]} of each token */ #pitches = [];
  #high = 0; // the highest pitch that is drawn
  /** @type {Note[]} */ #notes = [];
  /** @type {number[]} */ #times = [];
  /** @type {AudioContext | null} */ #sound = null;
  #seconds = 1;
  #frame = 0;

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.#button, this.#picture);
    this.#button.addEventListener("click", () => (this.#sound ? this.stop() : this.play()));
    this.#picture.addEventListener("click", ({ target }) => {
      const token = target instanceof SVGElement ? target.dataset.token : undefined;
      if (token !== undefined) this.dispatchEvent(new CustomEvent("pick", { detail: Number(token) }));
    });
  }

  disconnectedCallback() {
    this.stop();
  }

  /** @param {{text: string}[]} tokens */
  show(tokens) {
    const notes = notesOf(tokens);
    this.stop();
    this.hidden = !notes || notes.length === 0;
    if (!notes || this.hidden) return;
    this.#notes = notes;
    this.#times = timesOf(tokens);
    this.#pitches = pitchesOf(tokens);
    this.#seconds = Math.max(1, ...notes.map((note) => note.end));
    const [low, high] = [Math.min(...notes.map((note) => note.pitch)) - 2, Math.max(...notes.map((note) => note.pitch)) + 2];
    const tall = (high - low + 1) * ROW;
    this.#high = high;
    this.#picture.setAttribute("viewBox", `0 0 ${WIDE} ${tall}`);
    this.#picture.setAttribute("preserveAspectRatio", "none");
    this.#cursor.setAttribute("y2", String(tall));
    const keys = [];
    for (let pitch = low; pitch <= high; pitch += 1) {
      if (BLACK_KEYS.includes(((pitch % 12) + 12) % 12)) keys.push(svg("rect", { class: "key", x: 0, y: (high - pitch) * ROW, width: WIDE, height: ROW }));
    }
    const bars = notes.map((note) =>
      svg(
        "rect",
        { class: "note", "data-token": note.token, x: this.#x(note.start), y: (high - note.pitch) * ROW + 0.5,
          width: Math.max(2, this.#x(note.end - note.start)), height: ROW - 1, rx: 1, "fill-opacity": 0.35 + (0.65 * note.velocity) / 127 },
        svg("title", {}, t("roll.note", { pitch: pitchName(note.pitch), start: note.start.toFixed(2), end: note.end.toFixed(2) })),
      ),
    );
    put(this.#arcs);
    put(this.#picture, keys, bars, this.#arcs, this.#cursor);
  }

  /** @param {number} token */
  mark(token) {
    if (this.hidden || this.#sound) return;
    for (const bar of this.#picture.querySelectorAll(".note")) bar.classList.toggle("current", Number(/** @type {SVGElement} */ (bar).dataset.token) === token);
    this.#place(this.#times[token] ?? 0);
  }

  /**
   * Attention from an event to those before it, which are at their times and pitches.
   * @param {number[]} weights @param {number} token @returns {boolean} whether there is a roll
   */
  attend(weights, token) {
    if (this.hidden) return false;
    const place = (/** @type {number} */ at) => [this.#x(this.#times[at] ?? 0), (this.#high - (this.#pitches[at] ?? 60) + 0.5) * ROW];
    const [x, y] = place(token);
    put(this.#arcs, weights.map((weight, key) => {
      if (weight < LEAST || key === token) return null;
      const [fromX, fromY] = place(key);
      const bend = Math.min(fromY, y) - ROW * (1 + (4 * Math.abs(x - fromX)) / WIDE);
      return svg("path", { d: `M${x} ${y}C${x} ${bend} ${fromX} ${bend} ${fromX} ${fromY}`, "stroke-width": 1 + 5 * weight,
        "stroke-opacity": 0.25 + 0.75 * weight });
    }));
    return true;
  }

  play() {
    const sound = new AudioContext();
    const out = new GainNode(sound, { gain: 0.25 });
    const wave = sound.createPeriodicWave(new Float32Array([0, ...HARMONICS.map(() => 0)]), new Float32Array([0, ...HARMONICS]));
    out.connect(sound.destination);
    const first = sound.currentTime + 0.1;
    for (const note of this.#notes) strike(sound, out, wave, note, first);
    this.#sound = sound;
    this.#button.textContent = t("roll.stop");
    this.#button.setAttribute("aria-pressed", "true");
    const follow = () => {
      const now = sound.currentTime - first;
      this.#place(Math.max(0, now));
      if (now > this.#seconds + 0.5) this.stop();
      else this.#frame = requestAnimationFrame(follow);
    };
    follow();
  }

  stop() {
    cancelAnimationFrame(this.#frame);
    this.#sound?.close();
    this.#sound = null;
    this.#button.textContent = t("roll.play");
    this.#button.setAttribute("aria-pressed", "false");
  }

  /** @param {number} seconds */
  #x(seconds) {
    return Math.round((WIDE * 10 * seconds) / this.#seconds) / 10;
  }

  /** @param {number} seconds */
  #place(seconds) {
    for (const name of ["x1", "x2"]) this.#cursor.setAttribute(name, String(this.#x(seconds)));
  }
}

/**
 * One note: struck, fading, and damped when the key goes up.
 * @param {AudioContext} sound @param {AudioNode} out @param {PeriodicWave} wave @param {Note} note @param {number} first
 */
function strike(sound, out, wave, note, first) {
  const [start, end] = [first + note.start, first + note.end];
  const string = new OscillatorNode(sound, { type: "custom", periodicWave: wave, frequency: 440 * 2 ** ((note.pitch - 69) / 12) });
  const hammer = new GainNode(sound, { gain: 0 });
  const loud = (note.velocity / 127) ** 1.5;
  hammer.gain.setValueAtTime(0, start);
  hammer.gain.linearRampToValueAtTime(loud, start + 0.005);
  hammer.gain.setTargetAtTime(0, start + 0.005, 2.5 * 2 ** ((60 - note.pitch) / 24));
  hammer.gain.setTargetAtTime(0, end, 0.04);
  string.connect(hammer).connect(out);
  string.start(start);
  string.stop(end + 0.3);
}

customElements.define("piano-roll", PianoRoll);
