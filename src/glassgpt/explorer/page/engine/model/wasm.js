// The C++ engine (backends/native/cpp), compiled to WebAssembly: its memory, and its functions by their names in
// api.cpp. It has no glue: three functions are handed in, and every function that can fail returns -1.

/** A mistake of a reader's: a file, a text or a number that cannot be used. Its message says what to do. */
export class UserError extends Error {
  /** @param {string} message @param {number} [status] @param {string | null} [field] of the request */
  constructor(message, status = 400, field = null) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** @typedef {(step: number, first: number, heads: number, values: number, rows: number, columns: number, ld: number) => void} Tap */

export class Wasm {
  /** @param {WebAssembly.Module} module */
  static async start(module) {
    /** @type {{wasm?: Wasm}} */
    const made = {};
    const nothing = () => 0;
    const imports = {
      env: {
        /** @type {(context: number, step: number, first: number, heads: number, values: number, rows: number, columns: number, ld: number) => void} */
        tap: (_context, step, first, heads, values, rows, columns, ld) => made.wasm?.tap?.(step, first, heads, values, rows, columns, ld),
        emscripten_notify_memory_growth: nothing,
      },
      wasi_snapshot_preview1: {
        proc_exit: () => {
          throw new Error("the engine ended");
        },
      },
    };
    made.wasm = new Wasm(await WebAssembly.instantiate(module, imports));
    return made.wasm;
  }

  /** @param {WebAssembly.Instance} instance */
  constructor(instance) {
    this.exports = /** @type {Record<string, any>} */ (instance.exports);
    /** @type {WebAssembly.Memory} */
    this.memory = this.exports.memory;
    /** @type {Tap | null} who sees the steps of the block that is computed */
    this.tap = null;
    this.exports._initialize();
  }

  /** Memory that starts on a cache line. @param {number} bytes @returns {number} */
  allocate(bytes) {
    const at = this.exports.glassgpt_allocate(Math.max(64, bytes)) >>> 0;
    if (!at) throw new UserError(`This tab has no memory left for ${Math.ceil(bytes / 1e6)} MB. Close others, or open a smaller model.`, 507);
    return at;
  }

  /** @param {number} at */
  free(at) {
    this.exports.glassgpt_free(at);
  }

  /** What `run` needs for a moment. @template T @param {number[]} sizes in bytes @param {(...at: number[]) => T} run @returns {T} */
  with(sizes, run) {
    /** @type {number[]} */
    const places = [];
    try {
      for (const size of sizes) places.push(this.allocate(size));
      return run(...places);
    } finally {
      for (const place of places) this.free(place);
    }
  }

  /** @param {number} at @param {number} length */
  floats(at, length) {
    return new Float32Array(this.memory.buffer, at, length);
  }

  /** @param {number} at @param {number} length */
  doubles(at, length) {
    return new Float64Array(this.memory.buffer, at, length);
  }

  /** @param {number} at @param {number} length */
  ints(at, length) {
    return new Int32Array(this.memory.buffer, at, length);
  }

  /** @param {number} at @param {number} length */
  bytes(at, length) {
    return new Uint8Array(this.memory.buffer, at, length);
  }

  /** A text of the engine's. @param {number} at */
  text(at) {
    const bytes = new Uint8Array(this.memory.buffer, at);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  /** What went wrong last. */
  failure() {
    return new UserError(`The engine: ${this.text(this.exports.glassgpt_error())}.`);
  }

  /** Call a function that returns 0, or -1 with a message. @param {string} name @param {...(number | bigint)} values */
  call(name, ...values) {
    if (this.exports[`glassgpt_${name}`](...values) !== 0) throw this.failure();
  }
}
