"""How weights move: AdamW, or Muon for the matrices inside the blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from glassgpt.train.distributed.parallelize import share, whole
from glassgpt.train.settings import TrainSettings


def make_optimizers(model: nn.Module, settings: TrainSettings) -> list[Optimizer]:
    """Decay pulls on matrices only: a gain or a bias pulled to zero would be a norm switched off.

    With `muon_lr`, the blocks' matrices move by orthogonalised momentum (Muon, K. Jordan 2024) and the rest
    by AdamW: embeddings are tables of rows, not maps, and gain nothing from it.
    """
    hidden, tables, vectors = {}, [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif settings.muon_lr is not None and name.startswith("h."):
            hidden[name] = parameter
        else:
            tables.append(parameter)
    decay = settings.weight_decay
    groups = [{"params": tables, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    # One pass over all there is to remember: on a CPU a third of the time, measured.
    fused = next(model.parameters()).device.type in ("cuda", "cpu")
    adamw = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, settings.beta2), eps=1e-8, fused=fused)
    optimizers: list[Optimizer] = [adamw]
    if settings.muon_lr is not None:
        some = next(iter(hidden.values()))
        muon = (
            MuonOfShares if isinstance(some, DTensor) else MuonTogether if some.is_cuda else torch.optim.Muon
        )
        optimizers.append(muon(hidden.items(), lr=settings.muon_lr, weight_decay=decay, momentum=0.95))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


class MuonTogether(torch.optim.Muon):
    """Muon for a GPU: matrices of one shape are orthogonalised together.

    torch's takes one after the other in some thirty small steps each, and a GPU waits to be told of every
    one: with 12 blocks of 512 that was a tenth of the time of an update of 262,144 tokens.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape, []).append(parameter)
            for parameters in alike.values():
                self.move(parameters, group)

    def move(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, momenta, group["momentum"])  # Nesterov's
        changes = orthogonal(torch.stack(ahead), group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = parameters[0].shape
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        torch._foreach_add_(parameters, list(changes.to(parameters[0].dtype).unbind()), alpha=-rate)


def orthogonal(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, smallest: float
) -> Tensor:
    """The matrices (N, A, B) with all their singular values brought near 1, in bfloat16.

    By Newton-Schulz: an odd polynomial of a matrix is that polynomial of its singular values, and this one,
    taken a few times, sends all of (0, 1] near 1.
    """
    a, b, c = coefficients
    x = matrices.bfloat16()
    x = x.mT if x.shape[1] > x.shape[2] else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=smallest)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


class MuonOfShares(torch.optim.Muon):
    """Muon where each process holds a share of every matrix: gathers one after the other to orthogonalise it.

    torch's Muon would multiply the shares, in bfloat16, and so add up in another order: after five steps its
    weights differ from one process's by 2e-3. Momentum and decay are element by element, and stay in shares.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.grad is None:
                    continue
                memory = self.state[parameter]
                if not memory:
                    memory["momentum_buffer"] = torch.zeros_like(parameter.grad)
                momentum = memory["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                change = self.orthogonal(whole(name, parameter.grad.lerp(momentum, group["momentum"])), group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(share(name, change, parameter))

    @staticmethod
    def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
        """What Muon would add to a matrix that has this momentum: it moves a matrix of zeros by it."""
        moved = nn.Parameter(torch.zeros_like(matrix))
        moved.grad = matrix
        torch.optim.Muon([moved], lr=group["lr"], weight_decay=0.0, momentum=0.0, nesterov=False).step()  # type: ignore[no-untyped-call]
        return moved.detach()


def set_rate(optimizers: list[Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * share
