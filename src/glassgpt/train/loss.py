"""How surprised the model is by what came next, without ever holding all logits at once.

The logits of a batch are by far its largest tensor (65,536 tokens x 50,257 words x 4 bytes: 13 GB). So the
head, the softmax and the loss are computed for a stretch of tokens at a time, together with their gradients:
what is kept is only as large as the hidden vectors and the head's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from glassgpt.model import GPT2
from glassgpt.train.settings import TrainSettings

STRETCH = 8192  # tokens whose logits are held at once
IGNORED = -1  # a target that does not count: padding, or the question when only the answer is learned


def judge(
    logits: Tensor, targets: Tensor, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The summed surprise -log p of some tokens' logits (N, V), and the gradient of what is to be made small.

    That is the surprise itself: softmax, less one at the target. Two options add to the gradient but not to
    the surprise that is told, so that runs can be compared. `label_smoothing` shares so much of the target
    out among all tokens (Szegedy et al., 2015); `z_loss` times log(Z)^2 keeps the softmax's sum Z near 1,
    where half precision is fine (PaLM, 2022: 1e-4).

    Compiled, this is two passes over the logits; on an H200 that is 1.5 times the speed of a whole step.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = targets.clamp(min=0)[:, None]  # (N, 1)
    counts = (targets != IGNORED)[:, None]  # (N, 1)
    total = scores.logsumexp(dim=-1, keepdim=True)  # (N, 1)
    loss = ((total - scores.gather(1, chosen)) * counts).sum()
    share = (scores - total).exp()  # (N, V)
    if z_loss:
        share = share * (1 + 2 * z_loss * total)
    if label_smoothing:
        share = share - label_smoothing / scores.shape[1]
    at_target = torch.arange(scores.shape[1], device=scores.device)[None] == chosen
    pull = torch.where(at_target, share - (1 - label_smoothing), share)
    return loss, (pull * counts).to(logits.dtype)


def recomputed(run_block: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Call a block and keep nothing of it but its input: the backward pass calls it again, with the same
    random numbers (activation checkpointing, Chen et al., 2016)."""
    out: Tensor = checkpoint(run_block, *inputs, use_reentrant=False)
    return out


class Way(NamedTuple):
    """How a step is computed: how to call a block, and how to judge logits."""

    run_block: Callable[..., Tensor] = nn.Module.__call__
    judge: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = judge

    @classmethod
    def of(cls, settings: TrainSettings) -> Way:
        """Compiled, one block serves all layers."""
        run_block: Callable[..., Tensor] = nn.Module.__call__
        with_gradient: Callable[..., tuple[Tensor, Tensor]]
        with_gradient = partial(judge, z_loss=settings.z_loss, label_smoothing=settings.label_smoothing)
        if settings.compile:
            run_block, with_gradient = torch.compile(run_block), torch.compile(with_gradient)
        return cls(partial(recomputed, run_block) if settings.recompute else run_block, with_gradient)


PLAIN = Way()


def summed_loss(
    model: GPT2,
    ids: Tensor,
    targets: Tensor,
    way: Way = PLAIN,
    held: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> Tensor:
    """The sum of -log p(target) over all tokens that count, in nats, (B, T) and (B, T) -> ().

    Its gradient is that of what `way` wants to be small. `held` turns the head's weight into what this
    process multiplies with, where many hold it together.
    """
    x = model.hidden(ids, run_block=way.run_block)  # (B, T, C)
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight  # (V, C)
    weight = held(weight)
    if not torch.is_grad_enabled():
        weight = weight.detach()  # else its gradient would be computed along with the loss
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    loss: Tensor = _HeadAndLoss.apply(x.flatten(0, 1), weight, targets.flatten(), way.judge)  # type: ignore[no-untyped-call]
    return loss


class _HeadAndLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, with_gradient: Any) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        total = torch.zeros((), device=x.device, dtype=wide)
        learning_x, learning_weight = ctx.needs_input_grad[:2]  # a frozen head needs no gradient
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight, dtype=wide) if learning_weight else None
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), STRETCH):
                some = slice(start, start + STRETCH)
                logits = F.linear(x[some], weight)  # (stretch, V)
                loss, grad = with_gradient(logits, targets[some])
                total += loss
                if learning_x:
                    grad_x[some] = grad @ weight
                if grad_weight is not None:
                    grad_weight += grad.t() @ x[some]
        ctx.save_for_backward(grad_x, None if grad_weight is None else grad_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * upstream[0], None if grad_weight is None else grad_weight * upstream[0], None, None
