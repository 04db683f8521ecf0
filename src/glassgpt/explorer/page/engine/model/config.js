// The shape of a GPT-2 from its config.json, checked as in glassgpt/config: whatever would change the computation in a
// way that GPT-2 as published does not have is refused.
import { shown } from "../formats/bytes.js";
import { UserError } from "./wasm.js";

/**
 * @typedef {object} Config
 * @property {number} vocab_size @property {number} n_positions @property {number} n_embd @property {number} n_layer
 * @property {number} n_head @property {number} d_head @property {number} d_mlp @property {string} activation_function
 * @property {number} layer_norm_epsilon @property {boolean} scale_attn_weights
 * @property {boolean} scale_attn_by_inverse_layer_idx @property {boolean} tie_word_embeddings
 * @property {number | null} bos_token_id @property {number[]} eos_token_ids
 */

/** In the order of `Activation` in cpp/kernels.h. @type {Record<string, number>} */
export const ACTIVATIONS = { gelu_new: 0, gelu_pytorch_tanh: 0, gelu_fast: 0, gelu: 1, relu: 2, silu: 3, swish: 3, tanh: 4 };

/** @type {Record<string, string>} names that transformers takes for ours */
const ALIASES = { hidden_size: "n_embd", num_hidden_layers: "n_layer", num_attention_heads: "n_head", max_position_embeddings: "n_positions" };

// Keys of other architectures, with what leaves GPT-2 as it is (config/foreign_keys.py).
const OFF = `add_cross_attention is_encoder_decoder quantization_config compression_config pruned_heads
  rope_theta rope_scaling rope_parameters rotary rotary_dim rotary_pct rotary_emb_base
  rotary_emb_fraction use_rotary use_rope alibi use_alibi multi_query parallel_attn
  use_parallel_residual sliding_window use_sliding_window attention_window qk_layernorm
  qk_norm use_qk_norm attn_logit_softcapping final_logit_softcapping mup_scale_qk_dot_by_d
  peft_config lora_config`.split(/\s+/);
const SCALES = "embeddings_scale mup_embeddings_scale mup_output_alpha mup_width_scale".split(" ");
const KEY_HEADS = "num_key_value_heads num_kv_heads n_head_kv n_kv_head n_kv_heads".split(" ");

const LARGEST = 2 ** 40;
const WIDEST = 2 ** 16; // inputs of a matrix, in the engine

/** @param {unknown} value */
function isOff(value) {
  return !value || (Array.isArray(value) && value.length === 0) || (typeof value === "object" && Object.keys(/** @type {object} */ (value)).length === 0);
}

/** @param {any} values the contents of a config.json @param {string} file its name @returns {Config} */
export function readConfig(values, file = "config.json") {
  if (values === null || typeof values !== "object" || Array.isArray(values)) throw new UserError(`${file} is not a JSON object.`);
  if ((values.model_type ?? "gpt2") !== "gpt2") throw new UserError(`${file}: model_type ${shown(values.model_type)} is not 'gpt2'. Only GPT-2-family models load.`);
  const known = { ...values };
  for (const [alias, name] of Object.entries(ALIASES)) {
    if (values[alias] === undefined || values[alias] === null) continue;
    known[name] ??= values[alias];
    if (known[name] !== values[alias]) throw new UserError(`${file}: ${alias} ${shown(values[alias])} and ${name} ${shown(known[name])} contradict each other. Correct one of the two.`);
  }
  const missing = ["vocab_size", "n_embd", "n_layer", "n_head"].filter((name) => known[name] === undefined);
  if (missing.length) throw new UserError(`${file} has no ${missing.join(", ")}. Add the missing key and its number.`);
  known.n_positions ??= values.n_ctx ?? 1024;
  const [bos] = listedIds(file, "bos_token_id", known.bos_token_id);
  const eos = listedIds(file, "eos_token_id", known.eos_token_id);
  const config = checked(file, known, bos ?? null, eos);
  refuseOthers(file, values, config);
  return config;
}

