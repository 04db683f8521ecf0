"""The shape of a GPT-2: every number that decides which tensors exist and how they are used.

The field names are those of `config.json` in a Hugging Face GPT-2 folder, so a config is written and read
without translation. The four published sizes are in `SIZES`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.errors import ConfigError

# Activations that GPT-2-family checkpoints name in `activation_function`. "gelu_new" is the published one.
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu", "silu", "swish", "tanh")


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
                f"activation_function {self.activation_function!r} is not one of {', '.join(ACTIVATIONS)}."
            )
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
            if not (_is_number(getattr(self, name)) and 0 <= getattr(self, name) < 1):
                raise ConfigError(f"{name} {getattr(self, name)!r} is not a probability in [0, 1).")
        for name in ("layer_norm_epsilon", "initializer_range"):
            if not (_is_number(getattr(self, name)) and 0 < getattr(self, name) < math.inf):
                raise ConfigError(f"{name} {getattr(self, name)!r} is not a number above 0.")
        for field in dataclasses.fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                raise ConfigError(f"{field.name} is {getattr(self, field.name)!r}; write true or false.")
        for name in ("bos_token_id", "eos_token_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigError(f"{name} is {value!r}; it must be a token id or null.")

    @property
    def d_head(self) -> int:
        return self.n_embd // self.n_head

    @property
    def d_mlp(self) -> int:
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model in the order data meets it, with its shape. Matrices are (in, out)."""
        C, M = self.n_embd, self.d_mlp
        shapes: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.vocab_size, C),
            "wpe.weight": (self.n_positions, C),
        }
        for i in range(self.n_layer):
            shapes |= {
                f"h.{i}.ln_1.weight": (C,),
                f"h.{i}.ln_1.bias": (C,),
                f"h.{i}.attn.c_attn.weight": (C, 3 * C),  # queries, keys and values in one matrix
                f"h.{i}.attn.c_attn.bias": (3 * C,),
                f"h.{i}.attn.c_proj.weight": (C, C),
                f"h.{i}.attn.c_proj.bias": (C,),
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

    @classmethod
    def named(cls, name: str, **changes: Any) -> Config:
        """A published size by its name (`gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `distilgpt2`)."""
        if name not in SIZES:
            raise ConfigError(f"no published size is called {name!r}. Choose one of {', '.join(SIZES)}.")
        return dataclasses.replace(SIZES[name], **changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "config.json") -> Config:
        """Read the contents of a `config.json`. Keys that would change the arithmetic must be known."""
        kind = values.get("model_type", "gpt2")
        if kind != "gpt2":
            raise ConfigError(f"{where}: model_type {kind!r} is not 'gpt2'. Only GPT-2-family models load.")
        if values.get("add_cross_attention"):
            raise ConfigError(f"{where}: add_cross_attention is set; GPT-2 as published has none.")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        missing = [key for key in ("vocab_size", "n_embd", "n_layer", "n_head") if key not in values]
        if missing:
            raise ConfigError(f"{where} has no {', '.join(missing)}. Add the missing key and its number.")
        unknown = sorted(set(values) - set(fields) - HARMLESS_KEYS)
        if unknown:
            raise ConfigError(
                f"{where}: unknown key {unknown[0]!r} = {values[unknown[0]]!r}. "
                "Remove it if it does not change the computation."
            )
        known = {key: value for key, value in values.items() if key in fields}
        if "n_positions" not in known and "n_ctx" in values:
            known["n_positions"] = values["n_ctx"]
        return cls(**known)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a `config.json`, given the file or its folder."""
        path = Path(path)
        file = path / "config.json" if path.is_dir() else path
        try:
            values = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist. Name a folder with a config.json.") from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{file} is not JSON: {error}.") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{file} holds a {type(values).__name__}, not an object of settings.")
        return cls.from_dict(values, where=str(file))

    def to_dict(self) -> dict[str, Any]:
        """The contents of a `config.json` that `transformers` reads as this same model."""
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            **dataclasses.asdict(self),
            "n_ctx": self.n_positions,
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1.")


SIZES = {
    "gpt2": Config(bos_token_id=50256, eos_token_id=50256),
    "gpt2-medium": Config(n_layer=24, n_embd=1024, n_head=16, bos_token_id=50256, eos_token_id=50256),
    "gpt2-large": Config(n_layer=36, n_embd=1280, n_head=20, bos_token_id=50256, eos_token_id=50256),
    "gpt2-xl": Config(n_layer=48, n_embd=1600, n_head=25, bos_token_id=50256, eos_token_id=50256),
    "distilgpt2": Config(n_layer=6, bos_token_id=50256, eos_token_id=50256),
}

# Keys found in real GPT-2 config.json files that say nothing about the forward pass of the language model.
HARMLESS_KEYS = frozenset(
    """model_type architectures n_ctx torch_dtype dtype transformers_version task_specific_params use_cache
    summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels
    output_past gradient_checkpointing _name_or_path name_or_path _num_labels num_labels id2label label2id
    pad_token_id decoder_start_token_id sep_token_id finetuning_task pruned_heads output_attentions
    output_hidden_states return_dict return_dict_in_generate is_encoder_decoder is_decoder
    add_cross_attention cross_attention_hidden_size tie_encoder_decoder chunk_size_feed_forward
    problem_type torchscript use_bfloat16 tf_legacy_loss do_sample early_stopping max_length min_length
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size num_beams num_beam_groups diversity_penalty num_return_sequences
    output_scores bad_words_ids forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens prefix tokenizer_class
    _attn_implementation_autoset attn_implementation predict_special_tokens n_special
    license""".split()
)
