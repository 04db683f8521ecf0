"""How weights move: AdamW, or Muon for the matrices inside the blocks."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from glassgpt.train.settings import TrainSettings


def make_optimizers(model: nn.Module, settings: TrainSettings) -> list[Optimizer]:
    """Decay pulls on matrices only: a gain or a bias pulled to zero would be a norm switched off.

    With `muon_lr`, the blocks' matrices move by orthogonalised momentum (Muon, K. Jordan 2024) and the rest
    by AdamW: embeddings are tables of rows, not maps, and gain nothing from it.
    """
    hidden, tables, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif settings.muon_lr is not None and name.startswith("h."):
            hidden.append(parameter)
        else:
            tables.append(parameter)
    decay = settings.weight_decay
    groups = [{"params": tables, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    fused = next(model.parameters()).is_cuda
    adamw = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, settings.beta2), eps=1e-8, fused=fused)
    optimizers: list[Optimizer] = [adamw]
    if settings.muon_lr is not None:
        optimizers.append(torch.optim.Muon(hidden, lr=settings.muon_lr, weight_decay=decay, momentum=0.95))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_rate(optimizers: list[Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * share
