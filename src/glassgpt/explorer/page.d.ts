// The types of the page's modules and of the server's responses, global to all of them.

/** As in inspect/edits.py; a test compares the two. */
interface Edit {
  kind: "ablate_head" | "ablate_neuron" | "ablate_attention" | "ablate_mlp" | "ablate_block" | "patch" | "steer_token";
  layer?: number;
  head?: number;
  neuron?: number;
  how?: "zero" | "mean";
  step?: string;
  source?: string;
  positions?: number[];
  source_positions?: number[];
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
  layer: number;
  head: number;
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
  models: { name: string; config: ModelConfig; parameters: number }[];
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

interface Trace {
  id: string;
  model: number;
  tokens: Token[];
  words: Word[];
  token_loss: (TokenLoss | null)[];
  lens: Lens;
  norms: number[][];
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

interface Intervention {
  logits: Floats;
  logits_before: Floats;
  kl: number;
  changes: { id: number; text: string; before: number; after: number }[];
  lens: Lens;
  kl_per_token: number[];
}

/** A custom element that shows one view. */
interface View extends HTMLElement {
  toSVG(): string;
}

interface ViewEntry {
  name: string;
  title: string;
  hint: string;
  key: string;
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

/** One step of generation (cost.js). Bytes are of keys and values, the rest counts multiplications. */
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

interface TourStep {
  title: string;
  /** paragraphs */
  text: string[];
  /** what to try on the page */
  go: string;
  /** what the page shows meanwhile */
  state: Partial<State>;
  /** what is lit: a view's name */
  look: string;
  /** what the drawing shows, for those who cannot see it */
  figure: string;
}

/** A shape of the tour's drawings: its kind, numbers, then a class or a text. */
type Shape = (string | number)[];

interface Pen {
  box(x: number, y: number, w: number, h: number, kind?: string): Shape;
  /** a box with a text in its middle */
  card(x: number, y: number, w: number, h: number, words: string, kind?: string): Shape[];
  arrow(x1: number, y1: number, x2: number, y2: number, width?: number): Shape;
  text(x: number, y: number, words: string, anchor?: string): Shape;
  /** a list of numbers as a row of n little cells */
  cells(x: number, y: number, n: number, kind?: string, seed?: number): Shape[];
  bars(x: number, y: number, sizes: number[], words: string[]): Shape[];
  /** the lower triangle of an n x n pattern of cells of size s; `dark` picks the strong ones */
  triangle(x: number, y: number, n: number, s: number, dark: (row: number, column: number) => boolean): Shape[];
}
