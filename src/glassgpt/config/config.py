"""The shape of a GPT-2: every setting that decides which tensors exist and how they are used.

The field names are those of `config.json` in a Hugging Face GPT-2 folder, so a config is written and read
without translation. The four published sizes are in `SIZES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassgpt.config.checks import LARGEST_COUNT, check_count, check_token_id, is_number
from glassgpt.config.foreign_keys import ALIASES, HARMLESS_KEYS, NOT_KEPT, UNSUPPORTED
from glassgpt.config.variants import ATTENTIONS, VariantSettings
from glassgpt.config.variants.kind import AttentionKind
from glassgpt.errors import ConfigError, FileFormatError, SettingError, short_repr
from glassgpt.files import read_json

# Activations that GPT-2-family checkpoints name in `activation_function`. "gelu_new" is the published one.
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu", "silu", "swish", "tanh")


@dataclass(frozen=True, kw_only=True)
class Config(VariantSettings):
    """The default is GPT-2 small as published: 124,439,808 parameters."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None  # width of the MLP; None means 4 * n_embd
    activation_function: str = "gelu_new"  # the tanh form
    attention: str = "causal"  # not in config.json unless it is another: only GlassGPT reads it
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
            check_count(name, getattr(self, name))
        if self.n_inner is not None:
            check_count("n_inner", self.n_inner)
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
            if not (is_number(getattr(self, name)) and 0 <= getattr(self, name) < 1):
                raise ConfigError(f"{name} {short_repr(getattr(self, name))} is not a probability in [0, 1).")
        for name in ("layer_norm_epsilon", "initializer_range"):
            if not (is_number(getattr(self, name)) and 0 < getattr(self, name) < LARGEST_COUNT):
                raise ConfigError(
                    f"{name} {short_repr(getattr(self, name))} is not a sensible number above 0."
                )
        for name in (each.name for each in dataclasses.fields(self) if each.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {short_repr(getattr(self, name))}; write true or false.")
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is not None:
                check_token_id(name, getattr(self, name))
        for value in self.also_eos:
            check_token_id("eos_token_id", value)

    def _check_attention_settings(self) -> None:
        for owner, kind in ATTENTIONS.items():
            for name in kind.setting_names:
                value = getattr(self, name)
                if name not in self.kind.setting_names and value != getattr(Config, name):
                    raise ConfigError(
                        f"{name} {short_repr(value)} is a setting of attention {owner!r}, and this model's "
                        f"is {self.attention!r}. Leave one of the two out."
                    )
        self.kind.check(self)

    @property
    def kind(self) -> AttentionKind:
        """What is known about the attention: its tensors, its settings, and more."""
        return ATTENTIONS[self.attention]

    @property
    def has_wpe(self) -> bool:
        """Whether tokens have absolute positions."""
        return self.kind.has_wpe(self)

    @property
    def is_causal(self) -> bool:
        """Whether no token sees a later one: if not, the model cannot continue a text."""
        return self.kind.is_causal

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
        for i in range(self.n_layer):
            shapes |= {
                f"h.{i}.ln_1.weight": (C,),
                f"h.{i}.ln_1.bias": (C,),
                f"h.{i}.attn.c_attn.weight": (C, 3 * C),  # queries, keys and values in one matrix
                f"h.{i}.attn.c_attn.bias": (3 * C,),
                f"h.{i}.attn.c_proj.weight": (C, C),
                f"h.{i}.attn.c_proj.bias": (C,),
                **{f"h.{i}.attn.{name}": shape for name, shape in self.kind.shapes(self, i).items()},
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
        model_type = values.get("model_type", "gpt2")
        if model_type != "gpt2":
            raise ConfigError(
                f"{where}: model_type {short_repr(model_type)} is not 'gpt2'. Only GPT-2-family models load."
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
        names = [name for name in Config.__annotations__ if name not in ("also_eos", "kept")]
        if self.attention == Config.attention:
            names.remove("attention")
        else:
            after = names.index("attention") + 1
            names[after:after] = self.kind.setting_names
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            **{name: getattr(self, name) for name in names},
            "eos_token_id": list(self.eos_token_ids) if self.also_eos else self.eos_token_id,
            "n_ctx": self.n_positions,
        }


def _listed_ids(name: str, value: Any) -> list[Any]:
    """Token ids as `config.json` has them, null, one or a list: a list without repeats, [None] if of none."""
    ids = [each for each in (value if isinstance(value, list) else [value]) if each is not None]
    for each in ids:
        check_token_id(name, each)
    return list(dict.fromkeys(ids)) if ids else [None]


SIZES = {
    "gpt2": Config(bos_token_id=50256, eos_token_id=50256),
    "gpt2-medium": Config(n_layer=24, n_embd=1024, n_head=16, bos_token_id=50256, eos_token_id=50256),
    "gpt2-large": Config(n_layer=36, n_embd=1280, n_head=20, bos_token_id=50256, eos_token_id=50256),
    "gpt2-xl": Config(n_layer=48, n_embd=1600, n_head=25, bos_token_id=50256, eos_token_id=50256),
    "distilgpt2": Config(n_layer=6, bos_token_id=50256, eos_token_id=50256),
}


def check_can_continue(config: Config) -> None:
    """Whether a model can predict the next token: not if it has to see it."""
    if not config.is_causal:
        raise cannot_continue(config.attention)


def cannot_continue(attention: str) -> SettingError:
    return SettingError(
        f"a model with attention {attention!r} sees the whole text at once and cannot continue one. "
        "It fills blanks: glassgpt fill."
    )
