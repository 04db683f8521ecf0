// The safetensors file: 8 bytes of header length, a JSON header, then the arrays end to end. The header is held against
// the file first, because it can be wrong about its own length and about places and sizes of arrays.
import { shown } from "./bytes.js";
import { UserError } from "../model/wasm.js";

const HEADER_LIMIT = 2 ** 20; // that of GPT-2 XL is 60 kB
/** @type {Record<string, number>} bytes of a number */
const DTYPES = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U8: 1, BOOL: 1 };

/** @typedef {{name: string, dtype: string, shape: number[], begin: number, end: number}} StoredTensor places are from the start of the file */

/** @param {import("./byte-stream.js").ByteStream} stream @returns {Promise<{tensors: StoredTensor[], metadata: Record<string, string>}>} in the order of the file */
export async function readHeader(stream) {
  const invalid = (/** @type {string} */ what) => new UserError(`${stream.name} is not a valid safetensors file: ${what}. Get it again.`);
  if (stream.size < 8) throw invalid(`it has ${stream.size} bytes`);
  const start = new DataView((await stream.take(8)).buffer);
  const length = Number(start.getBigUint64(0, true));
  if (length > stream.size - 8) throw invalid(`its header claims ${length.toLocaleString("en")} bytes but the file has ${stream.size.toLocaleString("en")}`);
  if (length > HEADER_LIMIT) throw invalid(`its header is ${length.toLocaleString("en")} bytes; a GPT-2 needs less than ${HEADER_LIMIT.toLocaleString("en")}`);
  let values;
  try {
    values = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await stream.take(length)));
  } catch (error) {
    if (error instanceof UserError) throw error;
    throw invalid("its header is not JSON");
  }
  if (values === null || typeof values !== "object" || Array.isArray(values)) throw invalid("its header is not a JSON object");
  const { __metadata__: metadata = {}, ...described } = values;
  if (metadata === null || typeof metadata !== "object" || Object.values(metadata).some((value) => typeof value !== "string")) throw invalid("its __metadata__ is not an object of strings");
  const tensors = Object.entries(described).map(([name, value]) => storedTensor(name, value, 8 + length, invalid));
  tensors.sort((a, b) => a.begin - b.begin || a.end - b.end);
  let reached = 8 + length;
  for (const { name, begin, end } of tensors) {
    if (begin !== reached) throw invalid(`${shown(name)} ${begin < reached ? "overlaps the tensor before it" : "leaves a hole before it"}`);
    reached = end;
  }
  if (reached !== stream.size) throw invalid(`its tensors end at byte ${reached.toLocaleString("en")} but the file at byte ${stream.size.toLocaleString("en")}`);
  return { tensors, metadata };
}

/** @param {string} name @param {any} value @param {number} base @param {(what: string) => UserError} invalid @returns {StoredTensor} */
function storedTensor(name, value, base, invalid) {
  const { dtype, shape, data_offsets: offsets } = value ?? {};
  if (value === null || typeof value !== "object" || Object.keys(value).sort().join() !== "data_offsets,dtype,shape") throw invalid(`${shown(name)} is not described by dtype, shape and data_offsets`);
  if (typeof dtype !== "string" || !Object.hasOwn(DTYPES, dtype)) throw invalid(`${shown(name)} has dtype ${shown(dtype)}, which GPT-2 weights do not use`);
  const sizes = (/** @type {unknown} */ list) => Array.isArray(list) && list.every((n) => Number.isSafeInteger(n) && n >= 0);
  if (!sizes(shape) || !sizes(offsets) || offsets.length !== 2) throw invalid(`${shown(name)} has shape ${shown(shape)} and data_offsets ${shown(offsets)}`);
  const needed = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, DTYPES[dtype]);
  if (offsets[1] - offsets[0] !== needed) throw invalid(`${shown(name)} of shape ${shown(shape)} takes ${needed.toLocaleString("en")} bytes, its offsets ${shown(offsets)} say otherwise`);
  return { name, dtype, shape, begin: base + offsets[0], end: base + offsets[1] };
}
