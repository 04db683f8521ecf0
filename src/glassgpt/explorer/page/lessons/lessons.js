// What The Illustrated GPT-2 tells around the model, as short lessons: each with a drawing, a table or a model to open.

import { api, isAbort, messageOf } from "../state/api.js";
import { el, put } from "../draw/draw.js";
import { openModel } from "../text/examples.js";
import { flow } from "./flow.js";
import { batchTable, masks, openedBlocks, splitHeads, storage } from "./lesson-figures.js";
import { current, scroll } from "../panel.js";
import { store } from "../state/store.js";
import { tourFacts } from "../tour/tour-facts.js";
import { t } from "../languages/language.js";

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
 * @param {string} model @param {string} example @param {string} says the message is `lesson.jobs.SAYS`
 */
function opens(model, example, says) {
  const index = store.info?.models.findIndex(({ name }) => name === model) ?? -1;
  return index < 0 ? null : el("button", { class: "edit", disabled: api.offline, onclick: () => void openModel(index, example) }, t(`lesson.jobs.${says}`));
}

/** @param {...string} keys */
const says = (...keys) => keys.map((key) => el("p", { class: "says" }, t(key)));

/** @typedef {{name: string, make: (width: number) => Child[]}} Lesson */

/** Drawn when its numbers come. */
function wholeWay() {
  const box = el("div", {});
  tourFacts().then((facts) => put(box, scroll(t("lesson.whole.label"), flow(facts))), (error) => !isAbort(error)
    && put(box, el("p", { class: "problem" }, messageOf(error))));
  return box;
}

/** What came before, in order. */
const STORY = ["transformer", "decoder", "characters", "gpt", "gpt2"];

/** Their titles are `lesson.NAME`. @type {Lesson[]} */
const LESSONS = [
  { name: "whole", make: () => [wholeWay(), ...says("lesson.whole.says")] },
  {
    name: "jobs",
    make: () => [
      ...says("lesson.jobs.translate"),
      el("div", { class: "acts" }, opens("en-fr", "french", "student"), opens("en-fr", "half", "head")),
      ...says("lesson.jobs.summarize"),
      el("div", { class: "acts" }, opens("summarize", "lighthouse", "article"), opens("summarize", "sentence", "short")),
      ...says("lesson.jobs.music"),
      el("div", { class: "acts" }, opens("music", "chord", "phrase"), opens("music", "tune", "longer")),
      ...says("lesson.jobs.ramble"),
      el("div", { class: "acts" }, opens("default", "rambling", "let"), opens("tiny", "rambling", "tiny")),
    ],
  },
  {
    name: "read",
    make: (width) => {
      const model = store.info?.models[current().trace.model];
      return [
        ...says("lesson.read.webtext"),
        storage([...(model && !SIZES.some(([, , , , parameters]) => parameters === model.parameters)
          ? /** @type {[string, number][]} */ ([[model.name.split(/[\\/]/).at(-1) ?? model.name, model.parameters]]) : []),
          ...SIZES.map(([name, , , , parameters]) => /** @type {[string, number]} */ ([`GPT-2 ${name}`, parameters]))], Math.min(560, width)),
        ...says("lesson.read.cost"),
      ];
    },
  },
  {
    name: "before",
    make: () => [el("dl", { class: "years" }, STORY.flatMap((name) => [el("dt", {}, t(`lesson.before.${name}.when`)), el("dd", {}, t(`lesson.before.${name}`))]))],
  },
  { name: "blocks", make: () => [scroll(t("lesson.blocks.label"), openedBlocks()), ...says("lesson.blocks.says")] },
  { name: "masks", make: () => [scroll(t("lesson.masks.label"), masks()), ...says("lesson.masks.bert", "lesson.masks.xlnet")] },
  { name: "batch", make: () => [...says("lesson.batch.says"), batchTable(current().trace)] },
  {
    name: "heads",
    make: () => {
      const { trace, config } = current();
      const { layer, head, token } = store.cursor;
      const known = layer >= 0 ? api.peek(`/trace/${trace.id}/head?layer=${layer}&head=${head}&position=${token}`) : undefined;
      return [
        scroll(t("lesson.heads.label"), splitHeads(config, known?.["attn.q"] ?? null)),
        el("p", { class: "says" }, t("lesson.heads.says", { heads: config.n_head, each: config.d_head, width: config.n_embd }),
          known ? t("lesson.heads.row") : null),
      ];
    },
  },
];

/** The lessons, of which those that are open are drawn. */
export class Lessons {
  element = el("div", { class: "lessons" }, LESSONS.map((lesson, i) => {
    const body = el("div", { class: "lesson" });
    const opened = el("details", { "data-lesson": lesson.name, open: i < 2, ontoggle: () => this.render() },
      el("summary", {}, el("h3", {}, t(`lesson.${lesson.name}`))), body);
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
