"""Products in float8, for GPUs that multiply it twice as fast as bfloat16 (Hopper and later).

A number of 8 bits has 3 of mantissa (e4m3, up to 448) or 2 (e5m2, up to 57,344). So each tensor is first
stretched to fill that range, and the product is divided by both stretches (Micikevicius et al., 2022). The
forward product and the gradient of its input are made so; the gradient of the weights, which is what is
learned, is a product of bfloat16: Hopper would want both its factors transposed, which costs about as much as
it saves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassgpt.model.gpt2 import Projection


def stretched(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in float8, and the factor () that undoes its stretch."""
    largest = x.abs().amax().float().clamp(min=1e-12)
    limit = torch.finfo(dtype).max
    x8 = (x.float() * (limit / largest)).clamp(-limit, limit).to(dtype)
    return x8, largest / limit


def product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """(N, K) times the transpose of (M, K), as the hardware wants them: (N, M)."""
    out: Tensor = torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=dtype)
    return out


class _Product8(torch.autograd.Function):
    """x (N, in) @ weight (in, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        weight8, factor = stretched(weight, torch.float8_e4m3fn)  # (in, out)
        ctx.save_for_backward(x, weight8, factor)
        return product(
            stretched(x, torch.float8_e4m3fn), (weight8.t().contiguous(), factor), x.dtype
        )  # (N, out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight8, factor = ctx.saved_tensors
        grad = upstream[0]  # (N, out)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = product(stretched(grad, torch.float8_e5m2), (weight8, factor), x.dtype)  # (N, in)
        if ctx.needs_input_grad[1]:
            grad_weight = x.t() @ grad  # (in, out)
        return grad_x, grad_weight


class Float8Projection(Projection):
    """The same weights; while they are learned, another way to multiply by them."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or x.dtype != torch.bfloat16:
            return super().forward(x)
        flat = x.reshape(-1, x.shape[-1])  # (B * T, in)
        out: Tensor = _Product8.apply(flat, self.weight)  # type: ignore[no-untyped-call]
        return (out + self.bias).view(*x.shape[:-1], -1)  # (B, T, out)


def use_float8(model: nn.Module) -> None:
    """Let every projection whose sides the hardware can divide (by 16) multiply in float8 from now on."""
    for module in model.modules():
        if type(module) is Projection and not any(side % 16 for side in module.weight.shape):
            module.__class__ = Float8Projection
