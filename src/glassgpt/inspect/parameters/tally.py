"""The parameters of a GPT-2, counted tensor by tensor from its config: no weights, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from glassgpt.config import ATTENTIONS, Config
from glassgpt.inspect.figures.display import Displayable

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure

BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

# What each tensor is for. `h.N.` is omitted from the names of a block's tensors.
MEANING = {
    "wte.weight": "token embeddings",
    "wpe.weight": "position embeddings",
    "ln_1.weight": "LayerNorm before attention: weight",
    "ln_1.bias": "LayerNorm before attention: bias",
    "attn.c_attn.weight": "queries, keys, values",
    "attn.c_attn.bias": "queries, keys, values: bias",
    "attn.c_proj.weight": "merged heads -> residual stream",
    "attn.c_proj.bias": "merged heads -> residual stream: bias",
    **{f"attn.{name}": text for kind in ATTENTIONS.values() for name, text in kind.meanings.items()},
    "ln_2.weight": "LayerNorm before the MLP: weight",
    "ln_2.bias": "LayerNorm before the MLP: bias",
    "mlp.c_fc.weight": "MLP, up projection",
    "mlp.c_fc.bias": "MLP, up projection: bias",
    "mlp.c_proj.weight": "MLP, down projection",
    "mlp.c_proj.bias": "MLP, down projection: bias",
    "ln_f.weight": "final LayerNorm: weight",
    "ln_f.bias": "final LayerNorm: bias",
    "lm_head.weight": "head: residual stream -> vocabulary",
}


@dataclass(frozen=True)
class Line:
    """One tensor."""

    name: str  # `h.3.attn.c_attn.weight`
    shape: tuple[int, ...]
    count: int
    block: int | None  # 3; None outside the blocks

    @property
    def short(self) -> str:
        """The name within its block."""
        return self.name if self.block is None else self.name.split(".", 2)[2]

    @property
    def meaning(self) -> str:
        return MEANING[self.short]


@dataclass(frozen=True)
class Tally(Displayable):
    """Every tensor in the order of computation, and the totals."""

    config: Config
    lines: tuple[Line, ...]

    @cached_property
    def total(self) -> int:
        return sum(line.count for line in self.lines)

    @cached_property
    def per_block(self) -> int:
        return sum(line.count for line in self.lines if line.block == 0)

    @property
    def embeddings(self) -> int:
        """The part of the total in the two embedding tables."""
        return sum(line.count for line in self.lines if line.name in ("wte.weight", "wpe.weight"))

    def block(self, index: int = 0) -> list[Line]:
        return [line for line in self.lines if line.block == index]

    def outside(self) -> list[Line]:
        return [line for line in self.lines if line.block is None]

    def memory(self, dtype: str = "float32") -> int:
        """Bytes of the weights."""
        return self.total * BYTES_PER_VALUE[dtype]

    def cache_per_token(self, dtype: str = "float32") -> int:
        """Bytes of the KV cache per token."""
        return self.config.kv_bytes(1, BYTES_PER_VALUE[dtype])

    def figure(self) -> Figure:
        from glassgpt.inspect.figures.plots import plot_tally

        return plot_tally(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "per_block": self.per_block,
            "embeddings": self.embeddings,
            "tensors": [
                {"name": line.name, "shape": list(line.shape), "count": line.count} for line in self.lines
            ],
            "bytes": {dtype: self.memory(dtype) for dtype in BYTES_PER_VALUE},
            "kv_cache_bytes_per_token": {
                dtype: self.cache_per_token(dtype) for dtype in BYTES_PER_VALUE if dtype != "int8"
            },
        }


def tally(shape: Config | str) -> Tally:
    """Count the parameters of a config, or of a published size by name.

    >>> tally("gpt2").total
    124439808
    """
    config = Config.named(shape) if isinstance(shape, str) else shape
    lines = tuple(
        Line(name, size, math.prod(size), int(name.split(".")[1]) if name.startswith("h.") else None)
        for name, size in config.shapes().items()
    )
    return Tally(config, lines)


# The Illustrated GPT-2 ends with a table of the small model. It differs from the published tensors in two
# rows: the bias of c_fc is listed with 768 values although that layer is 3,072 wide, and ln_f is missing.
ILLUSTRATED_TOTAL = 124_410_624
ILLUSTRATED = {"mlp.c_fc.bias": 768, "ln_f.weight": 0, "ln_f.bias": 0}


def illustrated_count(line: Line) -> int:
    """The article's count for this tensor of GPT-2 small."""
    return ILLUSTRATED.get(line.short, line.count)
