// A text with special tokens in it. The field is plain text, and what is typed stays text: special tokens are spans of
// it that were picked, and remain so until an edit touches them.

/** @typedef {{start: number, end: number, ids: number[]}} Span of the field's text: a special token */

/**
 * The special tokens of a trace, as spans of its text.
 * @param {Trace} trace @param {Set<number>} special their ids
 */
export function spansOf(trace, special) {
  /** @type {Span[]} */ const spans = [];
  let at = 0;
  for (const word of trace.words) {
    const { id } = trace.tokens[word.first];
    if (word.first === word.last && special.has(id)) spans.push({ start: at, end: at + word.text.length, ids: [id] });
    at += word.text.length;
  }
  return spans;
}

/**
 * A text after an edit, and what became of its spans. One that the edit touches goes as a whole.
 * @param {string} before @param {Span[]} spans @param {string} after
 * @returns {{text: string, spans: Span[], caret: number}}
 */
export function edited(before, spans, after) {
  let [first, last] = [0, 0]; // how many characters are the same at the beginning, and at the end
  const least = Math.min(before.length, after.length);
  while (first < least && before[first] === after[first]) first += 1;
  while (last < least - first && before[before.length - 1 - last] === after[after.length - 1 - last]) last += 1;
  const typed = after.slice(first, after.length - last);
  let [keep, from] = [first, before.length - last]; // the old text is kept up to here, and again from here on
  for (const { start, end } of spans) {
    const untouched = end <= keep || start >= from;
    if (!untouched) [keep, from] = [Math.min(keep, start), Math.max(from, end)];
  }
  const text = before.slice(0, keep) + typed + before.slice(from);
  const moved = keep + typed.length - from;
  const left = spans.filter(({ start, end }) => end <= keep || start >= from).map((span) =>
    (span.end <= keep ? span : { ...span, start: span.start + moved, end: span.end + moved }));
  return { text, spans: left, caret: keep + typed.length };
}

/** A text with its spans as parts for the server: strings, and ids. @param {string} text @param {Span[]} spans @returns {(string | number[])[]} */
export function partsOf(text, spans) {
  /** @type {(string | number[])[]} */ const parts = [];
  let at = 0;
  for (const { start, end, ids } of spans) {
    if (start > at) parts.push(text.slice(at, start));
    parts.push(ids);
    at = end;
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}
