"""How weights move: AdamW, or Muon for the matrices inside the blocks, on a warm-up and cosine schedule."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import Optimizer


def make_optimizers(
    model: nn.Module, lr: float, weight_decay: float, muon_lr: float | None
) -> list[Optimizer]:
    """Decay pulls on matrices only: a gain or a bias pulled to zero would be a norm switched off.

    With `muon_lr`, the blocks' matrices move by orthogonalised momentum (Muon, K. Jordan 2024) and the rest
    by AdamW: embeddings are tables of rows, not maps, and gain nothing from it.
    """
    hidden, tables, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif muon_lr is not None and name.startswith("h."):
            hidden.append(parameter)
        else:
            tables.append(parameter)
    groups = [{"params": tables, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizers: list[Optimizer] = [torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)]
    if hidden:
        assert muon_lr is not None
        optimizers.append(torch.optim.Muon(hidden, lr=muon_lr, weight_decay=weight_decay, momentum=0.95))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def schedule(step: int, steps: int, warmup: int, floor: float = 0.05) -> float:
    """The share of the peak rate at a step: a line up for `warmup` steps, then a cosine down to `floor`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
