// What the tour says instead where the tokens are not words but events of music.

import { areEvents } from "../music/music-events.js";

/** By the step's figure. @type {Record<string, (facts: TourFacts) => string[]>} */
const OF_MUSIC = {
  guess: ({ next }) => [
    "A model of language offers a probability for every word that could come next. This one does the same with music: a piano performance goes in " +
      "as a sequence of events, and out comes a probability for every event that could follow.",
    `After the events above, this model considers “${next[0].text.trim()}” most likely. It is the same machine as a model of text, with another ` +
      `list of tokens.`,
  ],
  tokens: ({ config, trace }) => [
    `The model knows no sheet music and no sound. It knows a fixed list of ${config.vocab_size.toLocaleString("en-US")} events: a key goes down ` +
      `(NOTE_ON), a key comes up (NOTE_OFF), some time passes (TIME_SHIFT, from 10 ms to one second), and how hard the next keys are struck ` +
      `(VELOCITY, in 32 steps). Each event is a token, and all the model gets is its number in the list. This phrase is ${trace.tokens.length} of them.`,
    "Nobody had to learn this list, as the pieces of words are learned: it is how a MIDI file describes a performance.",
  ],
};

/** The paragraphs of a step. @param {TourStep} step @param {TourFacts} facts */
export function textOf(step, facts) {
  const other = areEvents(facts.trace.tokens) ? OF_MUSIC[step.figure] : undefined;
  return (other ?? step.text)(facts);
}
