// What the server says, in the reader's language: the messages that a reader of the page can meet. Others stay English.

import { isKnown, language, t } from "./language.js";

/** @type {[key: string, says: RegExp][]} the named groups are the values of the message */
const MESSAGES = [
  ["error.empty", /^The text is empty\. /],
  ["error.id", /^\w+: (?<id>-?\d+) is not a token id\. Use 0 to (?<last>[\d,]+)\./],
  ["error.long", /^\w+: (?<n>[\d,]+) tokens are over the limit of (?<limit>[\d,]+)\./],
  ["error.integrated", /^position: integrated gradients are limited to the first (?<limit>\d+) tokens here\./],
  ["error.waiting", /^(?<n>\d+) requests are already waiting\./],
  ["error.vocabularies", /^(?<a>.+) and (?<b>.+) have different vocabularies, /],
  ["error.site.edits", /^A site generates without edits\./],
  ["error.site.gradients", /^(?<method>\w+) needs gradients, which this page cannot compute\./],
  ["error.site.midi", /^A MIDI file is read by the server: /],
  ["error.notes", /^The file has no notes /],
  ["error.size", /^(?<n>\d+) tokens of this model do not fit in one file\. Export at most (?<limit>\d+)\./],
];

/** @param {string | undefined} message @returns {string | undefined} */
export function translated(message) {
  if (message === undefined || language() === "en") return message;
  for (const [key, says] of MESSAGES) {
    const found = says.exec(message);
    if (found && isKnown(key)) return t(key, { ...found.groups });
  }
  return message;
}
