// From logits to the distribution that is sampled: the counterpart of generate/sampling/sampler.py in the browser.
//
// temperature -> top-k -> top-p -> min-p -> draw, each step on what the previous one kept. Tokens are ranked by
// logit, lower ids first among equals. In that order every filter keeps a beginning of the ranking, so a filter is
// one number: how many tokens are left. Ranking is done once for each new row of logits; what a slider moves is one
// pass over arrays that were made before (50,257 tokens: about 1 ms).

export class Sampler {
  /** @param {Float32Array} logits one row, of any length */
  constructor(logits) {
    this.size = logits.length;
    this.order = ranked(logits); // rank -> id
    this.rankOf = new Uint32Array(this.size); // id -> rank
    this.values = new Float64Array(this.size); // by rank, from here on
    this.plain = new Float64Array(this.size); // the model's own probability, before any setting
    this.weight = new Float64Array(this.size);
    let total = 0;
    for (let rank = 0; rank < this.size; rank++) {
      this.rankOf[this.order[rank]] = rank;
      this.values[rank] = logits[this.order[rank]];
      total += this.plain[rank] = Math.exp(this.values[rank] - this.values[0]);
    }
    for (let rank = 0; rank < this.size; rank++) this.plain[rank] /= total;
    /** @type {Cut[]} */
    this.cuts = (/** @type {SamplingParam[]} */ (["temperature", "topK", "topP", "minP"])).map((name) => ({ name, count: this.size, mass: 1 }));
    this.kept = this.size;
    this.total = total; // the weight of the kept ones
    this.whole = total; // the weight of all
  }

  /** Apply the parameters; updates `cuts`, `kept` and `probability`. @param {SamplingParams} params */
  apply({ temperature, topK, topP, minP }) {
    const { values, weight, size } = this;
    const greedy = temperature === 0;
    let whole = 0;
    for (let rank = 0; rank < size; rank++) {
      // The best is subtracted first, so that a temperature near 0 cannot overflow.
      whole += weight[rank] = greedy ? +(rank === 0) : Math.exp((values[rank] - values[0]) / temperature);
    }
    let kept = size;
    while (kept > 1 && values[kept - 1] === -Infinity) kept--;
    if (greedy) kept = 1;
    this.whole = whole;
    this.#cut(0, kept);
    if (topK !== null) kept = Math.min(kept, Math.max(1, topK));
    let total = this.#cut(1, kept);
    if (topP !== null && topP < 1 && !greedy) {
      let before = 0;
      let rank = 0;
      while (rank < kept && before < topP * total) before += weight[rank++]; // the one that crosses stays
      kept = Math.max(1, rank);
    }
    this.#cut(2, kept);
    if (minP !== null) while (kept > 1 && weight[kept - 1] < minP * weight[0]) kept--;
    total = this.#cut(3, kept);
    this.kept = kept;
    this.total = total;
    return this;
  }

  /** Note what is left after filter `i`; returns its weight. @param {number} i @param {number} kept */
  #cut(i, kept) {
    let total = this.whole;
    if (kept < this.size) {
      total = 0;
      for (let rank = 0; rank < kept; rank++) total += this.weight[rank];
    }
    this.cuts[i].count = kept;
    this.cuts[i].mass = total / this.whole;
    return total;
  }

  /** The chance that a draw takes the token of this rank. @param {number} rank */
  probability(rank) {
    return rank < this.kept ? this.weight[rank] / this.total : 0;
  }

  /** The rank that a number in [0, 1) draws. @param {number} uniform */
  draw(uniform) {
    let sum = 0;
    for (let rank = 0; rank < this.kept; rank++) {
      sum += this.weight[rank];
      if (sum > uniform * this.total) return rank;
    }
    return 0; // rounding left none: the first that was kept, as in Python
  }
}

/**
 * Ids in falling order of their logits, lower ids first among equals: a radix sort, two passes of 16 bits.
 * @param {Float32Array} logits
 * @returns {Uint32Array}
 */
export function ranked(logits) {
  const size = logits.length;
  const keys = new Uint32Array(size); // smaller for larger logits
  const floats = new Float32Array(1);
  const bits = new Int32Array(floats.buffer);
  for (let i = 0; i < size; i++) {
    floats[0] = logits[i] + 0; // -0 becomes 0
    const b = bits[0];
    keys[i] = ~((b ^ ((b >> 31) & 0x7fffffff)) ^ 0x80000000);
  }
  let from = Uint32Array.from({ length: size }, (_, i) => i);
  let to = new Uint32Array(size);
  const starts = new Uint32Array(65537);
  for (const shift of [0, 16]) {
    starts.fill(0);
    for (let i = 0; i < size; i++) starts[((keys[i] >>> shift) & 0xffff) + 1]++;
    for (let i = 0; i < 65536; i++) starts[i + 1] += starts[i];
    for (let i = 0; i < size; i++) to[starts[(keys[from[i]] >>> shift) & 0xffff]++] = from[i];
    [from, to] = [to, from];
  }
  return from;
}

const WORD = (1n << 64n) - 1n;

/**
 * The random number of a step under a seed: the same as Python's generate/sampling/rng.py (Philox 4x64, ten rounds),
 * so that a sample drawn here can be drawn again on the command line.
 * @param {number|bigint} seed
 * @param {number} step
 * @returns {number} in [0, 1)
 */
export function uniform(seed, step) {
  let [a, b, c, d] = [BigInt(Math.floor(step / 4)) + 1n, 0n, 0n, 0n];
  let [low, high] = [BigInt(seed) & WORD, 0n];
  for (let round = 0; round < 10; round++) {
    const x = 0xd2e7470ee14c6c93n * a;
    const y = 0xca5a826395121157n * c;
    [a, b, c, d] = [(y >> 64n) ^ b ^ low, y & WORD, (x >> 64n) ^ d ^ high, x & WORD];
    low = (low + 0x9e3779b97f4a7c15n) & WORD;
    high = (high + 0xbb67ae8584caa73bn) & WORD;
  }
  return Number([a, b, c, d][step % 4] >> 11n) * 2 ** -53;
}
