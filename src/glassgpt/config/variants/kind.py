"""What the rest of the package has to know about an attention: everything but how it is computed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from glassgpt.config.config import Config


class AttentionKind:
    """GPT-2's own attention. A variant is a subclass, and overrides what differs.

    Its class in `model/variants/` computes it; `model.attention.register_attention` adds more of them.
    """

    name = "causal"
    settings: type | None = None  # a dataclass: the fields of Config that only this attention reads
    meanings: ClassVar[dict[str, str]] = {}  # of its own tensors, by their names within `h.N.attn.`
    steps: ClassVar[dict[str, str]] = {}  # its own steps before `attn.scores` and their dimensions
    is_causal = True  # no token sees a later one, so that the model can continue a text
    has_bias = False  # whether a term is added to every score, so that all scores are stored for training
    numpy_class: str | None = None  # "module:class" of a numpy model that computes it, where there is one
    reads_segments = False  # whether it is trained on consecutive segments instead of shuffled sequences

    @property
    def setting_names(self) -> tuple[str, ...]:
        return () if self.settings is None else tuple(each.name for each in dataclasses.fields(self.settings))

    def check(self, config: Config) -> None:
        """Raise ConfigError unless the settings are valid."""

    def has_wpe(self, config: Config) -> bool:
        """Whether tokens have absolute positions."""
        return True

    def shapes(self, config: Config, layer: int) -> dict[str, tuple[int, ...]]:
        """Its own tensors, by their names within `h.N.attn.`."""
        return {}

    def steps_of(self, layer: int) -> dict[str, str]:
        """Those of `steps` that a block has."""
        return self.steps

    def step_sizes(self, n_tokens: int) -> dict[str, int]:
        """Sizes of dimensions that only its steps have."""
        return {}

    def n_past(self, config: Config) -> int:
        """How many tokens before its sequence a token sees in training."""
        return 0

    def defaults_for(self, context: int, vocab_size: int) -> dict[str, Any]:
        """What a new model's Config takes from its training data, unless the user says otherwise."""
        return {}

    def note(self, config: Config, context: int) -> str | None:
        """What to tell someone who starts to train such a model."""
        return None
