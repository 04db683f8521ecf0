"""LoRA (Hu et al., 2021): leave a matrix as it is and learn a thin correction beside it.

The change that a matrix W (in, out) needs for a new style is close to one of low rank, so it is written as
A (in, r) times B (r, out) with a small r. Of the whole model only these and its vectors (biases and gains)
are learned: two percent of the numbers, and an optimizer that remembers only those. At the end W + A B is a
matrix like any other: the tuned model has the same shape as the one it came from, and nobody who loads it
needs to know.

The vocabulary's table has a correction, too. What tells one author from another is first of all which words
they use: with it, and as many numbers learned, the gain was a sixth larger (docs/tuning.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.model.gpt2 import Projection

Plain = Projection | nn.Embedding | nn.Linear
SHARE = 0.02  # of the model's parameters that may be learned


class LowRank(nn.Module):
    """A matrix that stays as it is, and its correction, of which one half starts at zero: at first nothing is
    changed. The bias is learned as ever."""

    def __init__(self, plain: Plain, A: Tensor, B: Tensor) -> None:
        super().__init__()
        self.plain = plain
        plain.weight.requires_grad_(False)
        self.A, self.B = (nn.Parameter(half.to(plain.weight.device)) for half in (A, B))

    @torch.no_grad()
    def merged(self) -> Tensor:
        """The one matrix that does the work of all three.

        Summed in float64 and rounded once, on the CPU: so the bits do not depend on how many threads add,
        or on which device the matrix was learned.
        """
        weight, a, b = (tensor.detach().cpu().double() for tensor in (self.plain.weight, self.A, self.B))
        return (weight + a @ b).to(self.plain.weight.dtype)


class LowRankProjection(LowRank):
    """A matrix of a block. x @ A is about as large as x: so one rate suits matrices of every width."""

    def __init__(self, plain: Projection, rank: int, generator: torch.Generator) -> None:
        n_in, n_out = plain.weight.shape
        spread = torch.randn(n_in, rank, generator=generator) / n_in**0.5
        super().__init__(plain, A=spread, B=torch.zeros(rank, n_out))

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = x @ self.A @ self.B  # (B, T, out)
        return torch.add(self.plain(x), change)


class LowRankTable(LowRank):
    """The vocabulary's table, as the embedding and as the head; of an untied head, the head alone."""

    def __init__(self, plain: Plain, rank: int, generator: torch.Generator) -> None:
        n_rows, n_embd = plain.weight.shape
        spread = torch.randn(rank, n_embd, generator=generator) / n_embd**0.5
        super().__init__(plain, A=torch.zeros(n_rows, rank), B=spread)

    @property
    def weight(self) -> Tensor:
        """As the head reads it, (V, C)."""
        return torch.addmm(self.plain.weight, self.A, self.B)

    def forward(self, ids: Tensor) -> Tensor:
        change: Tensor = F.embedding(ids, self.A) @ self.B  # (B, T, C)
        return torch.add(self.plain(ids), change)


class Ranks(NamedTuple):
    blocks: int  # of the four matrices in each block
    table: int  # of the table that is the head


def ranks_within(config: Config, share: float = SHARE) -> Ranks:
    """The largest rank with which at most `share` of the parameters are learned; the table has what is left.

    The vectors are learned whole and come first.
    """
    shapes = config.shapes()
    vectors = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
    blocks = sum(sum(shape) for name, shape in shapes.items() if name.startswith("h.") and len(shape) == 2)
    table = config.vocab_size + config.n_embd
    left = int(share * config.n_parameters) - vectors
    rank = left // (blocks + table)
    if rank < 1:
        least = (vectors + blocks + table) / config.n_parameters
        raise SettingError(
            f"rank 1 already learns {least:.1%} of this small model's parameters, more than {share:.0%}. "
            "Leave out --lora."
        )
    return Ranks(rank, (left - rank * blocks) // table)


def add_low_rank(model: GPT2, ranks: Ranks, seed: int = 0) -> GPT2:
    """Freeze the model but for its vectors, and set a correction beside each matrix of its blocks (c_attn,
    c_fc, both c_proj) and beside its head."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1)
    generator = torch.Generator().manual_seed(seed)
    for part in list(model.h.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Projection):
                setattr(part, name, LowRankProjection(child, ranks.blocks, generator))
    head = "wte" if model.lm_head is None else "lm_head"
    setattr(model, head, LowRankTable(getattr(model, head), ranks.table, generator))
    return model


def merged_state(model: GPT2) -> dict[str, Tensor]:
    """The model's tensors under their published names, corrections merged. The model stays as it is."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            del state[f"{name}.A"], state[f"{name}.B"]
            state[f"{name}.plain.weight"] = module.merged()
    return {name.replace(".plain.", "."): tensor for name, tensor in state.items()}


def learned_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
