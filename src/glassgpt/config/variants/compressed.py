"""Memory-compressed attention, in every other block of the model: model/variants/compressed.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from glassgpt.config.variants.local import LocalKind

if TYPE_CHECKING:
    from glassgpt.config.config import Config

COMPRESSION = 3  # tokens in a slot: the paper's kernel and stride


def is_compressed(layer: int) -> bool:
    """Whether a block is compressed; the others are local."""
    return layer % 2 == 1


class CompressedKind(LocalKind):
    name = "compressed"
    meanings: ClassVar[dict[str, str]] = {
        "k_conv.weight": "compressed: three keys -> one slot",
        "k_conv.bias": "compressed: three keys -> one slot: bias",
        "v_conv.weight": "compressed: three values -> one slot",
        "v_conv.bias": "compressed: three values -> one slot: bias",
    }
    steps: ClassVar[dict[str, str]] = {"k_slots": "HSD", "v_slots": "HSD"}

    def shapes(self, config: Config, layer: int) -> dict[str, tuple[int, ...]]:
        if not is_compressed(layer):
            return {}
        weight, bias = (COMPRESSION * config.d_head, config.n_embd), (config.n_embd,)
        return {"k_conv.weight": weight, "k_conv.bias": bias, "v_conv.weight": weight, "v_conv.bias": bias}

    def steps_of(self, layer: int) -> dict[str, str]:
        return self.steps if is_compressed(layer) else {}

    def step_sizes(self, n_tokens: int) -> dict[str, int]:
        return {"S": 1 + n_tokens // COMPRESSION}  # the slots; the first is empty
