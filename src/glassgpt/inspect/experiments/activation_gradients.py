"""Gradients of a metric by activations, which only torch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glassgpt.inspect.arrays import AnyArray
from glassgpt.model.gpt2 import GPT2


def estimate_changes(
    model: GPT2,
    base_ids: Sequence[Sequence[int]],
    other_ids: Sequence[Sequence[int]],
    steps: Sequence[str],
    score: Callable[[AnyArray], AnyArray],
    first: int,
) -> tuple[Tensor, list[Tensor]]:
    """The metric (B,) of the base texts, and for each step gradient x (other - base), number by number.

    Rows have one length. `score` takes the logits from position `first` on.
    """
    device = model.wte.weight.device
    kept: dict[str, Tensor] = {}
    wanted = set(steps)

    def keep_with_gradient(name: str, x: Tensor) -> Tensor:
        if name == "embedding":  # the weights need no gradients, so the activations begin here
            x = x.detach().requires_grad_()
        if name in wanted:
            kept[name] = x
        return x

    others: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> Tensor:
        if name in wanted:
            others[name] = x
        return x

    with torch.no_grad():
        model.hidden(torch.tensor(other_ids, device=device), tap=keep)
    with torch.enable_grad():
        hidden = model.hidden(torch.tensor(base_ids, device=device), tap=keep_with_gradient)
        values = score(model.head(hidden[:, first:]))
        total = values.sum()
        if not total.requires_grad:
            return values, [torch.zeros_like(kept[name]) for name in steps]
        gradients = torch.autograd.grad(total, [kept[name] for name in steps], materialize_grads=True)
    changes = [
        gradient * (others[name] - kept[name].detach())
        for gradient, name in zip(gradients, steps, strict=True)
    ]
    return values.detach(), changes
