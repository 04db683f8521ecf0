"""Keys of a `config.json` that are not fields of `Config`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.config.config import Config

# Names that transformers takes for ours.
ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def is_off(value: Any, config: Config) -> bool:
    """Null, false, 0, or an empty list or object."""
    return not value


def one_of(*harmless: Any) -> Callable[[Any, Config], bool]:
    return lambda value, config: value in harmless


def is_one_per_head(value: Any, config: Config) -> bool:
    return value is None or bool(value == config.n_head)


def has_no_adapters(value: Any, config: Config) -> bool:
    return not value or (isinstance(value, dict) and not value.get("adapters"))


# Keys of other architectures, and of what is laid over a model, that change what is computed: each with a
# function that says whether a value of it leaves GPT-2 as it is.
UNSUPPORTED: dict[str, Callable[[Any, Config], bool]] = {
    **dict.fromkeys(
        """add_cross_attention is_encoder_decoder quantization_config compression_config pruned_heads
        rope_theta rope_scaling rope_parameters rotary rotary_dim rotary_pct rotary_emb_base
        rotary_emb_fraction use_rotary use_rope alibi use_alibi multi_query parallel_attn
        use_parallel_residual sliding_window use_sliding_window attention_window qk_layernorm
        qk_norm use_qk_norm attn_logit_softcapping final_logit_softcapping mup_scale_qk_dot_by_d
        peft_config lora_config""".split(),
        is_off,
    ),
    "position_embedding_type": one_of(None, "absolute", "learned", "learned_absolute"),
    **dict.fromkeys(
        "embeddings_scale mup_embeddings_scale mup_output_alpha mup_width_scale".split(), one_of(None, 1)
    ),
    **dict.fromkeys(
        "num_key_value_heads num_kv_heads n_head_kv n_kv_head n_kv_heads".split(), is_one_per_head
    ),
    "intermediate_size": lambda value, config: value is None or value == config.d_mlp,
    "head_dim": lambda value, config: value is None or value == config.d_head,
    "adapters": has_no_adapters,
}

# Written anew for every folder, or about where this one came from. `auto_map` names code that is never run
# here and not copied either.
NOT_KEPT = dict.fromkeys(
    """model_type architectures n_ctx torch_dtype dtype transformers_version auto_map _commit_hash
    _name_or_path name_or_path quantization_config compression_config _attn_implementation_autoset""".split()
)

# Keys found in real GPT-2 config.json files that say nothing about the forward pass of the language model.
HARMLESS_KEYS = frozenset(
    """task_specific_params use_cache summary_type summary_use_proj summary_activation
    summary_first_dropout summary_proj_to_labels output_past gradient_checkpointing _num_labels num_labels
    id2label label2id pad_token_id decoder_start_token_id sep_token_id finetuning_task output_attentions
    output_hidden_states return_dict return_dict_in_generate is_decoder
    cross_attention_hidden_size tie_encoder_decoder chunk_size_feed_forward
    problem_type torchscript use_bfloat16 tf_legacy_loss do_sample early_stopping max_length min_length
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size num_beams num_beam_groups diversity_penalty num_return_sequences
    output_scores bad_words_ids forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens prefix tokenizer_class
    attn_implementation _attn_implementation predict_special_tokens n_special
    cls_token_id unk_token_id mask_token_id additional_special_tokens_ids license""".split()
)
