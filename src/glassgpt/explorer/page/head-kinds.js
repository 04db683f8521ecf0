// What a head mostly does, told from its pattern.

/** @typedef {{name: string, title: string, says: string}} Kind */

/** @type {Kind[]} */
export const KINDS = [
  { name: "previous", title: "look at the token before", says: "the token before" },
  { name: "self", title: "look at themselves", says: "itself" },
  { name: "first", title: "look at the first token", says: "the first token" },
  { name: "same", title: "look at an equal token before", says: "an equal token before" },
  { name: "induction", title: "look behind an equal token before", says: "what followed an equal token before" },
  { name: "spread", title: "look at everything alike", says: "everything alike" },
];

/** A head is said to do something when it gives at least this share of its attention to it. */
export const ENOUGH = 0.4;

/**
 * The share of a head's attention that goes to each kind of place, averaged over the tokens that have such a place.
 * @param {Uint8Array} weights (T, T) of one head, 255 for all attention @param {number[]} ids
 * @returns {Record<string, number>}
 */
export function sharesOf(weights, ids) {
  const count = ids.length;
  /** @type {Record<string, {sum: number, n: number}>} */
  const found = Object.fromEntries(KINDS.map(({ name }) => [name, { sum: 0, n: 0 }]));
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

/** How evenly a row is spread: its entropy over the largest possible one, sharpened so that only the even ones are near 1. @param {Uint8Array} row */
function evenness(row) {
  let entropy = 0;
  for (const weight of row) if (weight) entropy -= (weight / 255) * Math.log(weight / 255);
  return (entropy / Math.log(row.length)) ** 6;
}

/** The kind that a head mostly is, or null. @param {Record<string, number>} shares */
export function mainKind(shares) {
  const best = KINDS.reduce((a, b) => (shares[b.name] > shares[a.name] ? b : a));
  return shares[best.name] >= ENOUGH ? best : null;
}
