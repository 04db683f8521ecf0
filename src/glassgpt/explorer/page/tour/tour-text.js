// What the tour says: its sentences with the numbers of the text, and others where the tokens are events of music.

import { t } from "../languages/language.js";
import { areEvents } from "../music/music-events.js";

/** The steps that speak of words: for music they have sentences of their own. */
const OF_MUSIC = ["guess", "tokens"];

/** The paragraphs of a step. @param {TourStep} step @param {TourFacts} facts */
export function textOf(step, facts) {
  const music = areEvents(facts.trace.tokens) && OF_MUSIC.includes(step.name);
  const other = step.instead?.(facts) ?? {};
  const values = step.values(facts);
  return [1, 2].map((paragraph) => {
    const key = `tour.${step.name}.${paragraph}`;
    return t(music ? `tour.${step.name}.music.${paragraph}` : other[key] ?? key, values);
  });
}

/** What a step asks the reader to try. @param {TourStep} step @param {TourFacts} facts */
export const taskOf = ({ name, instead }, facts) => t(instead?.(facts)[`tour.${name}.go`] ?? `tour.${name}.go`);
