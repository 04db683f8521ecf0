// Matrices drawn to scale. One side of every GPT-2 matrix is the width of the residual stream, so each is a strip of that
// height. The embedding tables come first, wrapped at the edge; below them the blocks, as many per line as keep the
// figure low enough to be seen without scrolling.

const GAP = 2;
const BETWEEN = 10; // blocks

/**
 * @param {TallyRow[]} rows in the order data meets them
 * @param {number} stream width of the residual stream
 * @param {number} width of the drawing
 * @param {number} [most] how high it should be at most
 * @returns {{pieces: Piece[], height: number, perPixel: number}}
 */
export function strips(rows, stream, width, most = 340) {
  for (let inLine = 1; ; inLine++) {
    const made = layOut(rows, stream, width, inLine);
    if (made.height <= most || inLine >= 6) return made;
  }
}

/** @param {TallyRow[]} rows @param {number} stream @param {number} width @param {number} inLine blocks in each line */
function layOut(rows, stream, width, inLine) {
  const matrices = rows.filter((row) => row.shape.length === 2);
  const long = (/** @type {TallyRow} */ row) => row.count / stream;
  const blockOf = (/** @type {TallyRow} */ row) => (row.name.startsWith("h.") ? Number(row.name.split(".")[1]) : null);
  const block = matrices.filter((row) => blockOf(row) === 0);
  const column = (width - (inLine - 1) * BETWEEN) / inLine;
  const scale = (column - (block.length - 1) * GAP) / block.reduce((sum, row) => sum + long(row), 0);
  const height = stream * scale;
  /** @type {Piece[]} */
  const pieces = [];
  let [x, y] = [0, 0];
  let before = null;
  for (const row of matrices) {
    const number = blockOf(row);
    if (number !== before) {
      // a block begins, or the blocks are over
      const newLine = number === null || number % inLine === 0;
      if (newLine && pieces.length > 0) [x, y] = [0, y + height + (number === 0 || number === null ? 3 : 1) * (GAP + 2)];
      else x = (number ?? 0) % inLine * (column + BETWEEN);
    }
    before = number;
    let left = long(row) * scale;
    for (let first = true; first || left > 0.01; first = false) {
      if (x >= width - 1) [x, y] = [0, y + height + GAP];
      const part = number === null ? Math.min(left, width - x) : left;
      pieces.push({ row, x, y, width: Math.max(0.5, part), height, first });
      left -= part;
      x += part + GAP;
    }
  }
  return { pieces, height: y + height, perPixel: 1 / (scale * scale) };
}
