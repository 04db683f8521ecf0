"""Memory of the previous segment (Transformer-XL): model/variants/memory.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from glassgpt.config.checks import check_count
from glassgpt.config.variants.kind import AttentionKind

if TYPE_CHECKING:
    from glassgpt.config.config import Config


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    memory_length: int = 0  # tokens before a segment that the model was trained to attend to


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    memory_length: int | None = None  # memory: tokens before each sequence to remember (default: the context)


class MemoryKind(AttentionKind):
    name = "memory"
    settings = MemorySettings
    meanings: ClassVar[dict[str, str]] = {
        "r_net.weight": "memory: sinusoids of distances -> keys",
        "r_w_bias": "memory: added to queries before keys",
        "r_r_bias": "memory: added to queries before distances",
    }
    steps: ClassVar[dict[str, str]] = {"relative": "HTT"}
    has_bias = True
    reads_segments = True

    def check(self, config: Config) -> None:
        if config.memory_length != 0:
            check_count("memory_length", config.memory_length)

    def has_wpe(self, config: Config) -> bool:
        return False  # a remembered token has no position in the new segment

    def shapes(self, config: Config, layer: int) -> dict[str, tuple[int, ...]]:
        C = config.n_embd
        return {"r_net.weight": (C, C), "r_w_bias": (C,), "r_r_bias": (C,)}

    def n_past(self, config: Config) -> int:
        return config.memory_length

    def defaults_for(self, context: int, vocab_size: int) -> dict[str, Any]:
        return {"memory_length": context}
