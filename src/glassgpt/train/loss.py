"""How surprised the model is by what came next, without ever holding all logits at once.

The logits of a batch are by far its largest tensor (65,536 tokens x 50,257 words x 4 bytes: 13 GB). So the
head, the softmax and the loss are computed for a stretch of tokens at a time, together with their gradients:
what is kept is only as large as the hidden vectors and the head's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.train.float8 import Head8

STRETCH = 8192  # tokens whose logits are held at once; twice or four times as many gain 0.3% on an H200
IGNORED = -1  # a target that does not count: padding, or the question when only the answer is learned

Judge = Callable[..., tuple[Tensor, Tensor]]  # like `judge` below


def judge(
    logits: Tensor, targets: Tensor, vocabulary: int, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The summed surprise -log p of some tokens' logits (N, V), and the gradient of what is to be made small.

    That is the surprise itself: softmax, less one at the target. Two options add to the gradient but not to
    the surprise that is told, so that runs can be compared. `label_smoothing` shares so much of the target
    out among all tokens (Szegedy et al., 2015); `z_loss` times log(Z)^2 keeps the softmax's sum Z near 1,
    where half precision is fine (PaLM, 2022: 1e-4). Columns beyond the vocabulary are padding.

    Each line is a pass over the logits, so there are as few as can be. (`loss_kernel.py` has one for CUDA.)
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scores.shape[1] > vocabulary:
        scores = scores.index_fill(
            1, torch.arange(vocabulary, scores.shape[1], device=scores.device), -torch.inf
        )
    chosen = targets.clamp(min=0)[:, None]  # (N, 1)
    counts = (targets != IGNORED)[:, None]  # (N, 1)
    pull = scores.log_softmax(dim=-1)  # (N, V)
    surprise = -pull.gather(1, chosen)  # (N, 1)
    pull.exp_()
    if z_loss:
        pull *= 1 + 2 * z_loss * (surprise + scores.gather(1, chosen))
    if label_smoothing:
        pull[:, :vocabulary] -= label_smoothing / vocabulary
    pull.scatter_add_(1, chosen, torch.full_like(surprise, label_smoothing - 1))
    return (surprise * counts).sum(), pull.mul_(counts).to(logits.dtype)


def head_and_loss(x: Tensor, weight: Tensor, targets: Tensor, judge: Judge, float8: bool = False) -> Tensor:
    """The summed surprise () of final vectors (N, C) scored against the vocabulary's rows (V, C).

    With `float8` the logits and the gradient of x are products of float8, as in `float8.py`.
    """
    if not torch.is_grad_enabled():
        weight = weight.detach()  # else its gradient would be computed along with the loss
    loss: Tensor = _HeadAndLoss.apply(x, weight, targets, judge, float8)  # type: ignore[no-untyped-call]
    return loss


class _HeadAndLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, judge: Judge, float8: bool) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        total = torch.zeros((), device=x.device, dtype=wide)
        learning_x, learning_weight = ctx.needs_input_grad[:2]  # a frozen head needs no gradient
        grad_x = torch.empty_like(x)
        rounded = aligned(weight.to(x.dtype))  # (V or a little more, C)
        grad_weight = torch.zeros_like(rounded, dtype=wide) if learning_weight else None
        head8 = Head8(rounded) if float8 else None
        for start in range(0, len(x), STRETCH):
            some = slice(start, start + STRETCH)
            if head8 is None:
                logits = F.linear(x[some], rounded)  # (stretch, V)
                loss, grad = judge(logits, targets[some], len(weight))
            else:
                logits = head8.logits(x[some])
                loss, grad = judge(logits, targets[some], len(weight), gradient8=head8.room_for(logits))
            total += loss
            if learning_x:
                grad_x[some] = grad @ rounded if head8 is None else head8.pulled()
            if grad_weight is not None:
                grad_weight += grad.t() @ x[some]
        if grad_weight is not None:
            grad_weight = grad_weight[: len(weight)].to(weight.dtype)
        ctx.save_for_backward(grad_x, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        grad_x, grad_weight = ctx.saved_tensors
        learned = None if grad_weight is None else grad_weight * upstream[0]
        return grad_x * upstream[0], learned, None, None, None


def aligned(weight: Tensor) -> Tensor:
    """With rows added to a multiple of 64: a GPU's products are slow if a row of logits does not begin where
    a line of memory does, and GPT-2's vocabulary, 50,257, is odd."""
    extra = -len(weight) % 64
    return weight if extra == 0 or not weight.is_cuda else F.pad(weight, (0, 0, 0, extra))
