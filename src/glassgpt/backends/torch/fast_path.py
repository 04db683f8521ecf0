"""When a fast path may take the place of the plain forward pass: its case, in one place.

A fast path knows what a module computes and does not call it. A module that computes something else (a LoRA
adapter, another attention, another activation) or that has a hook has to be called: there the
fast path is not taken. The two paths that depend on tensors alone state their case next to their code:
`activations.can_use_fast_gelu` and `head.can_return_float32`.
"""

from __future__ import annotations

from torch import nn

from glassgpt.model.activations import gelu_tanh
from glassgpt.model.attention import KERNEL_DTYPES
from glassgpt.model.gpt2 import GPT2, MLP, Attention, Block, Projection


def is_unmodified(module: object, cls: type[nn.Module]) -> bool:
    """Exactly of that class, with its own `forward`, and without hooks."""
    return (
        type(module) is cls
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
    )


def has_standard_attention(block: object) -> bool:
    """From the output of c_attn to the input of c_proj, this block computes what gpt2.py does."""
    return is_unmodified(block, Block) and is_unmodified(block.attn, Attention)  # type: ignore[attr-defined]


def has_standard_blocks(model: GPT2) -> bool:
    """All attentions are gpt2.py's: a block's output depends on its input and the mask alone.

    So `decode.decode_hidden` may replace every attention, `scoring` may pass masks that are not causal by
    position (windows with a common prefix), and `inspect` may run a block without those before it.
    """
    return all(map(has_standard_attention, model.h))


def can_skip_unscored(block: object) -> bool:
    """`scoring.last_block` computes queries for some tokens only, from slices of c_attn's matrix."""
    return has_standard_attention(block) and is_unmodified(block.attn.c_attn, Projection)  # type: ignore[attr-defined]


def can_capture(model: GPT2) -> bool:
    """A CUDA graph multiplies with the head's matrix itself, and runs the Python of a block once for all
    steps: other blocks, and projections with adapters, may decide something anew at each."""
    projections = (module for module in model.modules() if isinstance(module, Projection))
    return (
        is_unmodified(model, GPT2)
        and has_standard_blocks(model)
        and all(is_unmodified(projection, Projection) for projection in projections)
    )


def can_use_triton_block(block: object) -> bool:
    """`triton_kernels.decode_block` computes all of the block and calls none of its modules."""
    if not has_standard_attention(block):
        return False
    assert isinstance(block, Block)
    norms = (block.ln_1, block.ln_2)
    if not (is_unmodified(block.mlp, MLP) and all(is_unmodified(norm, nn.LayerNorm) for norm in norms)):
        return False
    projections = (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
    weights = list(block.parameters())
    return (
        all(is_unmodified(projection, Projection) for projection in projections)
        and block.mlp.activation is gelu_tanh
        and not block.training  # the kernels have no dropout
        and weights[0].dtype in KERNEL_DTYPES
        and len({(weight.dtype, weight.device) for weight in weights}) == 1
        and len(weights) == 12  # weight and bias of two norms and four projections
    )
