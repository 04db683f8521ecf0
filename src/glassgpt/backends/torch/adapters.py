"""Low-rank changes (LoRA) that differ from row to row of a batch: the base product, and x A B for each row.

The model's projections are replaced by ones that also add this. Which row has which adapter is said by the
backend before each call; without any, they compute exactly what they did.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassgpt.backends.protocol import LowRankFactors
from glassgpt.model.gpt2 import GPT2, Projection


class RowAdapters:
    """The adapters of a model, and the number of the one that each row of the next call computes with."""

    def __init__(self, model: GPT2) -> None:
        self.count = 0
        self.numbers: Tensor | None = None  # (B,); None: no row has one
        self.projections: dict[str, AdaptedProjection] = {}
        for part_name, part in list(model.h.named_modules()):
            for name, child in list(part.named_children()):
                if isinstance(child, Projection):
                    adapted = AdaptedProjection(child, self)
                    setattr(part, name, adapted)
                    self.projections[f"h.{part_name}.{name}.weight"] = adapted

    def add(self, factors: LowRankFactors) -> int:
        self.count += 1
        for name, projection in self.projections.items():
            projection.add(factors.get(name))
        return self.count

    def choose(self, numbers: list[int], device: torch.device) -> None:
        self.numbers = torch.tensor(numbers, device=device) if any(numbers) else None


class AdaptedProjection(Projection):
    """A projection with the same parameters under the same names, which adds the change of each row."""

    def __init__(self, base: Projection, rows: RowAdapters) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = base.weight, base.bias
        self.train(base.training)
        self.rows = rows
        # Number 0 changes nothing. Ranks differ: the smaller ones are filled with zeros.
        n_in, n_out = self.weight.shape
        self.a, self.b = self.weight.new_zeros(1, n_in, 1), self.weight.new_zeros(1, 1, n_out)

    @torch.no_grad()
    def add(self, factors: tuple[object, object] | None) -> None:
        n_in, n_out = self.weight.shape
        zeros = (torch.zeros(n_in, 1), torch.zeros(1, n_out))
        a, b = zeros if factors is None else (torch.as_tensor(factor) for factor in factors)
        rank = max(a.shape[1], self.a.shape[2])
        self.a = torch.cat([_widened(self.a, 2, rank), _widened(a.to(self.a)[None], 2, rank)])
        self.b = torch.cat([_widened(self.b, 1, rank), _widened(b.to(self.b)[None], 1, rank)])

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)  # (B, T, out)
        if self.rows.numbers is None:
            return out
        numbers = self.rows.numbers
        return out + x @ self.a[numbers] @ self.b[numbers]


def _widened(factors: Tensor, dim: int, rank: int) -> Tensor:
    """With zeros up to this rank."""
    missing = list(factors.shape)
    missing[dim] = rank - missing[dim]
    return torch.cat([factors, factors.new_zeros(missing)], dim)
