"""LoRA (Hu et al., 2021): leave a matrix as it is and learn a thin correction beside it.

The change that a matrix W (in, out) needs for a new style is close to one of low rank, so it is written as
A (in, r) times B (r, out) with a small r. Only A and B are learned: a few percent of the numbers, and an
optimizer that remembers only those. At the end W + A B is a matrix like any other: the tuned model has the
same shape as the one it came from, and nobody who loads it needs to know.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.model.gpt2 import Projection

SHARE = 0.02  # of the model's parameters that may be learned


class LowRank(nn.Module):
    """A projection that stays as it is, and its correction. B starts at zero: at first nothing is changed."""

    def __init__(self, plain: Projection, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        n_in, n_out = plain.weight.shape
        self.plain = plain.requires_grad_(False)
        # With this spread x @ A is about as large as x, so one learning rate suits matrices of every width.
        start = torch.randn(n_in, rank, generator=generator) / n_in**0.5
        self.A = nn.Parameter(start.to(plain.weight.device))  # (in, r)
        self.B = nn.Parameter(torch.zeros(rank, n_out, device=plain.weight.device))  # (r, out)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = x @ self.A @ self.B  # (B, T, out)
        return torch.add(self.plain(x), change)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """The one matrix (in, out) that does the work of all three.

        Summed in float64 and rounded once, on the CPU: so the bits do not depend on how many threads add,
        or on which device the matrix was learned.
        """
        weight, a, b = (tensor.detach().cpu().double() for tensor in (self.plain.weight, self.A, self.B))
        return (weight + a @ b).to(self.plain.weight.dtype)


def rank_within(config: Config, share: float = SHARE) -> int:
    """The largest rank with which at most `share` of the parameters are learned."""
    shapes = config.shapes().items()
    each = sum(sum(shape) for name, shape in shapes if name.startswith("h.") and len(shape) == 2)
    rank = int(share * config.n_parameters) // each
    if rank < 1:
        raise SettingError(
            f"rank 1 already learns {each / config.n_parameters:.1%} of this small model's parameters, "
            f"more than {share:.0%}. Leave out --lora."
        )
    return rank


def add_low_rank(model: GPT2, rank: int, seed: int = 0) -> GPT2:
    """Freeze the model and set a correction beside each matrix of its blocks: c_attn, c_fc, both c_proj."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for part in list(model.h.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Projection):
                setattr(part, name, LowRank(child, rank, generator))
    return model


def merged_state(model: GPT2) -> dict[str, Tensor]:
    """The model's tensors under their published names, corrections merged. The model stays as it is."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            state[f"{name}.weight"] = module.merged()
            state[f"{name}.bias"] = state.pop(f"{name}.plain.bias")
            for part in ("plain.weight", "A", "B"):
                del state[f"{name}.{part}"]
    return state


def learned_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
