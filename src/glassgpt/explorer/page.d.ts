// The types of the page's modules and of the server's responses, global to all of them.

/** As in inspect/edits/edits.py; a test compares the two. */
interface Edit {
  kind: "ablate_head" | "ablate_neuron" | "ablate_attention" | "ablate_mlp" | "ablate_block" | "patch" | "steer" | "steer_token";
  layer?: number;
  head?: number;
  neuron?: number;
  how?: "zero" | "mean";
  step?: string;
  source?: string;
  positions?: number[];
  source_positions?: number[];
  vector?: number[];
  token?: number;
  strength?: number;
}

/** Everything in the URL. `layer` is a block's number from 0, as in Python; -1 is the embedding. */
interface State {
  text: string;
  ids: number[] | null;
  model: number;
  checkpoint: number | null;
  token: number;
  /** null, as the head's: the one that shows most of the text, once it is there */
  layer: number | null;
  head: number | null;
  view: string;
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  /** as in `glassgpt generate --seed` */
  seed: number;
  /** the number of tokens of the prompt; the rest was appended here. null: all */
  prompt: number | null;
  /** of the cache player; null: the last */
  step: number | null;
  game: boolean;
  edits: Edit[];
  second: string;
  compare: { a?: Source; b?: Source } | null;
  tour: number | null;
  theme: "auto" | "light" | "dark";
  wide: boolean;
  mask: boolean;
  part: string;
  pattern: "matrix" | "lines";
  least: number;
  filter: string;
  /** whether heads are listed by how much they are of the filter's kind */
  sort: boolean;
  /** leave out the first token, where idle heads rest their attention */
  skipFirst: boolean;
  /** further heads, drawn in colors over the current one: "6.5" */
  overlay: string[];
  /** the frame of the block's player; null: the whole block */
  play: number | null;
  speed: number;
  /** a token whose rank is followed through the lens */
  pin: number | null;
  /** the token asked about in Why; null: the most likely one */
  target: number | null;
  method: string;
  welcome: boolean;
  /** whose attention is drawn over the token strip: the cursor's head, the mean of its block, or none */
  arcs: "head" | "mean" | "off";
  /** of the page: "ko", or "" for the browser's */
  lang: string;
}

interface Source {
  model?: number;
  checkpoint?: number;
}

interface ModelConfig {
  n_layer: number;
  n_head: number;
  n_embd: number;
  d_head: number;
  vocab_size: number;
  n_positions: number;
  d_mlp: number;
}

interface ModelInfo {
  models: { name: string; config: ModelConfig; parameters: number; shipped: boolean; is_open: boolean }[];
  /** of attribution, those that work here */
  methods: string[];
  checkpoints: { name: string; step: number }[];
  limits: { tokens: number; traces: number };
  version: string;
}

interface Token {
  id: number;
  text: string;
  bytes: number[];
  word: number;
}

interface Word {
  text: string;
  first: number;
  last: number;
  merges: string[][];
}

interface TokenLoss {
  p: number;
  rank: number;
  entropy: number;
}

interface Lens {
  ids: number[][];
  texts: string[][];
  p: number[][];
}

/** The lens of some columns: the others are not known yet. */
interface SparseLens {
  ids: (number | undefined)[][];
  texts: (string | undefined)[][];
  p: (number | undefined)[][];
}

interface Trace {
  id: string;
  model: number;
  checkpoint: number | null;
  text: string;
  tokens: Token[];
  words: Word[];
  token_loss: (TokenLoss | null)[];
  lens: Lens;
  norms: number[][];
  /** the head in which the last token looks back most at one word; null for long texts, and none after an append */
  salient_head?: { layer: number; head: number; first: number; last: number; share: number } | null;
}

interface Floats {
  shape: number[];
  data: Float32Array;
}

interface Bytes {
  shape: number[];
  data: Uint8Array;
}

/** Steps of a block by the names of inspect/taps.py (a test compares them); `resid_pre` is the block's input. */
interface HeadSteps {
  resid_pre: number[];
  ln_1: number[];
  "attn.q": number[];
  "attn.k": number[][];
  "attn.v": number[][];
  "attn.scores": number[];
  "attn.scaled": number[];
  "attn.masked": (number | null)[];
  "attn.weights": number[];
  unmasked: number[];
  "attn.z": number[];
  "attn.merged": number[];
  "attn.proj": number[];
  resid_mid: number[];
}

interface MlpSteps {
  resid_mid: number[];
  ln_2: number[];
  "mlp.fc": number[];
  "mlp.gelu": number[];
  "mlp.proj": number[];
  resid_post: number[];
}

/** The lens at one position: five tokens for each layer, and the rank of each of them in all layers. */
interface LensColumn extends Lens {
  ranks: Record<string, number[]>;
}

