// The text of the guided tour. Each step can be read alone; `state` is what the page shows, `look` and `at` what is lit.

import { api } from "../state/api.js";
import { percent } from "../draw/draw.js";
import { lookedAt, tokenInNumbers } from "./tour-facts.js";

/** What every step begins with, so that steps can be visited in any order. @type {Partial<State>} */
export const PLAIN = { token: -1, edits: [], play: null, part: "", mask: true, game: false, overlay: [], skipFirst: false, filter: "", sort: false,
  pattern: "matrix", step: null, temperature: 1, topK: 0, topP: 1, minP: 0, target: null, method: "input_x_gradient", pin: null };

const touch = matchMedia("(hover: none)");

/** @param {number} n */
const count = (n) => n.toLocaleString("en-US");

/** @param {TourFacts} facts @param {(name: string) => boolean} of */
const share = ({ tally }, of) => tally.rows.filter(({ name }) => of(name)).reduce((sum, row) => sum + row.count, 0) / tally.total;

/** @param {TourFacts} facts */
const here = ({ layer, head }) => ({ layer, head });

/** @type {TourStep[]} */
export const STEPS = [
  {
    title: "What is a language model?",
    text: ({ next }) => [
      "Your phone offers three words above its keyboard. It has read enough to know what tends to follow what. A language model is that and " +
        "nothing more: text goes in, and out comes a probability for every word that could be next.",
      `After the text above, this model considers “${next[0].text.trim()}” most likely, with ${percent(next[0].p)}. GPT-2 does this so well that its ` +
        `guesses, strung together, read like prose. Every number here is computed by a real model, from a real text.`,
    ],
    go: () => "The bars are the model’s ten most likely next words. Press a digit to take one, and watch it guess again. When you close the tour, " +
      "your text comes back.",
    state: (facts) => ({ view: "next", ...here(facts) }),
    look: "next",
    at: ".candidates",
    figure: "guess",
  },
  {
    title: "Text becomes tokens",
    text: ({ config, trace }) => [
      `The model does not read letter by letter. It knows a fixed list of ${count(config.vocab_size)} pieces: frequent words whole, rare words in ` +
        `parts, and, if need be, single bytes, so no text is beyond it. A piece is called a token, and all the model gets is its number in the ` +
        `list. This text is ${trace.tokens.length === 1 ? "one of them" : `${trace.tokens.length} of them`}.`,
      "The list was learned by one rule: begin with bytes, and again and again join the two neighbors that occur together most.",
    ],
    go: () => "Point at a token, or click it and move on with the arrow keys: its number, its bytes, and its merges. The color is its loss: how " +
      "unexpected it was.",
    state: (facts) => ({ view: "next", token: 0, ...here(facts) }),
    look: "strip",
    at: ".chips",
    figure: "tokens",
  },
  {
    title: "A token becomes a list of numbers",
    text: ({ config }) => [
      `A number in a list says nothing about meaning. So each token owns a row of a big table: ${config.n_embd} numbers that were tuned in ` +
        `training until tokens used alike had rows alike. That row is the token’s embedding.`,
      `Order matters too. A second table has a row for each of ${count(config.n_positions)} places in the text: first, second, third. The two rows ` +
        `are added, and the sum, x, sets out on the journey.`,
    ],
    go: () => "Three strips: the row of the token, the row of the place, and their sum. Point at one of them to read the three numbers.",
    state: (facts) => ({ view: "block", head: facts.head, layer: -1 }),
    look: "block",
    at: "section:not([data-stages]):not(.all-pairs)",
    figure: "embedding",
  },
  {
    title: "Up the tower",
    text: ({ config }) => [
      `Each token has a column, and its list of numbers climbs it. On the way are ${config.n_layer} blocks, all built alike, each with numbers ` +
        `of its own. A block never replaces what comes up: it reads it, brought to a common scale (LayerNorm), and adds something. What climbs, ` +
        `carrying all that was added, is called the residual stream.`,
      "What would the model say if it had to answer half way? Each cell shows that guess. The lowest row is the token itself; above it the guess " +
        "is vague at first, and block by block it turns into the answer at the top.",
    ],
    go: () => "Walk up the last column with the arrow keys and see where the guess settles. Below the tower are the five best guesses of the cell; " +
      "pin one to follow its rank.",
    state: (facts) => ({ view: "tower", layer: facts.config.n_layer - 1, head: facts.head }),
    look: "tower",
    at: "[role=grid]",
    figure: "tower",
  },
  {
    title: "Attention: looking back",
    text: (facts) => {
      const seen = lookedAt(facts);
      const parts = seen && seen.parts.length > 1 ? ` (${seen.parts.map(percent).join(" + ")}: the word is ${seen.parts.length} tokens)` : "";
      return [
        `What a word means depends on words before it. Attention is the one place where columns meet: here a token may fetch something from the ` +
          `tokens to its left, and from itself. ` +
          (seen ? `In block ${facts.layer}, head ${facts.head}, “${seen.from}” looks back at “${seen.word}” with ` +
            `${percent(seen.share)} of its attention${parts}.` : ""),
        "Think of a meeting. Whoever needs to know something puts a question (the query, q). Everyone who spoke so far holds up a card saying what " +
          "they know about (the key, k). The better a card fits the question, the louder its holder is heard, and what is then said is the value " +
          "(v). Query, key and value are three short lists; each token makes its own from its stream, with three tables of learned numbers (matrices).",
      ];
    },
    go: () => "The last row of numbers is how much the underlined token listens to each of the others and to itself. Choose another token, and see " +
      "whom it listens to.",
    state: (facts) => ({ view: "block", part: "scores", ...here(facts) }),
    look: "block",
    at: "glass-scores",
    figure: "attention",
  },
  {
    title: "Attention, in numbers",
    text: ({ config }) => [
      `Step one: multiply the query with every key, number by number, and sum; a large sum means a good fit. Step two: divide by ` +
        `√${config.d_head}, the root of their length, so that long lists do not shout. Step three: strike out the future (the mask). Step four: a ` +
        `softmax turns the rest into weights that sum to one.`,
      "Step five: add up the values, each times its weight. That sum, z, is what was heard. It goes back through one more matrix and is added to the stream.",
    ],
    go: () => "Press Play, or the key p, and watch the table fill in. The buttons next to it go one step at a time.",
    state: (facts) => ({ view: "block", part: "attention", play: 0, token: tokenInNumbers(facts.trace), ...here(facts) }),
    look: "block",
    at: ".player",
    figure: "numbers",
  },
  {
    title: "Why there is a mask",
    text: () => [
      "The model is trained to guess each next word of a text, at all places at once. If a token could look to the right, it would simply read the " +
        "answer, and learn nothing. So everything to the right is struck out before the softmax: nearly half of the square is empty.",
      "When the model writes, the future is not there anyway, but the mask stays, as it was in training. And because nobody looks to the right, " +
        "what was computed for earlier words never changes when a new one is added. That will save a lot of work later. A model that only reads, " +
        "such as BERT, has no mask: there every token sees all others.",
    ],
    go: () => "Point at cells of the three squares: products, scaled and masked, weights. Then switch the causal mask off (a little further up) " +
      "and see the triangle become a square.",
    state: (facts) => ({ view: "block", part: "pairs", ...here(facts) }),
    look: "block",
    at: ".all-pairs",
    figure: "mask",
  },
  {
    title: "Many heads",
    text: ({ config }) => [
      `One question is seldom enough. Which word is the subject? What came just before? So a block holds ${config.n_head} meetings at once. Each ` +
        `is a head: it has its own queries, keys and values, each ${config.d_head} numbers long. Their results are laid side by side.`,
      "Nobody told the heads what to ask. In some you can read it off the picture (“the word before”); in most you cannot. Many rest on the first " +
        "token, which is their way of doing nothing.",
    ],
    go: () => `Every small square is one head’s pattern. ` +
      `${touch.matches ? "Tap one to see it large, and press “ablate”" : "Point at one to see it large, click to keep it; hold Shift and click"} ` +
      `to silence it (the technical term is ablate), and see what it did to the next word.`,
    state: (facts) => ({ view: "heads", ...here(facts) }),
    look: "heads",
    at: ".large",
    figure: "heads",
  },
  {
    title: "Then each token thinks for itself",
    text: (facts) => [
      `After the meeting everyone goes back to their desk. The second half of a block, the MLP, works on each column alone: it makes the list four ` +
        `times as wide (${facts.config.n_embd} → ${count(facts.config.d_mlp)}), lets positive numbers through and nearly silences negative ones (a ` +
        `curve called GELU does this), and presses it down again to the old width.`,
      `Two thirds of a block’s numbers are here. Much of what the model seems to know about the world is stored in these rows: a certain pattern ` +
        `in, a certain nudge out.`,
    ],
    go: () => "The strongest of the inner numbers, the neurons, are listed: the words each one reads and writes, and where in the text it fires.",
    state: (facts) => ({ view: "block", part: "mlp", ...here(facts) }),
    look: "block",
    at: "[data-stages^=ln2]",
    figure: "mlp",
  },
  {
    title: "Out at the top: a score for every word",
    text: ({ next, config }) => [
      `The stream has passed the last block and is brought to a common scale once more. Now it is compared with each of the ` +
        `${count(config.vocab_size)} rows of the token table, the same table it came from: the product with a row is that token’s score, its ` +
        `logit. “${next[0].text.trim()}” scores ${next[0].logit.toFixed(1)}.`,
      "A softmax turns all the scores into probabilities. Only the last column matters for the next word; the others have predicted words that we " +
        "can already read, which is how the model is graded in training.",
    ],
    go: () => "The table goes from product to probability. Choose a row to see the products themselves.",
    state: (facts) => ({ view: "next", ...here(facts) }),
    look: "next",
    at: ".from-vector",
    figure: "logits",
  },
  {
    title: "Choosing one",
    text: () => [
      "Always taking the most likely word sounds sensible but reads badly: the text soon runs in circles. So a word is sampled at random, and a " +
        "few settings shape the odds.",
      "A low temperature sharpens the differences, a high one levels them. Top-k keeps the best k words. Top-p keeps the fewest words that " +
        "together reach a probability of p. Min-p drops what is too unlikely compared with the favorite. What is left is scaled up to one again.",
    ],
    go: () => "Move the sliders: how many words are left and how much probability they hold is counted over the whole vocabulary. Then sample.",
    state: (facts) => ({ view: "next", temperature: 0.8, topK: 40, ...here(facts) }),
    look: "next",
    at: ".next-columns",
    figure: "sampling",
  },
  {
    title: "One word at a time, and a good memory",
    text: ({ trace, tally }) => [
      "The chosen word joins the text, and all begins again for the one after it. To climb the whole tower anew for every old word would be a " +
        "waste: since nobody may look to the right, the old columns cannot change.",
      `So the keys and values of old tokens are kept: the KV cache. Only the newest column is computed; the others merely hold up their cards. ` +
        (trace.tokens.length === 1 ? "With a longer text the gain grows."
          : `For the last of these ${trace.tokens.length} tokens that is one column instead of ${trace.tokens.length}.`) +
        " (Their queries are not needed again: a query is asked once, by its own column.) The cache costs memory (here " +
        `${count(tally.cache_bytes_per_token)} bytes for each token), and saves computing every earlier column again at each step.`,
    ],
    go: () => "Press Play: the lit column is computed, the gray ones are cached. Compare the multiplications with and without.",
    state: (facts) => ({ view: "cache", ...here(facts) }),
    look: "cache",
    at: ".cache-figures",
    figure: "cache",
  },
  {
    title: "What was learned",
    text: (facts) => [
      `That is the whole machine. All of its skill lies in the numbers of its matrices, its parameters, and they can be counted: ` +
        `${count(facts.tally.total)}. The largest part, ${percent(share(facts, (name) => name.includes(".mlp.")))}, is in the MLPs of the blocks; ` +
        `${percent(share(facts, (name) => name.includes(".attn.")))} are in attention, and ` +
        `${percent(share(facts, (name) => name.startsWith("wte") || name.startsWith("lm_head")))} in the token table.`,
      "Nobody wrote these numbers. They began as noise and were moved a little, again and again, so that the true next word became a little more likely.",
    ],
    go: () => "Every matrix is drawn to scale. The three matrices for q, k and v are stored side by side, as c_attn. Further down is the sum " +
      "for GPT-2 small from The Illustrated GPT-2, and why it is 29,184 short.",
    state: (facts) => ({ view: "tally", ...here(facts) }),
    look: "tally",
    at: "figure",
    figure: "tally",
  },
  {
    title: "Why this word?",
    text: ({ next, gradients }) => [
      `Nothing in the machine is hidden, so it can be asked: why “${next[0].text.trim()}”? Two answers. The tokens of the text are colored by ` +
        `${gradients ? "how much each of them raised or lowered its score" : "how much of their information arrived here through attention"}. And ` +
        `since every block only adds to the stream, the score is a sum: each head and each MLP has a share in it.`,
      "Such answers are measurements, not explanations: different methods may disagree, and a share says where a number came from, not what it means.",
    ],
    go: ({ gradients }) => `Choose another word${gradients ? ", or another method" : ""}. Click a bar to open the head or MLP it belongs to. ` +
      `Below, steer the model toward a word, with a slider.`,
    state: (facts) => ({ view: "why", ...here(facts) }),
    look: "why",
    at: ".owed",
    figure: "why",
  },
  {
    title: "A family of transformers",
    text: ({ config, parameters }) => [
      "The first transformer (2017) was made to translate, and had two halves: an encoder that reads a sentence, without a mask, and a decoder " +
        "that writes another. GPT-2 is the decoder alone; BERT is the encoder alone; others keep a memory of earlier passages.",
      `OpenAI published GPT-2 in four sizes, from 124 million to 1.56 billion numbers. The model here has ${config.n_layer} blocks and ` +
        `${(parameters / 1e6).toFixed(1)} million. The largest models of today still work in this way: more blocks, wider lists, more heads, more text.`,
    ],
    go: () => "Where this model belongs; below, it and the four sizes side by side, to scale.",
    state: (facts) => ({ view: "family", ...here(facts) }),
    look: "family",
    at: ".branches",
    figure: "family",
  },
  {
    title: "You’ve made it",
    text: () => [
      "You have followed a word from its bytes, through table, meetings and desks, to the top of the tower and back into the text.",
      api.offline
        ? "This page is a file with one text inside. To type a text of your own, silence heads, steer or compare two models, install GlassGPT and " +
          "start `glassgpt explore`."
        : "The page is yours now. Type a text of your own; silence heads; steer; compare two models. To show a friend what you see, use Export: " +
          "one HTML file with everything in it, which opens without a server. On this computer, the address of the page is enough.",
    ],
    go: () => "Press Escape to close the tour, or the left arrow to look back. Your own text and settings come back.",
    state: (facts) => ({ view: "next", ...here(facts) }),
    look: "strip",
    figure: "whole",
  },
];

