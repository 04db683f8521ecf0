"""Whether parts of a model are just those of gpt2.py: what a quicker way asks before it takes their place.

A quicker way knows what a part computes and does not call it. A part that computes something else (a
correction beside a matrix, another attention) or that somebody listens to (a hook) has to be called.
"""

from __future__ import annotations

import torch
from torch import nn

from glassgpt.model.gpt2 import GPT2, MLP, Attention, Block, Projection, gelu_tanh

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # the kernels' sums are float32


def is_just(part: object, kind: type[nn.Module]) -> bool:
    """Of that very class, with its own `forward`, and no hooks around it."""
    return (
        type(part) is kind
        and "forward" not in vars(part)
        and not (part._forward_hooks or part._forward_pre_hooks)
    )


def attends_plainly(block: object) -> bool:
    """Its attention is gpt2.py's, from c_attn's result to what c_proj is given; the rest may be another."""
    return is_just(block, Block) and is_just(block.attn, Attention)  # type: ignore[attr-defined]


def all_attend_plainly(model: GPT2) -> bool:
    return all(map(attends_plainly, model.h))


def fits_kernels(block: object) -> bool:
    """All of it is what kernels.run_block computes."""
    if not attends_plainly(block):
        return False
    assert isinstance(block, Block)
    norms = (block.ln_1, block.ln_2)
    if not (is_just(block.mlp, MLP) and all(is_just(norm, nn.LayerNorm) for norm in norms)):
        return False
    projections = (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
    weights = list(block.parameters())
    return (
        all(is_just(projection, Projection) for projection in projections)
        and block.mlp.activation is gelu_tanh
        and not block.training  # there is no dropout in a kernel
        and weights[0].dtype in KERNEL_DTYPES
        and len({(weight.dtype, weight.device) for weight in weights}) == 1
        and len(weights) == 12  # a gain and a bias for each norm, a weight and a bias for each projection
    )
