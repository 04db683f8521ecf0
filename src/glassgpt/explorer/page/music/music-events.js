// What the tokens of a model of music mean: events to notes, as `glassgpt.music` decodes them.

/** @typedef {{start: number, end: number, pitch: number, velocity: number, token: number}} Note times in seconds */

const EVENT = /^ ?(NOTE_ON|NOTE_OFF|TIME_SHIFT|VELOCITY)_(\d+)$/;

const NAMES = ["C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B"];

/** A pitch as musicians write it: 60 is C4. @param {number} pitch */
export const pitchName = (pitch) => `${NAMES[pitch % 12]}${Math.floor(pitch / 12) - 1}`;

/** @param {number} hundredths of a second */
const duration = (hundredths) => (hundredths === 100 ? ["1", "s"] : [String(10 * hundredths), "ms"]);

/** An event in words, "NOTE_ON C4", "TIME_SHIFT 120 ms"; null for a token that is none. @param {string} text */
export function eventName(text) {
  if (!text.includes("_")) return null; // most tokens
  const [, kind, digits] = EVENT.exec(text) ?? [];
  const value = Number(digits);
  if (!kind) return null;
  return [kind, ...(kind === "TIME_SHIFT" ? duration(value) : [kind === "VELOCITY" ? value : pitchName(value)])].join("\u00a0");
}

/**
 * The same in a few characters: "C4 on", "120ms", and where that is too long "♪C♯4" for a note that begins, "×C♯4" for one that ends.
 * @param {string} text @param {number} [most]
 */
export function eventLabel(text, most = 99) {
  if (!text.includes("_")) return null;
  const [, kind, digits] = EVENT.exec(text) ?? [];
  const value = Number(digits);
  if (!kind) return null;
  if (kind === "TIME_SHIFT") return duration(value).join("");
  if (kind === "VELOCITY") return most < 6 ? `v${value}` : `vel\u2009${value}`;
  const long = `${pitchName(value)}\u2009${kind === "NOTE_ON" ? "on" : "off"}`;
  return long.length <= most ? long : `${kind === "NOTE_ON" ? "♪" : "×"}${pitchName(value)}`;
}

/** Whether these are the tokens of a model of music. @param {{text: string}[]} tokens */
export const areEvents = (tokens) => notesOf(tokens) !== null;

/** The pitch of each token: a note's own; of others that of the next note that begins, as in music/arcs.py. @param {{text: string}[]} tokens */
export function pitchesOf(tokens) {
  let following = 60;
  return tokens
    .map(({ text }) => text)
    .reverse()
    .map((text) => {
      const [, kind, digits] = EVENT.exec(text) ?? [];
      if (kind === "NOTE_ON") following = Number(digits);
      return kind === "NOTE_OFF" ? Number(digits) : following;
    })
    .reverse();
}

/**
 * The notes that events describe; null if these tokens are not music. As `glassgpt.music` decodes: a NOTE_OFF of a
 * silent pitch is ignored, notes that still sound end with the last event.
 * @param {{text: string}[]} tokens
 */
export function notesOf(tokens) {
  /** @type {Note[]} */ const notes = [];
  /** @type {Map<number, Note[]>} */ const sounding = new Map();
  let [now, velocity, events] = [0, 64, 0];
  tokens.forEach(({ text }, token) => {
    const [, kind, digits] = EVENT.exec(text) ?? [];
    const value = Number(digits);
    if (kind) events += 1;
    if (kind === "TIME_SHIFT") now += value / 100;
    else if (kind === "VELOCITY") velocity = 4 * value - 3;
    else if (kind === "NOTE_OFF") {
      const note = sounding.get(value)?.shift();
      if (note) note.end = now;
    } else if (kind === "NOTE_ON") {
      const note = { start: now, end: -1, pitch: value, velocity, token };
      sounding.set(value, [...(sounding.get(value) ?? []), note]);
      notes.push(note);
    }
  });
  for (const note of notes) if (note.end < 0) note.end = Math.max(now, note.start + 0.1);
  return events > tokens.length / 2 ? notes : null;
}

/** When each token happens, in seconds. @param {{text: string}[]} tokens */
export function timesOf(tokens) {
  let now = 0;
  return tokens.map(({ text }) => {
    const [, kind, digits] = EVENT.exec(text) ?? [];
    if (kind === "TIME_SHIFT") now += Number(digits) / 100;
    return now;
  });
}
