"""The shape of a GPT-2: every setting that decides which tensors exist and how they are used.

The field names are those of `config.json` in a Hugging Face GPT-2 folder, so a config is written and read
without translation. The four published sizes are in `SIZES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassgpt.errors import ConfigError, FileFormatError, SettingError, short_repr
from glassgpt.files import read_json

# Activations that GPT-2-family checkpoints name in `activation_function`. "gelu_new" is the published one.
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu", "silu", "swish", "tanh")


@dataclass(frozen=True)
class AttentionKind:
    """What a config has to know about an attention; the classes are in `model/`, each with its paper."""

    settings: tuple[str, ...] = ()  # the fields of Config that only this attention reads
    shapes: Callable[[Config, int], dict[str, tuple[int, ...]]] = lambda config, layer: {}  # its own tensors
    is_causal: bool = True  # no token sees a later one, so that the model can continue a text


# "causal" is the published one. `model.attention.register_attention` adds others.
ATTENTIONS: dict[str, AttentionKind] = {
    "causal": AttentionKind(),
    "relative": AttentionKind(
        settings=("relative_distance", "absolute_positions"),
        shapes=lambda config, layer: {"wre.weight": (config.n_distances, config.n_embd)},
    ),
    "memory": AttentionKind(
        settings=("memory_length",),
        shapes=lambda config, layer: {
            "r_net.weight": (config.n_embd, config.n_embd),
            "r_w_bias": (config.n_embd,),
            "r_r_bias": (config.n_embd,),
        },
    ),
    "bidirectional": AttentionKind(settings=("mask_token_id",), is_causal=False),
    "local": AttentionKind(settings=("local_block",)),
    "compressed": AttentionKind(
        settings=("local_block",),
        shapes=lambda config, layer: (
            {}
            if layer % 2 == 0
            else {
                "k_conv.weight": (COMPRESSION * config.d_head, config.n_embd),
                "k_conv.bias": (config.n_embd,),
                "v_conv.weight": (COMPRESSION * config.d_head, config.n_embd),
                "v_conv.bias": (config.n_embd,),
            }
        ),
    ),
}

COMPRESSION = 3  # tokens in a slot of attention "compressed": the paper's kernel and stride

# Far above every model there is: a larger number in a file is damage, and would only fail later, and worse.
LARGEST_COUNT = 2**40


@dataclass(frozen=True, kw_only=True)
class Config:
    """The default is GPT-2 small as published: 124,439,808 parameters."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None  # width of the MLP; None means 4 * n_embd
    activation_function: str = "gelu_new"  # the tanh form
    attention: str = "causal"  # not in config.json unless it is another: only GlassGPT reads it
    # Settings of some attentions (`ATTENTIONS`), in config.json only with them.
    relative_distance: int | None = None  # relative: further distances share one row; None means n_positions
    absolute_positions: bool = True  # relative: whether wpe is kept beside it
    mask_token_id: int | None = None  # bidirectional: stands for a blank; no token of the tokenizer's
    local_block: int = 256  # local, compressed: tokens in a block
    memory_length: int = 0  # memory: tokens before a segment that it was trained to attend to
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    scale_attn_weights: bool = True  # divide scores by sqrt(d_head)
    scale_attn_by_inverse_layer_idx: bool = False  # and by layer + 1 (Mistral's stable GPT-2s)
    reorder_and_upcast_attn: bool = False  # scores in float32 whatever the dtype (same models)
    tie_word_embeddings: bool = True  # the head is wte transposed
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    also_eos: tuple[int, ...] = ()  # the others, where config.json lists several: each of them ends a text
    # Keys of config.json that are not ours: they take part in no computation, and are written back.
    kept: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
            _check_count(name, getattr(self, name))
        if self.n_inner is not None:
            _check_count("n_inner", self.n_inner)
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}: "
                "every head must be equally wide. Change one of the two."
            )
        if self.activation_function not in ACTIVATIONS:
            raise ConfigError(
                f"activation_function {short_repr(self.activation_function)} is not one of "
                f"{', '.join(ACTIVATIONS)}."
            )
        if self.attention not in ATTENTIONS:
            raise ConfigError(
                f"attention {short_repr(self.attention)} is not one of {', '.join(ATTENTIONS)}."
            )
        self._check_attention_settings()
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
            if not (_is_number(getattr(self, name)) and 0 <= getattr(self, name) < 1):
                raise ConfigError(f"{name} {short_repr(getattr(self, name))} is not a probability in [0, 1).")
        for name in ("layer_norm_epsilon", "initializer_range"):
            if not (_is_number(getattr(self, name)) and 0 < getattr(self, name) < LARGEST_COUNT):
                raise ConfigError(
                    f"{name} {short_repr(getattr(self, name))} is not a sensible number above 0."
                )
        for name in (each.name for each in dataclasses.fields(self) if each.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {short_repr(getattr(self, name))}; write true or false.")
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is not None:
                _check_token_id(name, getattr(self, name))
        for value in self.also_eos:
            _check_token_id("eos_token_id", value)

    def _check_attention_settings(self) -> None:
        for owner, kind in ATTENTIONS.items():
            for name in kind.settings:
                value = getattr(self, name)
                if name not in ATTENTIONS[self.attention].settings and value != getattr(Config, name):
                    raise ConfigError(
                        f"{name} {short_repr(value)} is a setting of attention {owner!r}, and this model's "
                        f"is {self.attention!r}. Leave one of the two out."
                    )
        if self.relative_distance is not None:
            _check_count("relative_distance", self.relative_distance)
        _check_count("local_block", self.local_block)
        if self.attention == "bidirectional":
            _check_token_id("mask_token_id", self.mask_token_id)
            if self.mask_token_id >= self.vocab_size:  # type: ignore[operator]
                raise ConfigError(
                    f"mask_token_id {self.mask_token_id} is not below vocab_size {self.vocab_size}. "
                    "Use the id of a token that stands for a blank."
                )
        if self.memory_length != 0:
            _check_count("memory_length", self.memory_length)

    @property
    def has_wpe(self) -> bool:
        """Whether tokens have absolute positions; those of a memory stand in no segment."""
        return self.absolute_positions and self.attention != "memory"

    @property
    def n_distances(self) -> int:
        """How many distances between two tokens relative attention tells apart."""
        return self.n_positions if self.relative_distance is None else self.relative_distance

    @property
    def is_causal(self) -> bool:
        """Whether no token sees a later one: if not, the model cannot continue a text."""
        return ATTENTIONS[self.attention].is_causal

    @property
    def d_head(self) -> int:
        return self.n_embd // self.n_head

    @property
    def d_mlp(self) -> int:
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model in the order data meets it, with its shape. Matrices are (in, out)."""
        C, M = self.n_embd, self.d_mlp
        shapes: dict[str, tuple[int, ...]] = {"wte.weight": (self.vocab_size, C)}
        if self.has_wpe:
            shapes["wpe.weight"] = (self.n_positions, C)
        kind = ATTENTIONS[self.attention]
        for i in range(self.n_layer):
            shapes |= {
                f"h.{i}.ln_1.weight": (C,),
                f"h.{i}.ln_1.bias": (C,),
                f"h.{i}.attn.c_attn.weight": (C, 3 * C),  # queries, keys and values in one matrix
                f"h.{i}.attn.c_attn.bias": (3 * C,),
                f"h.{i}.attn.c_proj.weight": (C, C),
                f"h.{i}.attn.c_proj.bias": (C,),
                **{f"h.{i}.attn.{name}": shape for name, shape in kind.shapes(self, i).items()},
                f"h.{i}.ln_2.weight": (C,),
                f"h.{i}.ln_2.bias": (C,),
                f"h.{i}.mlp.c_fc.weight": (C, M),
                f"h.{i}.mlp.c_fc.bias": (M,),
                f"h.{i}.mlp.c_proj.weight": (M, C),
                f"h.{i}.mlp.c_proj.bias": (C,),
            }
        shapes |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, C)
        return shapes

    @property
    def n_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes().values())

    def kv_bytes(self, positions: int, bytes_per_value: int = 4) -> int:
        """Bytes of a KV cache: a key and a value of width n_embd for each position in every block."""
        return 2 * self.n_layer * self.n_embd * positions * bytes_per_value

    @classmethod
    def named(cls, name: str, **changes: Any) -> Config:
        """A published size by its name (`gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `distilgpt2`)."""
        if name not in SIZES:
            raise ConfigError(f"no published size is called {name!r}. Choose one of {', '.join(SIZES)}.")
        return dataclasses.replace(SIZES[name], **changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "config.json") -> Config:
        """Read the contents of a `config.json`: what is known to change the computation must be supported.

        Keys that no GPT-2 code reads are kept (`kept`), whatever they are called.
        """
        kind = values.get("model_type", "gpt2")
        if kind != "gpt2":
            raise ConfigError(
                f"{where}: model_type {short_repr(kind)} is not 'gpt2'. Only GPT-2-family models load."
            )
        fields = {field.name for field in dataclasses.fields(cls)} - {"also_eos", "kept"}
        known = {key: value for key, value in values.items() if key in fields}
        for alias, name in ALIASES.items():
            if values.get(alias) is not None and known.setdefault(name, values[alias]) != values[alias]:
                raise ConfigError(
                    f"{where}: {alias} {short_repr(values[alias])} and {name} {short_repr(known[name])} "
                    "contradict each other. Correct one of the two."
                )
        missing = [key for key in ("vocab_size", "n_embd", "n_layer", "n_head") if key not in known]
        if missing:
            raise ConfigError(f"{where} has no {', '.join(missing)}. Add the missing key and its number.")
        if "n_positions" not in known and "n_ctx" in values:
            known["n_positions"] = values["n_ctx"]
        known["bos_token_id"], *_ = _listed_ids("bos_token_id", known.get("bos_token_id"))
        known["eos_token_id"], *also_eos = _listed_ids("eos_token_id", known.get("eos_token_id"))
        config = cls(**known, also_eos=tuple(also_eos))
        for name, means_nothing in UNSUPPORTED.items():
            if name in values and not means_nothing(values[name], config):
                raise ConfigError(
                    f"{where}: {name} is {short_repr(values[name])}, which changes the computation in a way "
                    "that GPT-2 as published does not have. Such a model cannot be loaded."
                )
        kept = {key: value for key, value in values.items() if key not in known | ALIASES | NOT_KEPT}
        return dataclasses.replace(config, kept=kept)

    @property
    def unread(self) -> list[str]:
        """The kept keys that are not among those of every other GPT-2."""
        return sorted(set(self.kept) - HARMLESS_KEYS - set(UNSUPPORTED))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends a text."""
        return (*(() if self.eos_token_id is None else (self.eos_token_id,)), *self.also_eos)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a `config.json`, given the file or its folder."""
        path = Path(path)
        file = path / "config.json" if path.is_dir() else path
        try:
            values = read_json(file)
        except FileFormatError as error:
            raise ConfigError(str(error)) from None
        return cls.from_dict(values, where=str(file))

    def to_dict(self) -> dict[str, Any]:
        """The contents of a `config.json` that `transformers` reads as this same model.

        One with another attention, which `transformers` does not know, is not exported.
        """
        left_out = {"also_eos", "kept"}.union(*(kind.settings for kind in ATTENTIONS.values()))
        left_out -= set(ATTENTIONS[self.attention].settings)
        if self.attention == Config.attention:
            left_out.add("attention")
        names = [each.name for each in dataclasses.fields(self) if each.name not in left_out]
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            **{name: getattr(self, name) for name in names},
            "eos_token_id": list(self.eos_token_ids) if self.also_eos else self.eos_token_id,
            "n_ctx": self.n_positions,
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {short_repr(value)}; it must be a whole number of at least 1.")
    if value >= LARGEST_COUNT:
        raise ConfigError(f"{name} is {short_repr(value)}; no model is that large. Correct the number.")


def _check_token_id(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LARGEST_COUNT:
        raise ConfigError(f"{name} is {short_repr(value)}; it must be a token id, a list of them, or null.")


def _listed_ids(name: str, value: Any) -> list[Any]:
    """Token ids as `config.json` has them, null, one or a list: a list without repeats, [None] if of none."""
    ids = [each for each in (value if isinstance(value, list) else [value]) if each is not None]
    for each in ids:
        _check_token_id(name, each)
    return list(dict.fromkeys(ids)) if ids else [None]


SIZES = {
    "gpt2": Config(bos_token_id=50256, eos_token_id=50256),
    "gpt2-medium": Config(n_layer=24, n_embd=1024, n_head=16, bos_token_id=50256, eos_token_id=50256),
    "gpt2-large": Config(n_layer=36, n_embd=1280, n_head=20, bos_token_id=50256, eos_token_id=50256),
    "gpt2-xl": Config(n_layer=48, n_embd=1600, n_head=25, bos_token_id=50256, eos_token_id=50256),
    "distilgpt2": Config(n_layer=6, bos_token_id=50256, eos_token_id=50256),
}

# Names that transformers takes for ours.
ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def _off(value: Any, config: Config) -> bool:
    """Null, false, 0, or an empty list or object."""
    return not value


def _one_of(*harmless: Any) -> Callable[[Any, Config], bool]:
    return lambda value, config: value in harmless


def _a_head_each(value: Any, config: Config) -> bool:
    return value is None or bool(value == config.n_head)


def _no_adapters(value: Any, config: Config) -> bool:
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
        _off,
    ),
    "position_embedding_type": _one_of(None, "absolute", "learned", "learned_absolute"),
    **dict.fromkeys(
        "embeddings_scale mup_embeddings_scale mup_output_alpha mup_width_scale".split(), _one_of(None, 1)
    ),
    **dict.fromkeys("num_key_value_heads num_kv_heads n_head_kv n_kv_head n_kv_heads".split(), _a_head_each),
    "intermediate_size": lambda value, config: value is None or value == config.d_mlp,
    "head_dim": lambda value, config: value is None or value == config.d_head,
    "adapters": _no_adapters,
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


def check_can_continue(config: Config) -> None:
    """Whether a model can predict the next token: not if it has to see it."""
    if not config.is_causal:
        raise cannot_continue(config.attention)


def cannot_continue(attention: str) -> SettingError:
    return SettingError(
        f"a model with attention {attention!r} sees the whole text at once and cannot continue one. "
        "It fills blanks: glassgpt fill."
    )
