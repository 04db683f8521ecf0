// The operations of a trace on plain and typed arrays (inspect/arrays.py).

/** A list for JSON: what is not finite becomes null. @param {ArrayLike<number>} values @returns {(number | null)[]} */
export function list(values) {
  return Array.from(values, (x) => (Number.isFinite(x) ? x : null));
}

/** Rows of a matrix as lists. @param {Float32Array} data @param {number} columns @returns {(number | null)[][]} */
export function lists(data, columns) {
  return Array.from({ length: data.length / columns }, (_, i) => list(data.subarray(i * columns, (i + 1) * columns)));
}

/** @param {Float32Array} data @param {number} row @param {number} columns */
export function rowOf(data, row, columns) {
  return data.subarray(row * columns, (row + 1) * columns);
}

/** @param {ArrayLike<number>} x */
export function normOf(x) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * x[i];
  return Math.sqrt(sum);
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** @param {ArrayLike<number>} logits @returns {Float64Array} */
export function logSoftmax(logits) {
  const wide = Float64Array.from(logits);
  let best = -Infinity;
  for (const x of wide) if (x > best) best = x;
  let sum = 0;
  for (const x of wide) sum += Math.exp(x - best);
  const total = best + Math.log(sum);
  for (let i = 0; i < wide.length; i++) wide[i] -= total;
  return wide;
}

/** KL(p || q) in nats. @param {Float64Array} logP @param {Float64Array} logQ */
export function klDivergence(logP, logQ) {
  let sum = 0;
  for (let i = 0; i < logP.length; i++) if (logP[i] > -Infinity) sum += Math.exp(logP[i]) * (logP[i] - logQ[i]);
  return Math.max(0, sum); // rounding may make it slightly negative
}

/** The indices of the k largest values, the largest first, of equals the lower index. @param {ArrayLike<number>} x @param {number} k @returns {number[]} */
export function largest(x, k) {
  /** @type {number[]} */
  const found = [];
  for (let i = 0; i < x.length; i++) {
    if (found.length === k && !(x[i] > x[found[k - 1]])) continue;
    if (found.length === k) found.pop();
    let at = found.length;
    while (at > 0 && x[i] > x[found[at - 1]]) at--;
    found.splice(at, 0, i);
  }
  return found;
}

/** The rank of an id: one plus the number of larger values. @param {ArrayLike<number>} x @param {number} id */
export function rankOf(x, id) {
  let larger = 0;
  for (let i = 0; i < x.length; i++) if (x[i] > x[id]) larger++;
  return larger + 1;
}

/** @param {ArrayLike<number>} x @returns {Float32Array} */
export function softmax(x) {
  let best = -Infinity;
  for (let i = 0; i < x.length; i++) if (x[i] > best) best = x[i];
  const weights = Float64Array.from(x, (one) => Math.exp(one - best));
  let sum = 0;
  for (const one of weights) sum += one;
  return Float32Array.from(weights, (one) => one / sum);
}