/** One head for all pairs of tokens. */
interface ScoreMatrices {
  "attn.q": Floats;
  "attn.k": Floats;
  "attn.scores": Floats;
  "attn.scaled": Floats;
}

interface Neuron {
  neuron: number;
  reads: string[];
  writes: string[];
  activations: number[];
}

/** The head that looks back most at one word of the text, and an example of each plain kind. */
interface SalientHeads {
  position: number;
  best: { layer: number; head: number; first: number; last: number; share: number } | null;
  kinds: Record<string, { layer: number; head: number; share: number }>;
}

interface Attribution {
  scores?: number[];
  convergence_delta?: number | null;
  embedding?: number;
  heads?: number[][];
  mlps?: number[];
  biases?: number;
  total?: number;
  logit: number;
}

interface Intervention {
  logits: Floats;
  kl: number;
  changes: { id: number; text: string; before: number; after: number }[];
  /** the text, the edits and the token it belongs to */
  of: string;
  /** null while it is computed: the effect on the next token comes first */
  lens: SparseLens | null;
}

/** A custom element that shows one view. */
interface View extends HTMLElement {
  toSVG(): string;
}

interface ViewEntry {
  name: string;
  key: string;
  load?: () => Promise<unknown>;
}

/** What subscribers are notified of: a part of the state, or a result. */
type Topic = keyof State | "trace" | "info" | "status" | "intervention" | "secondTrace";

/** What can stand inside an element; false, null and undefined leave nothing. */
type Child = string | number | Node | null | undefined | false;

/** Sampling parameters; null: that filter is off. Temperature 0 is greedy. */
interface SamplingParams {
  temperature: number;
  topK: number | null;
  topP: number | null;
  minP: number | null;
}

type SamplingParam = keyof SamplingParams;

/** What a filter keeps: the number of tokens, and their probability after temperature. */
interface Cut {
  name: SamplingParam;
  count: number;
  mass: number;
}

/** One step of generation (views/cost.js). Bytes are of keys and values, the rest counts multiplications. */
interface CacheStep {
  /** the columns from..to-1 are computed with the cache, 0..to-1 without */
  from: number;
  to: number;
  cached: number;
  spared: number;
  sparedSoFar: number;
  withCache: number;
  without: number;
  withSoFar: number;
  withoutSoFar: number;
}

interface TallyRow {
  name: string;
  shape: number[];
  count: number;
  meaning?: string;
}

interface Tally {
  rows: TallyRow[];
  total: number;
  cache_bytes_per_token: number;
  /** The Illustrated GPT-2's table of GPT-2 small, and what was published */
  illustrated: (TallyRow & { published: number })[];
  illustrated_total: number;
  published_total: number;
}

/** A matrix, or a part of one, in the drawing to scale. */
interface Piece {
  row: TallyRow;
  x: number;
  y: number;
  width: number;
  height: number;
  /** whether the strip begins here */
  first: boolean;
}

/** `kl`: KL(A || B) at each position, in nats; `p_difference`: B's probability of each token minus A's. */
interface Comparison {
  a: Trace;
  b: Trace;
  kl: number[];
  p_difference: (number | null)[];
}

/** What the tour's steps and figures are made of: the page's own text and model, and its numbers. */
interface TourFacts {
  trace: Trace;
  config: ModelConfig;
  parameters: number;
  salientHeads: SalientHeads;
  /** the head that the tour shows */
  layer: number;
  head: number;
  /** its attention at the last token */
  weights: number[];
  /** its attention at the token of the step "Attention, in numbers" */
  weightsInNumbers: number[];
  /** its whole pattern, (T, T) */
  pattern: number[][];
  examples: { name: string; kind: string; pattern: number[][] }[];
  embedding: { wte: number[]; wpe: number[]; embedding: number[] };
  /** the most likely next tokens, their logits and probabilities */
  next: { text: string; logit: number; p: number }[];
  mlp: MlpSteps;
  tally: Tally;
  /** whether tokens can be colored by gradients: they need PyTorch */
  gradients: boolean;
}

interface TourStep {
  /** its messages are `tour.NAME`, and its drawing is in tour/tour-figures.js */
  name: string;
  /** the values of its two paragraphs */
  values: (facts: TourFacts) => Record<string, string | number>;
  /** the messages that take the place of `tour.NAME.1` and so on, here */
  instead?: (facts: TourFacts) => Record<string, string | undefined>;
  /** what the page shows meanwhile */
  state: (facts: TourFacts) => Partial<State>;
  /** what is lit: a view's name */
  look: string;
  /** what is scrolled to and lit within it: a selector */
  at?: string;
}
