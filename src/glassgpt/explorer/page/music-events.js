// What the tokens of a model of music mean: events to notes, as `glassgpt.music` decodes them.

/** @typedef {{start: number, end: number, pitch: number, velocity: number, token: number}} Note times in seconds */

const EVENT = /^ ?(NOTE_ON|NOTE_OFF|TIME_SHIFT|VELOCITY)_(\d+)$/;

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
