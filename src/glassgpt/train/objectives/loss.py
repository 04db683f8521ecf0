"""Language model head and cross-entropy, without ever materializing all logits.

The logits of a batch are by far its largest tensor (65,536 tokens x 50,257 words x 4 bytes: 13 GB). So the
head, the softmax and the loss are computed for a chunk of tokens at a time, together with their gradients:
what is stored is only as large as the hidden states and the head's weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.train.layers.float8 import Float8Head

CHUNK = 8192  # tokens whose logits are in memory together; two or four times as many gain 0.3% on an H200
IGNORE_INDEX = -1  # a target that does not count

CrossEntropy = Callable[..., tuple[Tensor, Tensor]]  # like `cross_entropy_with_grad`


def cross_entropy_with_grad(
    logits: Tensor, targets: Tensor, vocab_size: int, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The summed negative log-likelihood () of logits (N, V), and the gradient of the training loss (N, V).

    The gradient of the negative log-likelihood is the softmax, less one at the target. Two options change the
    gradient but not the loss that is returned, so that runs can be compared. `label_smoothing` spreads that
    fraction of the target over all tokens (Szegedy et al., 2015); `z_loss` times log(Z)^2 keeps the softmax's
    normalizer Z near 1, where half precision is accurate (PaLM, 2022: 1e-4). Columns beyond the vocabulary
    are padding.

    Each line is a pass over the logits, so there are as few as possible. (`loss_kernel.py` has one for CUDA.)
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scores.shape[1] > vocab_size:
        scores = scores.index_fill(
            1, torch.arange(vocab_size, scores.shape[1], device=scores.device), -torch.inf
        )
    index = targets.clamp(min=0)[:, None]  # (N, 1)
    mask = (targets != IGNORE_INDEX)[:, None]  # (N, 1)
    dlogits = scores.log_softmax(dim=-1)  # (N, V)
    nll = -dlogits.gather(1, index)  # (N, 1)
    dlogits.exp_()
    if z_loss:
        dlogits *= 1 + 2 * z_loss * (nll + scores.gather(1, index))
    if label_smoothing:
        dlogits[:, :vocab_size] -= label_smoothing / vocab_size
    dlogits.scatter_add_(1, index, torch.full_like(nll, label_smoothing - 1))
    return (nll * mask).sum(), dlogits.mul_(mask).to(logits.dtype)


def head_and_loss(
    x: Tensor, weight: Tensor, targets: Tensor, cross_entropy: CrossEntropy, float8: bool = False
) -> Tensor:
    """The summed loss () of final hidden states (N, C) under the head's weight (V, C).

    With `float8` the logits and the gradient of x are float8 products, as in `float8.py`.
    """
    if not torch.is_grad_enabled():
        weight = weight.detach()  # else its gradient would be computed along with the loss
    loss: Tensor = _HeadAndLoss.apply(x, weight, targets, cross_entropy, float8)  # type: ignore[no-untyped-call]
    return loss


class _HeadAndLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, cross_entropy: CrossEntropy, float8: bool
    ) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        total = torch.zeros((), device=x.device, dtype=wide)
        needs_dx, needs_dweight = ctx.needs_input_grad[:2]  # a frozen head needs no gradient
        dx = torch.empty_like(x)
        padded = pad_vocabulary(weight.to(x.dtype))  # (V or a little more, C)
        dweight = torch.zeros_like(padded, dtype=wide) if needs_dweight else None
        head8 = Float8Head(padded) if float8 else None
        for start in range(0, len(x), CHUNK):
            chunk = slice(start, start + CHUNK)
            if head8 is None:
                logits = F.linear(x[chunk], padded)  # (chunk, V)
                loss, dlogits = cross_entropy(logits, targets[chunk], len(weight))
            else:
                logits = head8.logits(x[chunk])
                loss, dlogits = cross_entropy(
                    logits, targets[chunk], len(weight), dlogits8=head8.dlogits_like(logits)
                )
            total += loss
            if needs_dx:
                dx[chunk] = dlogits @ padded if head8 is None else head8.dx()
            if dweight is not None:
                dweight += dlogits.t() @ x[chunk]
        if dweight is not None:
            dweight = dweight[: len(weight)].to(weight.dtype)
        ctx.save_for_backward(dx, dweight)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        dx, dweight = ctx.saved_tensors
        return dx * upstream[0], None if dweight is None else dweight * upstream[0], None, None, None


def pad_vocabulary(weight: Tensor) -> Tensor:
    """With rows added up to a multiple of 64: matrix products on a GPU are slow if a row of logits is not
    aligned, and GPT-2's vocabulary, 50,257, is odd."""
    extra = -len(weight) % 64
    return weight if extra == 0 or not weight.is_cuda else F.pad(weight, (0, 0, 0, extra))
