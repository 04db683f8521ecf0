// What The Illustrated GPT-2 tells around the model, as short lessons: each with a drawing, a table or a model to open.

import { api, isAbort, messageOf } from "../state/api.js";
import { el, put } from "../draw/draw.js";
import { openModel } from "../text/examples.js";
import { flow } from "./flow.js";
import { batchTable, masks, openedBlocks, splitHeads, storage } from "./lesson-figures.js";
import { count, current, scroll } from "../panel.js";
import { store } from "../state/store.js";
import { tourFacts } from "../tour/tour-facts.js";

/**
 * The published sizes: name, the paper's name, blocks, width, parameters.
 * @type {[name: string, paper: string, blocks: number, width: number, parameters: number][]}
 */
export const SIZES = [
  ["small", "117M", 12, 768, 124_439_808],
  ["medium", "345M", 24, 1024, 354_823_168],
  ["large", "762M", 36, 1280, 774_030_080],
  ["XL", "1542M", 48, 1600, 1_557_611_200],
];

/**
 * A button that opens a model with one of its examples; none where the model is not there.
 * @param {string} model @param {string} example @param {string} words
 */
function opens(model, example, words) {
  const index = store.info?.models.findIndex(({ name }) => name === model) ?? -1;
  return index < 0 ? null : el("button", { class: "edit", disabled: api.offline, onclick: () => void openModel(index, example) }, words);
}

/** @param {...string} paragraphs */
const says = (...paragraphs) => paragraphs.map((words) => el("p", { class: "says" }, words));

/** @typedef {{name: string, title: string, make: (width: number) => Child[]}} Lesson */

/** Drawn when its numbers come. */
function wholeWay() {
  const box = el("div", {});
  tourFacts().then((facts) => put(box, scroll("The whole way", flow(facts))), (error) => !isAbort(error)
    && put(box, el("p", { class: "problem" }, messageOf(error))));
  return box;
}

