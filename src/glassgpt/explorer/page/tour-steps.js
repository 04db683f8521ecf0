// The text of the guided tour. Each step stands alone; `state` is what the page shows, `look` the highlighted view.

/** @type {TourStep[]} */
export const STEPS = [
  {
    title: "What is a language model?",
    text: [
      "Your phone offers three words above its keyboard. It has read enough to know what tends to follow what. A language model is that and nothing more: text goes in, and out comes a probability for every word that could be next.",
      "GPT-2 does it so well that its guesses, strung together, read like prose. This page shows a real one at work on a real text. No number here is invented.",
    ],
    go: "The bars are the model’s ten likeliest next words. Press a digit to take one, and watch it guess again.",
    state: { view: "next", token: -1 },
    look: "next",
    figure: "A text enters a box; bars for three possible next words leave it.",
  },
  {
    title: "Text becomes tokens",
    text: [
      "The model has never met a letter. It knows a fixed list of pieces: frequent words whole, rare words in parts, and, if need be, single bytes, so no text is beyond it. A piece is called a token, and all the model gets is its number in the list.",
      "The list was learned by one rule: begin with bytes, and again and again join the two neighbours that occur together most.",
    ],
    go: "Hover over a token or move to it with the arrow keys: its number, its bytes, and its merges. The colour is its loss: how unexpected it was.",
    state: { token: 0 },
    look: "strip",
    figure: "The word unseen: first letters, then the pieces un and seen, then their two numbers.",
  },
  {
    title: "A token becomes a list of numbers",
    text: [
      "A number in a list says nothing about meaning. So each token owns a row of a big table: a few hundred numbers that were tuned in training until tokens used alike had rows alike. That row is the token’s embedding.",
      "Order matters too. A second table has a row for each place in the text: first, second, third. The two rows are added, and the sum sets out on the journey.",
    ],
    go: "The lowest row of the tower is this sum, before any block has touched it.",
    state: { token: 0, layer: -1, view: "block" },
    look: "tower",
    figure: "A row from the token table plus a row from the position table give the vector that enters the first block.",
  },
  {
    title: "Up the tower",
    text: [
      "Each token has a column, and its list of numbers climbs it. On the way stand blocks, all built alike, each with numbers of its own. A block never replaces what comes up: it reads it and adds something. What climbs is therefore called the residual stream.",
      "What would the model say if it had to answer half way? Each cell shows that guess. Low down it is vague; block by block it becomes the answer at the top.",
    ],
    go: "Walk up the last column with the arrow keys and see where the guess settles.",
    state: { token: -1, layer: 0 },
    look: "tower",
    figure: "A stream rises past two blocks; each reads from it and adds back into it. The guess grows clearer.",
  },
  {
    title: "Attention: looking back",
    text: [
      "What does “it” mean? That depends on words before it. Attention is the one place where columns meet: here a token may fetch something from the tokens to its left.",
      "Think of a meeting. Whoever needs to know something puts a question (the query). Everyone who spoke before holds up a card saying what they know about (the key). The better a card fits the question, the louder its holder is heard, and what is then said is the value. Query, key and value are three short lists, each made from the stream by a matrix.",
    ],
    go: "Choose a token: the block shows whom it listens to, and how much.",
    state: { view: "block", part: "attention", token: -1, layer: 1 },
    look: "block",
    figure: "The last of four tokens asks; lines of different thickness run to the three before it and to itself.",
  },
  {
    title: "Attention, in numbers",
    text: [
      "Step one: multiply the query with every key; a large product means a good fit. Divide by the square root of their length, so that long lists do not shout. Step two: strike out everything to the right, for at the time of writing the future is not there; that is the mask. A softmax turns the rest into weights that sum to one.",
      "Step three: add up the values, each times its weight. The sum goes back through a matrix and is added to the stream.",
    ],
    go: "Follow the rows of the open block. Switch the mask off to see what a reader of whole sentences, such as BERT, would look at.",
    state: { view: "block", part: "attention", token: -1, layer: 1, mask: true },
    look: "block",
    figure: "A square of scores; the upper right triangle is struck out; each row that remains sums to one.",
  },
  {
    title: "Many heads",
    text: [
      "One question is seldom enough. Which word is the subject? What came just before? Is there an open quotation? So a block holds several meetings at once. Each is a head: it has its own queries, keys and values, on its own slice of the list.",
      "Nobody told the heads what to ask. In some you can read it off the picture (“the word before”, “the first word”); in most you cannot.",
    ],
    go: "Every small square is one head’s pattern. Click one to make it large; hold Shift and click to silence it, and see what it did to the next word.",
    state: { view: "heads" },
    look: "heads",
    figure: "Four small triangles with different patterns: the word before, the first word, itself, spread out.",
  },
  {
    title: "Then each token thinks for itself",
    text: [
      "After the meeting everyone goes back to their desk. The second half of a block works on each column alone: it makes the list four times as wide, lets a bend called GELU hold back whatever is negative, and presses it down again to the old width.",
      "Two thirds of a block’s numbers are here. Much of what the model seems to know about the world is stored in these rows: a certain pattern in, a certain nudge out.",
    ],
    go: "Open the second half of the block: the strongest of its inner numbers are drawn.",
    state: { view: "block", part: "mlp", token: -1, layer: 1 },
    look: "block",
    figure: "A narrow list widens fourfold, is bent, and narrows again before it is added to the stream.",
  },
  {
    title: "Out at the top: a score for every word",
    text: [
      "The stream has passed the last block and is normalised once more. Now it is compared with every row of the token table, the same table it came from: the product with a row is that token’s score, its logit.",
      "A softmax turns all the scores into probabilities. Only the last column matters for the next word; the others have predicted words that we can already read, which is how the model is marked in training.",
    ],
    go: "These probabilities belong to the lit token. Go to another one to see what the model expected there.",
    state: { view: "next", token: -1 },
    look: "next",
    figure: "The final vector is multiplied with each row of the table; one score for each token comes out, then bars.",
  },
  {
    title: "Choosing one",
    text: [
      "To take the likeliest word every time sounds wise and reads badly: the text soon runs in circles. So a word is sampled at random, and a few parameters shape the odds.",
      "A low temperature sharpens the differences, a high one levels them. Top-k keeps the best k words. Top-p keeps the fewest words that together reach a probability of p. Min-p drops what is too unlikely beside the favourite. What is left is scaled up to one again.",
    ],
    go: "Move the sliders: how many words are left and how much probability they hold is counted over the whole vocabulary. Then sample.",
    state: { view: "next", token: -1, temperature: 0.8, topK: 40 },
    look: "next",
    figure: "Bars at low, middle and high temperature, and a line that cuts off the tail.",
  },
  {
    title: "One word at a time, and a good memory",
    text: [
      "The chosen word joins the text, and all begins again for the one after it. To climb the whole tower anew for every old word would be a waste: since nobody may look to the right, the old columns cannot change.",
      "So their keys and values are kept: the KV cache. Only the newest column is computed; the others merely hold up their cards. It costs memory and saves nearly all the work.",
    ],
    go: "Press play: one column is lit, the grey ones are cached. Compare the multiplications with and without.",
    state: { view: "cache" },
    look: "cache",
    figure: "Four columns: three grey and remembered, one lit and computed; an arrow leads its word back to the text.",
  },
  {
    title: "What was learned",
    text: [
      "That is the whole machine. All of its skill lies in the numbers of its matrices, and they can be counted: the token table, the position table, and then for every block four large matrices and a handful of small vectors.",
      "Nobody wrote these numbers. They began as noise and were moved a little, again and again, so that the true next word became a little likelier.",
    ],
    go: "Every matrix is drawn to scale. Beside it stands a well-known article’s own sum for GPT-2 small, and why it is 29,184 short.",
    state: { view: "tally" },
    look: "tally",
    figure: "Strips in proportion: a long one for the token table, shorter ones for each block.",
  },
  {
    title: "You’ve made it",
    text: [
      "You have followed a word from its bytes, through table, meetings and desks, to the top of the tower and back into the text. The largest models of today still work in this way: more blocks, wider lists, more heads, more text.",
      "The page is yours now. Type a text of your own; silence heads; steer; compare two models. The address holds everything you see, so it can be sent to a friend.",
    ],
    go: "Press Escape to close the tour, or the left arrow to look back.",
    state: { view: "next", token: -1, temperature: 1, topK: 0 },
    look: "strip",
    figure: "The whole way in one line: text, tokens, table, blocks, scores, word, and back to the text.",
  },
];
