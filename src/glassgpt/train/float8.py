"""Products in float8, for GPUs that multiply it twice as fast as bfloat16 (Hopper and later).

A number of 8 bits has 3 of mantissa (e4m3, up to 448) or 2 (e5m2, up to 57,344). So each tensor is stretched
into that range first, and the product is divided by both stretches (Micikevicius et al., 2022). Weights are
stretched to fill it. To look for the largest number of an activation or a gradient would cost about what
float8 gains; these have a fixed stretch, which the range of float8 allows: it is wide, and what lies beyond
is cut off. The forward product and the gradient of its input are made so; the gradient of the weights, which
is what is learned, is a product of bfloat16: Hopper would want both its factors transposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassgpt.model.gpt2 import Projection

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
# Activations from 0.0005 to 112 and gradients of a token's loss from 1e-8 to 56: both with room to spare.
STRETCHES = {FORWARD: 4.0, BACKWARD: 1024.0}
LOGIT_STRETCH = 32768.0  # a logit's gradient is at most 1

Narrow = tuple[Tensor, Tensor]  # numbers of 8 bits, and the factor () that undoes their stretch


def filling(weight: Tensor) -> Narrow:
    """A weight in float8, stretched by as much as its largest number allows."""
    largest = weight.abs().amax().float().clamp(min=1e-12)
    limit = torch.finfo(FORWARD).max
    return (weight.float() * (limit / largest)).clamp(-limit, limit).to(FORWARD), largest / limit


def narrow(x: Tensor, dtype: torch.dtype) -> Narrow:
    """An activation or a gradient in float8."""
    limit, stretch = torch.finfo(dtype).max, STRETCHES[dtype]
    return (x * stretch).clamp(-limit, limit).to(dtype), factor(stretch, x)


def factor(stretch: float, like: Tensor) -> Tensor:
    return torch.full((), 1 / stretch, device=like.device)


def product(a: Narrow, b: Narrow, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """(N, K) times the transpose of (M, K), as the hardware wants them, plus bias (M): (N, M)."""
    out: Tensor = torch._scaled_mm(
        a[0], b[0].t(), scale_a=a[1], scale_b=b[1], bias=bias, out_dtype=dtype, use_fast_accum=True
    )
    return out


class _Product8(torch.autograd.Function):
    """x (N, in) @ weight (in, out) + bias (out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight8, factor = filling(weight)  # (in, out)
        ctx.save_for_backward(x, weight8, factor)
        return product(narrow(x, FORWARD), (weight8.t().contiguous(), factor), x.dtype, bias)  # (N, out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight8, factor = ctx.saved_tensors
        grad = upstream[0]  # (N, out)
        learning_x, learning_weight, learning_bias = ctx.needs_input_grad
        return (
            product(narrow(grad, BACKWARD), (weight8, factor), x.dtype) if learning_x else None,  # (N, in)
            x.t() @ grad if learning_weight else None,  # (in, out)
            grad.sum(0) if learning_bias else None,  # (out)
        )


class Float8Projection(Projection):
    """The same weights; while they are learned, another way to multiply by them."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or x.dtype != torch.bfloat16:
            return super().forward(x)
        flat = x.reshape(-1, x.shape[-1])  # (B * T, in)
        out: Tensor = _Product8.apply(flat, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], -1)  # (B, T, out)


def use_float8(model: nn.Module) -> None:
    """Let every projection whose sides the hardware can divide (by 16) multiply in float8 from now on."""
    for module in model.modules():
        if type(module) is Projection and not any(side % 16 for side in module.weight.shape):
            module.__class__ = Float8Projection


class Head8:
    """The head's two products with its weight (V, C), for stretches of x (N, C) one after the other."""

    def __init__(self, weight: Tensor) -> None:
        self.dtype = weight.dtype
        self.weight8, self.factor = filling(weight)  # (V, C)
        self.turned8 = self.weight8.t().contiguous()  # (C, V)
        self.gradient8 = torch.empty(0)

    def logits(self, x: Tensor) -> Tensor:
        return product(narrow(x, FORWARD), (self.weight8, self.factor), self.dtype)  # (N, V)

    def room_for(self, logits: Tensor) -> Tensor:
        """Where `loss_kernel.judge` shall put the gradient of these logits."""
        if self.gradient8.shape != logits.shape:
            self.gradient8 = torch.empty(logits.shape, device=logits.device, dtype=BACKWARD)
        return self.gradient8

    def pulled(self) -> Tensor:
        """The gradient of x, from what was put there."""
        return product(
            (self.gradient8, factor(LOGIT_STRETCH, self.gradient8)), (self.turned8, self.factor), self.dtype
        )  # (N, C)
