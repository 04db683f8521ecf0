"""The activation functions of the MLP, by their names in `config.json`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.model.numpy_gpt2 import GELU_A, GELU_B


def gelu_tanh(x: Tensor) -> Tensor:
    """The published GELU: the tanh form. The exact (erf) form moves the logits by a few thousandths."""
    return fast_gelu_tanh(x) if can_use_fast_gelu(x) else F.gelu(x, approximate="tanh")


def can_use_fast_gelu(x: Tensor) -> bool:
    """On a CPU, in float32, without a gradient: it works in place."""
    return x.is_cpu and x.dtype == torch.float32 and not torch.is_grad_enabled()


def fast_gelu_tanh(x: Tensor) -> Tensor:
    """(1 + tanh y) / 2 is the sigmoid of 2 y, which torch computes three times as fast on a CPU."""
    twice_y = torch.addcmul(x.new_tensor(2 * GELU_A), x, x, value=2 * GELU_A * GELU_B).mul_(x)
    return twice_y.sigmoid_().mul_(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}
