"""Relative positions (Music Transformer): model/variants/relative.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from glassgpt.config.checks import check_count
from glassgpt.config.variants.kind import AttentionKind

if TYPE_CHECKING:
    from glassgpt.config.config import Config


@dataclass(frozen=True, kw_only=True)
class RelativeSettings:
    relative_distance: int | None = None  # further distances share one vector; None means n_positions
    absolute_positions: bool = True  # whether wpe is kept


# The comment beside a field is its help text on the command line of `train`.
@dataclass(frozen=True, kw_only=True)
class RelativeOptions:
    relative_distance: int | None = None  # relative: clip longer distances to N (default: all positions)
    absolute_positions: bool | None = None  # relative: keep GPT-2's position embeddings (default: yes)


class RelativeKind(AttentionKind):
    name = "relative"
    settings = RelativeSettings
    meanings: ClassVar[dict[str, str]] = {"wre.weight": "relative attention: distance embeddings"}
    steps: ClassVar[dict[str, str]] = {"relative": "HTT"}
    has_bias = True
    numpy_class = "glassgpt.model.variants.relative_numpy:NumpyRelativeGPT2"

    def check(self, config: Config) -> None:
        if config.relative_distance is not None:
            check_count("relative_distance", config.relative_distance)

    def has_wpe(self, config: Config) -> bool:
        return config.absolute_positions

    def shapes(self, config: Config, layer: int) -> dict[str, tuple[int, ...]]:
        return {"wre.weight": (n_distances(config), config.n_embd)}


def n_distances(config: Config) -> int:
    """How many distances between two tokens the model tells apart."""
    return config.n_positions if config.relative_distance is None else config.relative_distance
