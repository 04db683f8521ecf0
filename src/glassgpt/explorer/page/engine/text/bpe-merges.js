// Merging pairs of ids (tokenizer/bpe.py): everywhere, or in a long word with a heap.

const HIGHEST_ID = 2 ** 24;

/** Replace every occurrence of the pair, from left to right, by its merged id. @param {number[]} ids @param {[number, number]} pair @param {number} made */
export function mergePair(ids, [left, right], made) {
  const result = [];
  for (let i = 0; i < ids.length; i++) {
    const both = ids[i] === left && ids[i + 1] === right;
    result.push(both ? made : ids[i]);
    if (both) i++;
  }
  return result;
}

/**
 * The same merges for a long word: a linked list of pieces, and the pairs that can be merged by rank and place.
 * @param {number[]} word @param {Map<number, {rank: number, made: number}>} ranks
 */
export function mergeLong(word, ranks) {
  const ids = word.slice();
  const n = ids.length;
  const after = Int32Array.from(ids, (_, i) => i + 1);
  const before = Int32Array.from(ids, (_, i) => i - 1);
  /** @type {Heap} */
  const heap = new Heap();
  const look = (/** @type {number} */ i) => {
    const j = i < 0 ? n : after[i];
    const found = j < n ? ranks.get(ids[i] * HIGHEST_ID + ids[j]) : undefined;
    if (found) heap.push({ key: found.rank * 2 ** 32 + i, made: found.made, i, left: ids[i], right: ids[j] });
  };
  for (let i = 0; i < n - 1; i++) look(i);
  for (let one = heap.pop(); one; one = heap.pop()) {
    const { made, i, left, right } = one;
    const j = after[i];
    if (ids[i] !== left || j >= n || ids[j] !== right) continue; // one of the two was merged with its other neighbor
    ids[i] = made;
    ids[j] = -1;
    after[i] = after[j];
    if (after[i] < n) before[after[i]] = i;
    look(i);
    look(before[i]);
  }
  return ids.filter((id) => id >= 0);
}

/** @typedef {{key: number, made: number, i: number, left: number, right: number}} Candidate */

/** The smallest key first. */
class Heap {
  constructor() {
    /** @type {Candidate[]} */
    this.items = [];
  }

  /** @param {Candidate} item */
  push(item) {
    const { items } = this;
    let at = items.push(item) - 1;
    for (let up = (at - 1) >> 1; at > 0 && items[up].key > item.key; at = up, up = (at - 1) >> 1) items[at] = items[up];
    items[at] = item;
  }

  pop() {
    const { items } = this;
    const first = items[0];
    const last = items.pop();
    if (items.length === 0 || last === undefined) return first;
    let at = 0;
    for (;;) {
      let down = 2 * at + 1;
      if (down + 1 < items.length && items[down + 1].key < items[down].key) down++;
      if (down >= items.length || items[down].key >= last.key) break;
      items[at] = items[down];
      at = down;
    }
    items[at] = last;
    return first;
  }
}