/** @param {string} file @param {any} known @param {number | null} bos @param {number[]} eos @returns {Config} */
function checked(file, known, bos, eos) {
  for (const name of ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"]) checkCount(file, name, known[name]);
  const inner = known.n_inner ?? null;
  if (inner !== null) checkCount(file, "n_inner", inner);
  const { n_embd, n_head } = known;
  if (n_embd % n_head) throw new UserError(`${file}: n_embd ${n_embd} is not a multiple of n_head ${n_head}: every head must be equally wide. Change one of the two.`);
  const activation = known.activation_function ?? "gelu_new";
  if (typeof activation !== "string" || !Object.hasOwn(ACTIVATIONS, activation)) throw new UserError(`${file}: activation_function ${shown(activation)} is not one of ${Object.keys(ACTIVATIONS).join(", ")}.`);
  if ((known.attention ?? "causal") !== "causal") throw new UserError(`${file}: attention ${shown(known.attention)} needs PyTorch. Open this model with: glassgpt explore`);
  const epsilon = known.layer_norm_epsilon ?? 1e-5;
  if (typeof epsilon !== "number" || !(epsilon > 0 && epsilon < LARGEST)) throw new UserError(`${file}: layer_norm_epsilon ${shown(epsilon)} is not a sensible number above 0.`);
  const flags = { scale_attn_weights: true, scale_attn_by_inverse_layer_idx: false, tie_word_embeddings: true };
  const chosen = Object.fromEntries(Object.entries(flags).map(([name, usual]) => {
    const value = known[name] ?? usual;
    if (typeof value !== "boolean") throw new UserError(`${file}: ${name} is ${shown(value)}; write true or false.`);
    return [name, value];
  }));
  const d_mlp = inner ?? 4 * n_embd;
  if (Math.max(n_embd, d_mlp) > WIDEST || Math.max(known.vocab_size, known.n_positions, known.n_layer) > 2 ** 24) throw new UserError(`${file}: the model is too wide for a browser.`);
  return {
    vocab_size: known.vocab_size, n_positions: known.n_positions, n_embd, n_layer: known.n_layer, n_head, d_head: n_embd / n_head, d_mlp,
    activation_function: activation, layer_norm_epsilon: epsilon, .../** @type {any} */ (chosen), bos_token_id: bos, eos_token_ids: eos,
  };
}

/** @param {string} file @param {string} name @param {unknown} value */
function checkCount(file, name, value) {
  if (!Number.isInteger(value) || /** @type {number} */ (value) < 1) throw new UserError(`${file}: ${name} is ${shown(value)}; it must be a whole number of at least 1.`);
  if (/** @type {number} */ (value) >= LARGEST) throw new UserError(`${file}: ${name} is ${shown(value)}; no model is that large. Correct the number.`);
}

/** @param {string} file @param {string} name @param {unknown} value @returns {number[]} without repeats */
function listedIds(file, name, value) {
  const ids = (Array.isArray(value) ? value : [value]).filter((one) => one !== null && one !== undefined);
  for (const one of ids) if (!Number.isInteger(one) || one < 0 || one >= LARGEST) throw new UserError(`${file}: ${name} is ${shown(one)}; it must be a token id, a list of them, or null.`);
  return [...new Set(ids)];
}

/** @param {string} file @param {any} values @param {Config} config */
function refuseOthers(file, values, config) {
  /** @param {string} name @param {boolean} harmless */
  const check = (name, harmless) => {
    if (name in values && !harmless) throw new UserError(`${file}: ${name} is ${shown(values[name])}, which changes the computation in a way that GPT-2 as published does not have. Such a model cannot be loaded.`);
  };
  for (const name of OFF) check(name, isOff(values[name]));
  for (const name of SCALES) check(name, values[name] === null || values[name] === 1);
  for (const name of KEY_HEADS) check(name, values[name] === null || values[name] === config.n_head);
  check("position_embedding_type", [null, "absolute", "learned", "learned_absolute"].includes(values.position_embedding_type));
  check("intermediate_size", values.intermediate_size === null || values.intermediate_size === config.d_mlp);
  check("head_dim", values.head_dim === null || values.head_dim === config.d_head);
  check("adapters", isOff(values.adapters) || isOff(values.adapters?.adapters));
}

/** Every tensor with its shape, matrices (in, out), in the order data meets it. @param {Config} config @returns {Map<string, number[]>} */
export function shapesOf({ vocab_size, n_positions, n_embd: C, n_layer, d_mlp: M, tie_word_embeddings }) {
  /** @type {[string, number[]][]} */
  const shapes = [["wte.weight", [vocab_size, C]], ["wpe.weight", [n_positions, C]]];
  for (let i = 0; i < n_layer; i++) {
    /** @type {[string, number[]][]} */
    const block = [
      ["ln_1.weight", [C]], ["ln_1.bias", [C]], ["attn.c_attn.weight", [C, 3 * C]], ["attn.c_attn.bias", [3 * C]], ["attn.c_proj.weight", [C, C]], ["attn.c_proj.bias", [C]],
      ["ln_2.weight", [C]], ["ln_2.bias", [C]], ["mlp.c_fc.weight", [C, M]], ["mlp.c_fc.bias", [M]], ["mlp.c_proj.weight", [M, C]], ["mlp.c_proj.bias", [C]],
    ];
    for (const [name, shape] of block) shapes.push([`h.${i}.${name}`, shape]);
  }
  shapes.push(["ln_f.weight", [C]], ["ln_f.bias", [C]]);
  if (!tie_word_embeddings) shapes.push(["lm_head.weight", [vocab_size, C]]);
  return new Map(shapes);
}

/** @param {Config} config */
export function countParameters(config) {
  let total = 0;
  for (const shape of shapesOf(config).values()) total += shape.reduce((a, b) => a * b, 1);
  return total;
}