/** @type {Lesson[]} */
const LESSONS = [
  {
    name: "whole",
    title: "The whole way at a glance, from text to probabilities",
    make: () => [
      wholeWay(),
      ...says("Read it from below: each token’s number picks a row of a table, its vector climbs through the blocks, which write into it, and at " +
        "the top of the last column every token of the vocabulary gets a logit. Between the blocks is the best guess so far."),
    ],
  },
  {
    name: "jobs",
    title: "One stack, other jobs: translation, summaries, music",
    make: () => [
      ...says("A decoder needs no second half to translate. A sentence, a token that says “now in French”, the translation: to the model that is " +
        "one text, and all it does is go on with it. Everything it must look at is to its left."),
      el("div", { class: "acts" }, opens("en-fr", "To French", "Translate “I am a student.”"),
        opens("en-fr", "Half translated", "See a head look at the next word to translate")),
      ...says("Summaries work the same way: an article, a separator, its summary. The model here writes poor ones, but you can watch it read. It " +
        "also shows transfer: it is the default model, which learned English from plain text, with a few small changes learned from articles and " +
        "their openings. In 2019 a decoder trained in these two steps needed far fewer summaries to learn from than one that began from nothing."),
      el("div", { class: "acts" }, opens("summarize", "A lighthouse", "Summarize an article"), opens("summarize", "One sentence", "A short one")),
      ...says("Nor must tokens be words. A piano performance is a sequence too: a key goes down, some time passes, a key comes up, and it is " +
        "played softer or louder. The same blocks, trained on such events, go on with a tune."),
      el("div", { class: "acts" }, opens("music", "A broken chord", "Open a phrase"), opens("music", "A tune over two chords", "A longer one")),
      ...says("And it can ramble: given no text at all, only the token between documents, <|endoftext|>, it begins a document of its own."),
      el("div", { class: "acts" }, opens("default", "Rambling", "Let it ramble"), opens("tiny", "Rambling", "Let the tiny one")),
    ],
  },
  {
    name: "read",
    title: "What GPT-2 read, what it weighs, what it costs",
    make: (width) => {
      const model = store.info?.models[current().trace.model];
      return [
        ...says("GPT-2 learned from WebText, 40 GB of text: some eight million pages to which people on Reddit had linked, kept if a link had " +
          "earned at least three votes. The collection was never published; others have built ones like it."),
        storage([...(model && !SIZES.some(([, , , , parameters]) => parameters === model.parameters)
          ? /** @type {[string, number][]} */ ([[model.name.split(/[\\/]/).at(-1) ?? model.name, model.parameters]]) : []),
          ...SIZES.map(([name, , , , parameters]) => /** @type {[string, number]} */ ([`GPT-2 ${name}`, parameters]))], Math.min(560, width)),
        ...says("A parameter is stored in 4 bytes (float32), 2 or 1. To write one token, nearly every one of them is read once and multiplied " +
          "once: reading them from memory is what takes the time. Learning costs three times as much for every token read, and tens of thousands " +
          "of dollars for the largest: by a common estimate a week on 32 TPU chips, 43,000 dollars in 2019."),
      ];
    },
  },
  {
    name: "before",
    title: "Where it came from: decoders alone, and models of characters",
    make: () => [
      el("dl", { class: "years" },
        ...Object.entries({
          "2017": "The Transformer: an encoder reads, a decoder writes, for translation. It sees 512 tokens at a time.",
          "2018, Transformer-Decoder": "To write Wikipedia articles from their sources, the encoder is thrown away: sources and article become one " +
            "text, of up to 4,000 tokens at a time. The block that is left is the one in this tower.",
          "2018, characters": "A decoder of 64 blocks guesses the next character instead of the next token. No vocabulary is needed, but a word " +
            "takes many steps.",
          "2018, GPT": "The same decoder, first trained on books, then tuned for each task: transfer.",
          "2019, GPT-2": "More text, more blocks; LayerNorm comes before attention and MLP. Tasks are no longer trained but asked for, in plain text.",
        }).flatMap(([when, what]) => [el("dt", {}, when), el("dd", {}, what)])),
    ],
  },
  {
    name: "blocks",
    title: "The blocks, opened: encoder, decoder, cross-attention",
    make: () => [
      scroll("Three blocks, opened", openedBlocks()),
      ...says("The decoder of 2017 has a layer in the middle that GPT-2 lacks. Its queries come from what is being written, its keys and values " +
        "from the encoder: so a French word finds its English one. GPT-2 needs no such layer, because both languages are in the same text. (All " +
        "of these have LayerNorms and residual sums, which are not drawn.)"),
    ],
  },
  {
    name: "masks",
    title: "BERT, XLNet: what is gained, what is given up",
    make: () => [
      scroll("Three masks", masks()),
      ...says("GPT-2 writes a token, adds it to the text, and reads on from there: it is auto-regressive, and pays by seeing one side only. BERT " +
        "sees both sides of every word, which helps to understand a sentence, and gives up writing: it can fill in a blank, but has no next word.",
        "XLNet wants both. It guesses the words of a sentence one after the other, but in a shuffled order, another one each time: a word " +
        "learns from its left and its right, and every guess is made from the ones before."),
    ],
  },
  {
    name: "batch",
    title: "Four rows, one batch: how a text trains the model",
    make: () => [
      ...says("Every text holds as many exercises as it has tokens: see the beginning, guess the next. Written out they are rows; the × are what " +
        "the mask strikes out. Because of the mask, all rows are computed in one go, as one matrix, and graded together."),
      batchTable(current().trace),
    ],
  },
  {
    name: "heads",
    title: "One matrix for q, k and v: how heads are split",
    make: () => {
      const { trace, config } = current();
      const { layer, head, token } = store.cursor;
      const known = layer >= 0 ? api.peek(`/trace/${trace.id}/head?layer=${layer}&head=${head}&position=${token}`) : undefined;
      return [
        scroll("How q is split into heads", splitHeads(config, known?.["attn.q"] ?? null)),
        ...says(`A block has no separate matrices for its heads. One matrix, c_attn, makes q, k and v of all heads at once; then each is cut and ` +
          `laid out again, ${config.n_head} rows of ${config.d_head}. Nothing is computed by that: the same ${count(config.n_embd)} numbers are ` +
          `only read in another shape. After attention the heads’ results are laid side by side again, and c_proj mixes ` +
          `them.${known ? " The colored row is the q of the cursor’s token." : ""}`),
      ];
    },
  },
];

/** The lessons, of which those that are open are drawn. */
export class Lessons {
  element = el("div", { class: "lessons" }, LESSONS.map((lesson, i) => {
    const body = el("div", { class: "lesson" });
    const opened = el("details", { "data-lesson": lesson.name, open: i < 2, ontoggle: () => this.render() },
      el("summary", {}, el("h3", {}, lesson.title)), body);
    return opened;
  }));
  width = 560;

  render() {
    for (const details of /** @type {NodeListOf<HTMLDetailsElement>} */ (this.element.querySelectorAll("details"))) {
      const lesson = LESSONS.find(({ name }) => name === details.dataset.lesson);
      const body = details.lastElementChild;
      if (lesson && body) put(body, details.open && store.trace ? lesson.make(this.width) : []);
    }
  }
}
