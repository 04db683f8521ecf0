"""The product with the vocabulary, which needs more digits than half precision has."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def vocabulary_logits(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T: final vectors (..., C) against the rows of the head (V, C) -> (..., V)."""
    if not can_return_float32(x):
        return F.linear(x, weight)
    flat = torch.mm(x.reshape(-1, x.shape[-1]), weight.t(), out_dtype=torch.float32)
    return flat.view(*x.shape[:-1], -1)


def can_return_float32(x: Tensor) -> bool:
    """Half precision on CUDA, without a gradient: the product can return its float32 sums unrounded.

    GPT-2's logits lie near -100, where bfloat16 represents only every half.
    """
    return x.is_cuda and x.element_size() == 2 and not torch.is_grad_enabled()
