// Matrices drawn to scale. Every matrix of a GPT-2 has one side as wide as the stream, so each is a strip of that
// height, as long as its other side; strips follow each other like words and are broken at the edge like a long
// one. A vector is one number high: a hairline below its matrix.

/**
 * @typedef {object} Row of the tally
 * @property {string} name
 * @property {number[]} shape
 * @property {number} count
 */

/**
 * @typedef {object} Piece
 * @property {Row} row
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 * @property {boolean} first whether the strip begins here
 * @property {boolean} last whether it ends here
 */

/**
 * @param {Row[]} rows in the order data meets them
 * @param {number} stream width of the residual stream
 * @param {number} width of the drawing
 * @param {number} [lines] how many lines the longest strip may take
 * @returns {{pieces: Piece[], height: number, strip: number, perPixel: number}}
 */
export function strips(rows, stream, width, lines = 3) {
  const gap = 3;
  const matrices = rows.filter((row) => row.shape.length === 2);
  const long = (/** @type {Row} */ row) => row.count / stream;
  const longest = Math.max(...matrices.map(long));
  const all = matrices.reduce((sum, row) => sum + long(row), 0);
  // At most 56 pixels high: a model with few tokens would fill the screen with its embedding.
  const scale = Math.min((lines * width) / longest, 56 / stream, (9 * width) / all);
  const strip = Math.max(4, stream * scale);
  /** @type {Piece[]} */
  const pieces = [];
  let [x, y] = [0, 0];
  let block = "";
  for (const row of matrices) {
    const name = row.name.startsWith("h.") ? row.name.split(".")[1] : row.name;
    let left = long(row) * scale;
    if (x > 0 && name !== block) x += 3 * gap; // a block begins
    block = name;
    if (x > 0 && x + left > width && (left <= width || x > width / 2)) [x, y] = [0, y + strip + 4 * gap];
    for (let first = true; left > 0.01 || first; first = false) {
      const part = Math.min(left, width - x);
      left -= part;
      pieces.push({ row, x, y, width: Math.max(1, part), height: strip, first, last: left <= 0.01 });
      x += part + gap;
      if (left > 0.01) [x, y] = [0, y + strip + gap];
    }
  }
  return { pieces, height: y + strip, strip, perPixel: 1 / (scale * scale) };
}