/** What each figure shows, for those who cannot see it. @type {Record<string, string>} */
export const FIGURE_WORDS = {
  guess: "The text enters the model; bars for the most likely next words leave it.",
  tokens: "A word of the text: first bytes, then joined pieces, then its tokens with their numbers.",
  embedding: "A row of the token table plus a row of the position table give the vector that enters the first block.",
  tower: "The last token’s stream rises past the blocks; the guess grows clearer.",
  attention: "Lines from the last token to earlier ones, as thick as their weights.",
  numbers: "Query times key, divided, masked, through the softmax; bars are the weights of the underlined token; those after it are struck out.",
  mask: "A square of weights; the upper right triangle is struck out.",
  heads: "The patterns of four heads of this model.",
  mlp: "A narrow list widens fourfold, is bent, and narrows again before it is added to the stream.",
  logits: "The final vector times rows of the token table: logits and probabilities of the most likely tokens.",
  sampling: "The most likely tokens at three temperatures.",
  cache: "Columns of tokens: all but the last are kept, the last is computed.",
  tally: "Bars for the parameters of the MLPs, attention, the token table and the positions.",
  why: "The embedding, the heads, the MLPs and the biases each add to the score of the most likely word.",
  family: "Encoder and decoder side by side, the decoder alone, the encoder alone.",
  whole: "The whole way in one line: text, tokens, table, blocks, scores, word, and back to the text.",
};
