"""Matrix products in float8, for GPUs that multiply it twice as fast as bfloat16 (Hopper and later).

A float8 value has 3 bits of mantissa (e4m3, up to 448) or 2 (e5m2, up to 57,344). So each tensor is scaled
into that range first, and the product is divided by both scales (Micikevicius et al., 2022). Weights are
scaled to fill the range. Finding the largest value of an activation or a gradient would cost about what
float8 gains; these have a fixed scale, which float8's wide range allows, and values beyond it are clamped.
The forward product and the gradient of its input are computed in float8; the gradient of the weights, which
is what is learned, is a bfloat16 product: Hopper would need both its factors transposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassgpt.model.gpt2 import Projection

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
# Activations from 0.0005 to 112 and gradients of a token's loss from 1e-8 to 56: both with room to spare.
SCALES = {FORWARD: 4.0, BACKWARD: 1024.0}
DLOGITS_SCALE = 32768.0  # a logit's gradient is at most 1

Scaled = tuple[Tensor, Tensor]  # float8 values, and the factor () that undoes their scale


def quantize_weight(weight: Tensor) -> Scaled:
    """A weight in float8, scaled so that its largest value fills the range."""
    largest = weight.abs().amax().float().clamp(min=1e-12)
    limit = torch.finfo(FORWARD).max
    return (weight.float() * (limit / largest)).clamp(-limit, limit).to(FORWARD), largest / limit


def quantize(x: Tensor, dtype: torch.dtype) -> Scaled:
    """An activation or a gradient in float8."""
    limit, scale = torch.finfo(dtype).max, SCALES[dtype]
    return (x * scale).clamp(-limit, limit).to(dtype), inverse_scale(scale, x)


def inverse_scale(scale: float, like: Tensor) -> Tensor:
    return torch.full((), 1 / scale, device=like.device)


def scaled_mm(a: Scaled, b: Scaled, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """(N, K) times the transpose of (M, K), as the hardware wants them, plus bias (M): (N, M)."""
    out: Tensor = torch._scaled_mm(
        a[0], b[0].t(), scale_a=a[1], scale_b=b[1], bias=bias, out_dtype=dtype, use_fast_accum=True
    )
    return out


class _Float8Linear(torch.autograd.Function):
    """x (N, in) @ weight (in, out) + bias (out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight8, factor = quantize_weight(weight)  # (in, out)
        ctx.save_for_backward(x, weight8, factor)
        return scaled_mm(quantize(x, FORWARD), (weight8.t().contiguous(), factor), x.dtype, bias)  # (N, out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight8, factor = ctx.saved_tensors
        grad = upstream[0]  # (N, out)
        needs_dx, needs_dweight, needs_dbias = ctx.needs_input_grad
        return (
            scaled_mm(quantize(grad, BACKWARD), (weight8, factor), x.dtype) if needs_dx else None,  # (N, in)
            x.t() @ grad if needs_dweight else None,  # (in, out)
            grad.sum(0) if needs_dbias else None,  # (out)
        )


class Float8Projection(Projection):
    """A Projection that multiplies in float8 while it is trained in bfloat16, and plainly otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or x.dtype != torch.bfloat16:
            return super().forward(x)
        flat = x.reshape(-1, x.shape[-1])  # (B * T, in)
        out: Tensor = _Float8Linear.apply(flat, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], -1)  # (B, T, out)


def apply_float8(model: nn.Module) -> None:
    """Let every projection whose sides the hardware can handle (multiples of 16) multiply in float8."""
    for module in model.modules():
        if type(module) is Projection and not any(side % 16 for side in module.weight.shape):
            module.__class__ = Float8Projection


class Float8Head:
    """The head's two products with its weight (V, C), for chunks of x (N, C) in turn."""

    def __init__(self, weight: Tensor) -> None:
        self.dtype = weight.dtype
        self.weight8, self.factor = quantize_weight(weight)  # (V, C)
        self.transposed8 = self.weight8.t().contiguous()  # (C, V)
        self.dlogits8 = torch.empty(0)

    def logits(self, x: Tensor) -> Tensor:
        return scaled_mm(quantize(x, FORWARD), (self.weight8, self.factor), self.dtype)  # (N, V)

    def dlogits_like(self, logits: Tensor) -> Tensor:
        """The buffer that `loss_kernel.cross_entropy_with_grad` fills with the gradient of these logits."""
        if self.dlogits8.shape != logits.shape:
            self.dlogits8 = torch.empty(logits.shape, device=logits.device, dtype=BACKWARD)
        return self.dlogits8

    def dx(self) -> Tensor:
        """The gradient of x, from what that buffer holds."""
        scaled = (self.dlogits8, inverse_scale(DLOGITS_SCALE, self.dlogits8))
        return scaled_mm(scaled, (self.transposed8, self.factor), self.dtype)  # (N, C)
