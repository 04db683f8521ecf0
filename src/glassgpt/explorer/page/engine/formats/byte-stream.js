// The bytes of a file in their order, from a download or from the disk: never more than a piece of them at a time.
import { UserError } from "../model/wasm.js";

export class ByteStream {
  #reader;
  /** @type {Uint8Array} what was read and not taken yet */
  #rest = new Uint8Array();

  /** @param {ReadableStream<Uint8Array>} stream @param {string} name @param {number} size @param {(read: number) => void} progress */
  constructor(stream, name, size, progress) {
    this.#reader = stream.getReader();
    this.name = name;
    this.size = size;
    this.progress = progress;
    this.read = 0; // taken so far
  }

  /** The next `length` bytes, piece by piece. @param {number} length @param {(piece: Uint8Array, at: number) => void} take */
  async pass(length, take) {
    for (let at = 0; at < length; ) {
      if (this.#rest.length === 0) {
        const { done, value } = await this.#reader.read();
        if (done) throw new UserError(`${this.name} ends after ${this.read.toLocaleString("en")} bytes: it is not complete. Get it again.`);
        this.#rest = value;
        this.progress(this.read + value.length);
        continue;
      }
      const piece = this.#rest.subarray(0, length - at);
      take(piece, at);
      this.#rest = this.#rest.subarray(piece.length);
      this.read += piece.length;
      at += piece.length;
    }
  }

  /** @param {number} length @returns {Promise<Uint8Array>} */
  async take(length) {
    const bytes = new Uint8Array(length);
    await this.pass(length, (piece, at) => bytes.set(piece, at));
    return bytes;
  }

  /** Bytes that were taken too early. @param {Uint8Array} bytes */
  giveBack(bytes) {
    const rest = new Uint8Array(bytes.length + this.#rest.length);
    rest.set(bytes);
    rest.set(this.#rest, bytes.length);
    this.#rest = rest;
    this.read -= bytes.length;
  }

  /** @param {number} position */
  async skipTo(position) {
    await this.pass(position - this.read, () => {});
  }

  async close() {
    await this.#reader.cancel().catch(() => {});
  }
}
