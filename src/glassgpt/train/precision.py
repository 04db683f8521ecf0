"""The precision of a training step.

The weights that an optimizer updates are always float32: an update is often a ten-thousandth of a weight, and
bfloat16 has only two or three digits. In half precision each pass works on a new cast copy of
them; gradients come back through the cast as float32, so accumulation, clipping, optimizers and checkpoints
know nothing about it. Everything between the embedding and the loss then takes half the memory traffic,
including the residual stream, which `torch.autocast` would keep in float32. (GPT-2 small on an H200,
compiled: 509,000 tokens/s with autocast, 526,000 this way.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.model import GPT2
from glassgpt.train.settings import TrainSettings

CAST_TO = {"auto": None, "float32": None, "float16": torch.float16}  # all others: bfloat16


def pick_precision(device: torch.device) -> str:
    """bfloat16 where the device has instructions for it, float32 elsewhere."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    try:
        features = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return "float32"
    # AVX-512 BF16 and AMX; on Arm just bf16. Without them torch computes in float32 and rounds: slower.
    return (
        "bfloat16" if device.type == "cpu" and features & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"
    )


def cast_dtype(settings: TrainSettings) -> torch.dtype | None:
    """The dtype of the copies of the weights that a pass works on; None: the weights themselves."""
    return CAST_TO.get(settings.precision, torch.bfloat16)


def compute_dtype(settings: TrainSettings, model: GPT2) -> torch.dtype:
    """The dtype of activations."""
    dtype = cast_dtype(settings)
    return model.wte.weight.dtype if dtype is None else dtype


class _Cast(torch.autograd.Function):
    """Copies of all tensors in another dtype; their gradients come back in the original dtypes.

    All at once: a model has hundreds of tensors, and launching one copy on a GPU takes as long as the copy.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
        trained = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(c for c, needed in zip(copies, trained, strict=True) if not needed))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        trained = ctx.needs_input_grad[1:]
        wide = [
            torch.empty_like(grad, dtype=dtype)
            for grad, dtype, needed in zip(grads, ctx.dtypes, trained, strict=True)
            if needed
        ]
        torch._foreach_copy_(wide, [grad for grad, needed in zip(grads, trained, strict=True) if needed])
        grads_back = iter(wide)
        return None, *(next(grads_back) if needed else None for needed in trained)


def cast_together(parameters: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    copies: tuple[Tensor, ...] = _Cast.apply(dtype, *parameters)  # type: ignore[no-untyped-call]
    return copies


def cast_one_by_one(parameters: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Copies whose gradients can each be reduced over processes as soon as it is computed."""
    return [parameter.to(dtype) for parameter in parameters]
