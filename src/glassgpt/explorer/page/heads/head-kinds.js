// What a head mostly attends to, from its attention pattern.

/** In words they are `kind.NAME`. */
export const KINDS = ["previous", "self", "first", "same", "induction", "spread"];

/** The fraction of its attention that makes a head one of a kind. */
export const THRESHOLD = 0.4;

/**
 * The fraction of a head's attention that each kind gets, averaged over the tokens that have such a position.
 * @param {Uint8Array} weights (T, T) of one head, 255 for all attention @param {number[]} ids
 * @returns {Record<string, number>}
 */
export function attentionByKind(weights, ids) {
  const count = ids.length;
  /** @type {Record<string, {sum: number, n: number}>} */
  const found = Object.fromEntries(KINDS.map((name) => [name, { sum: 0, n: 0 }]));
  /** @param {string} name @param {number} share */
  const add = (name, share) => {
    found[name].sum += share;
    found[name].n += 1;
  };
  /** @type {Map<number, number[]>} */
  const places = new Map();
  for (let query = 0; query < count; query++) {
    const row = weights.subarray(query * count, query * count + query + 1);
    const equal = places.get(ids[query]) ?? [];
    if (query > 1) {
      add("previous", row[query - 1] / 255);
      add("self", row[query] / 255);
      add("first", row[0] / 255);
      add("spread", evenness(row));
    }
    if (equal.length) {
      add("same", equal.reduce((sum, key) => sum + row[key], 0) / 255);
      add("induction", equal.reduce((sum, key) => sum + row[key + 1], 0) / 255);
    }
    places.set(ids[query], [...equal, query]);
  }
  return Object.fromEntries(Object.entries(found).map(([name, { sum, n }]) => [name, n ? sum / n : 0]));
}

/** −a log a of each weight a that a byte can tell. */
const ENTROPY = Float64Array.from({ length: 256 }, (_, weight) => (weight ? -(weight / 255) * Math.log(weight / 255) : 0));

/** How uniform a row is: its entropy over the maximum, sharpened so that only uniform rows are near 1. @param {Uint8Array} row */
function evenness(row) {
  let entropy = 0;
  for (let i = 0; i < row.length; i++) entropy += ENTROPY[row[i]];
  return (entropy / Math.log(row.length)) ** 6;
}

/** The main kind of a head, or null. @param {Record<string, number>} shares */
export function mainKind(shares) {
  const best = KINDS.reduce((a, b) => (shares[b] > shares[a] ? b : a));
  return shares[best] >= THRESHOLD ? best : null;
}
