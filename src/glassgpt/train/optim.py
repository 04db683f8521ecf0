"""Optimizers: AdamW, or Muon for the matrices of the blocks and AdamW for the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from glassgpt.train.distributed.parallelize import shard, unshard
from glassgpt.train.settings import TrainSettings


def make_optimizers(model: nn.Module, settings: TrainSettings) -> list[Optimizer]:
    """Weight decay is for matrices only: a gain decayed to zero would switch its norm off.

    With Muon, the blocks' matrices are updated by orthogonalized momentum (K. Jordan, 2024) and the rest by
    AdamW: embeddings are lookup tables, not linear maps, and gain nothing from it.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices, tables, vectors = {}, [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif settings.optimizer == "muon" and name.startswith("h.") and id(parameter) not in embeddings:
            matrices[name] = parameter
        else:
            tables.append(parameter)
    decay = settings.weight_decay
    groups = [{"params": tables, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    # One pass over parameters and state: on a CPU a third of the time, measured.
    fused = next(model.parameters()).device.type in ("cuda", "cpu")
    adamw = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, settings.beta2), eps=1e-8, fused=fused)
    optimizers: list[Optimizer] = [adamw]
    if settings.optimizer == "muon":
        assert settings.matrix_lr is not None  # TrainSettings sets it
        first = next(iter(matrices.values()))
        muon = (
            ShardedMuon if isinstance(first, DTensor) else BatchedMuon if first.is_cuda else torch.optim.Muon
        )
        optimizers.append(muon(matrices.items(), lr=settings.matrix_lr, weight_decay=decay, momentum=0.95))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


class BatchedMuon(torch.optim.Muon):
    """Muon for a GPU: matrices of one shape are orthogonalized as a batch.

    torch's Muon handles one after the other with some thirty kernel launches each: with 12 blocks of width
    512 that took a tenth of a step of 262,144 tokens.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self.update(parameters, group)

    def update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(grads, momenta, group["momentum"])
        updates = orthogonalize(
            torch.stack(nesterov), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rows, columns = parameters[0].shape
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        lr = group["lr"] * max(1.0, rows / columns) ** 0.5
        torch._foreach_add_(parameters, list(updates.to(parameters[0].dtype).unbind()), alpha=-lr)


def orthogonalize(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """The matrices (N, A, B) with all singular values near 1, in bfloat16.

    By Newton-Schulz iteration: an odd polynomial of a matrix is that polynomial of its singular values, and
    this one, applied a few times, maps all of (0, 1] near 1.
    """
    a, b, c = coefficients
    x = matrices.bfloat16()
    x = x.mT if x.shape[1] > x.shape[2] else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


class ShardedMuon(torch.optim.Muon):
    """Muon for sharded matrices: gathers one matrix after the other to orthogonalize it.

    torch's Muon would multiply the shards, in bfloat16, and so sum in another order: after five steps the
    weights differ from those of one process by 2e-3. Momentum and decay are elementwise, and stay sharded.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                nesterov = unshard(name, parameter.grad.lerp(momentum, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(shard(name, self.muon_update(nesterov, group), parameter))

    @staticmethod
    def muon_update(momentum: Tensor, group: dict[str, Any]) -> Tensor:
        """The update that Muon computes from this momentum: its step from zero."""
        zeros = nn.Parameter(torch.zeros_like(momentum))
        zeros.grad = momentum
        torch.optim.Muon([zeros], lr=group["lr"], weight_decay=0.0, momentum=0.0, nesterov=False).step()  # type: ignore[no-untyped-call]
        return zeros.detach()


def set_lr(optimizers: list[Optimizer], ratio: float) -> None:
    """Set every learning rate to a fraction of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * ratio
