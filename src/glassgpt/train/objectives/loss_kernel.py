"""Cross-entropy and its gradient in one GPU kernel: Triton, CUDA only.

The logits are the largest tensor of a step, so what matters is how often they pass through memory. Here one
program handles one row: it sums the softmax, then overwrites the row, which is still in the chip's cache,
with its gradient. The same function as `loss.cross_entropy_with_grad`, and tested against it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassgpt.train.layers.float8 import DLOGITS_SCALE


def cross_entropy_with_grad(
    logits: Tensor,
    targets: Tensor,
    vocab_size: int,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    dlogits8: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The summed negative log-likelihood () and the gradient (N, V), which overwrites the logits.

    `dlogits8` (N, V), if given, is filled with the gradient times DLOGITS_SCALE.
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    grid: Any = (len(logits),)
    _cross_entropy[grid](
        logits, targets, losses, logits if dlogits8 is None else dlogits8,
        vocab_size, logits.shape[1], z_loss, label_smoothing, DLOGITS_SCALE,
        WITH8=dlogits8 is not None, BLOCK=2048, num_warps=8,
    )  # fmt: skip
    return losses.sum(), logits


@triton.jit
def _cross_entropy(
    logits, targets, losses, dlogits8,
    vocab_size, width, z_loss, label_smoothing, scale,
    WITH8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    target = tl.load(targets + row)
    counts = target >= 0

    # Online softmax: each lane tracks its own maximum and the sum of exp(score - maximum); of the old sum and
    # the new score only the smaller needs an exponential.
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocab_size, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        scores = tl.load(start + columns, mask=columns < vocab_size, other=-float("inf")).to(tl.float32)
        decay = tl.exp(-tl.abs(scores - largest))
        total = tl.where(scores > largest, total * decay + 1, total + decay)
        largest = tl.maximum(largest, scores)
    top = tl.max(largest, 0)
    log_total = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))

    score = tl.load(start + tl.where(counts, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counts, log_total - score, 0.0))
    z_factor = 1 + 2 * z_loss * log_total
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        scores = tl.load(start + columns, mask=columns < vocab_size, other=-float("inf")).to(tl.float32)
        dlogits = tl.exp(scores - log_total) * z_factor
        dlogits = tl.where(columns < vocab_size, dlogits - label_smoothing / vocab_size, dlogits)
        dlogits = tl.where(columns == target, dlogits - (1 - label_smoothing), dlogits)
        dlogits = tl.where(counts, dlogits, 0.0)
        tl.store(start + columns, dlogits.to(logits.dtype.element_ty), mask=columns < width)
        if WITH8:
            scaled = (dlogits * scale).to(dlogits8.dtype.element_ty)
            tl.store(dlogits8 + row * width + columns, scaled, mask=columns < width)
