"""Surprise and its gradient from logits as one GPU kernel: Triton, for CUDA only.

The logits are the largest tensor of a step, so what counts is how often they pass through memory. Here a
program takes a row: it adds up the softmax, then turns the row, which the chip's cache still holds, into its
gradient, in place. The same function as `loss.judge`, and tested against it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassgpt.train.float8 import LOGIT_STRETCH


def judge(
    logits: Tensor,
    targets: Tensor,
    vocabulary: int,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    gradient8: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The summed surprise () and the gradient (N, V), which takes the place of the logits.

    `gradient8` (N, V), if given, is filled with the gradient times LOGIT_STRETCH.
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    grid: Any = (len(logits),)
    _judge[grid](
        logits, targets, losses, logits if gradient8 is None else gradient8,
        vocabulary, logits.shape[1], z_loss, label_smoothing, LOGIT_STRETCH,
        WITH8=gradient8 is not None, BLOCK=2048, num_warps=8,
    )  # fmt: skip
    return losses.sum(), logits


@triton.jit
def _judge(
    logits, targets, losses, gradient8,
    vocabulary, width, z_loss, label_smoothing, stretch,
    WITH8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    target = tl.load(targets + row)
    counts = target >= 0

    # Each lane keeps its own largest score and the sum of exp(score - largest); of the old sum and the new
    # score only the smaller needs an exponential.
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        scores = tl.load(start + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32)
        shrunk = tl.exp(-tl.abs(scores - largest))
        total = tl.where(scores > largest, total * shrunk + 1, total + shrunk)
        largest = tl.maximum(largest, scores)
    top = tl.max(largest, 0)
    log_total = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))

    score = tl.load(start + tl.where(counts, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counts, log_total - score, 0.0))
    grown = 1 + 2 * z_loss * log_total
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        scores = tl.load(start + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32)
        pull = tl.exp(scores - log_total) * grown
        pull = tl.where(columns < vocabulary, pull - label_smoothing / vocabulary, pull)
        pull = tl.where(columns == target, pull - (1 - label_smoothing), pull)
        pull = tl.where(counts, pull, 0.0)
        tl.store(start + columns, pull.to(logits.dtype.element_ty), mask=columns < width)
        if WITH8:
            small = (pull * stretch).to(gradient8.dtype.element_ty)
            tl.store(gradient8 + row * width + columns, small, mask=columns < width)
