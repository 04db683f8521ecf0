// What a step of generation costs, from a model's shape alone: multiplications, and bytes of keys and values.

export const BYTES = 4; // float32, in which the Explorer computes

/** Bytes that one token leaves in the cache: a key and a value as wide as the stream, in each block. @param {ModelConfig} c */
export const bytesPerToken = (c) => 2 * c.n_layer * c.n_embd * BYTES;

/**
 * Multiplications to carry positions from..to-1 up the tower while the keys and values of those before `from` are
 * known, and to score the vocabulary at the last one. Norms, GELU and softmax, which are small, are left out; so is
 * what the mask throws away.
 * @param {ModelConfig} c
 * @param {number} from
 * @param {number} to
 */
export function multiplications(c, from, to) {
  const fixed = 4 * c.n_embd * c.n_embd + 2 * c.n_embd * c.d_mlp; // q, k, v and the projection; the MLP's two
  const places = to - from;
  const pairs = (to * (to + 1) - from * (from + 1)) / 2; // position i looks at i + 1 keys
  return c.n_layer * (places * fixed + 2 * c.n_embd * pairs) + c.n_embd * c.vocab_size;
}

/**
 * Every step of generation: the prompt, then one token at a time.
 * @param {ModelConfig} c
 * @param {number} prompt its length in tokens
 * @param {number} length of the whole text
 * @returns {CacheStep[]}
 */
export function steps(c, prompt, length) {
  /** @type {CacheStep[]} */
  const all = [];
  for (let to = prompt; to <= length; to++) {
    const from = to === prompt ? 0 : to - 1;
    const last = all.at(-1);
    const spared = from * bytesPerToken(c);
    const withCache = multiplications(c, from, to);
    const without = multiplications(c, 0, to);
    all.push({
      from,
      to,
      cached: to * bytesPerToken(c),
      spared,
      sparedSoFar: (last?.sparedSoFar ?? 0) + spared,
      withCache,
      without,
      withSoFar: (last?.withSoFar ?? 0) + withCache,
      withoutSoFar: (last?.withoutSoFar ?? 0) + without,
    });
  }
  return all;
}
