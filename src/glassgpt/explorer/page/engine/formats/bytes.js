// Bytes as text, as Python does it.

/** UTF-8, with U+FFFD for what is none. @param {Uint8Array} bytes */
export function decodeText(bytes) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** How many bytes the character at `i` has; 0 if the bytes there are not a whole character. @param {Uint8Array} b @param {number} i */
function characterLength(b, i) {
  const first = b[i];
  if (first < 0x80) return 1;
  const length = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  if (length === 0 || i + length > b.length) return 0;
  for (let j = 1; j < length; j++) if ((b[i + j] & 0xc0) !== 0x80) return 0;
  const second = b[i + 1];
  const wrong = (first === 0xe0 && second < 0xa0) || (first === 0xed && second > 0x9f) || (first === 0xf0 && second < 0x90) || (first === 0xf4 && second > 0x8f);
  return wrong ? 0 : length;
}

/** A piece of a word; bytes that are not a whole character as hex, so that they differ. @param {Uint8Array} bytes */
export function pieceText(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    const length = characterLength(bytes, i);
    text += length ? decodeText(bytes.subarray(i, i + length)) : `<${bytes[i].toString(16).padStart(2, "0")}>`;
    i += length || 1;
  }
  return text;
}

/** @param {readonly Uint8Array[]} parts */
export function concatBytes(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** A value of a file or a request in a message, cut short. @param {unknown} value */
export function shown(value) {
  const text = typeof value === "string" ? `'${value}'` : (JSON.stringify(value) ?? String(value));
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}
