"""One new token per sequence: the step that generation repeats, with a special attention.

The plain forward pass would compare the token with every slot of the cache and mask the empty ones. Here each
sequence attends to its own slots only: its values do not depend on its neighbors, and short sequences do not
pay for long ones. Everything but the attention is computed by the model's own modules.
`fast_path.has_standard_blocks` says for which models this is right.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.model.cache import Cache, LayerCache
from glassgpt.model.gpt2 import GPT2, Block
from glassgpt.model.mask import visible

# (qkv (B, 1, 3 C), kv (2, B, H, context + 1, D), positions (B, 1), H, scale) -> z (B, H, 1, D); writes to kv
AttendOne = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
DecodeBlock = Callable[[Block, Tensor, Tensor, Tensor, AttendOne], Tensor]


def decode_block(block: Block, x: Tensor, positions: Tensor, kv: Tensor, attend_one: AttendOne) -> Tensor:
    """`Block.forward` for one token per sequence, (B, 1, C) -> (B, 1, C)."""
    attn = block.attn
    qkv = attn.c_attn(block.ln_1(x))  # (B, 1, 3 C)
    z = attend_one(qkv, kv, positions, attn.n_head, attn.scale)  # (B, H, 1, D)
    x = x + attn.merge(z, None)  # (B, 1, C)
    mlp: Tensor = block.mlp(block.ln_2(x), None)  # (B, 1, C)
    return x + mlp


def decode_hidden(
    model: GPT2,
    ids: Tensor,
    positions: Tensor,
    cache: Cache,
    attend_one: AttendOne,
    run_block: DecodeBlock = decode_block,
) -> Tensor:
    """`GPT2.hidden` for one token per sequence: ids (B, 1) at positions (B, 1) -> (B, 1, C). -1: idle."""
    x = model.embed(ids, positions)  # (B, 1, C)
    for i, block in enumerate(model.h):
        x = run_block(block, x, positions, cache.layer(i).kv, attend_one)  # type: ignore[arg-type]
    out: Tensor = model.ln_f(x)
    return out


def attend_each_row(qkv: Tensor, kv: Tensor, positions: Tensor, H: int, scale: float) -> Tensor:
    """One sequence after the other, each over its own length: for CPUs, where a call costs little."""
    B, D, context = len(qkv), kv.shape[4], kv.shape[3] - 1
    q, k, v = qkv.view(B, 3, H, 1, D).unbind(dim=1)  # (B, H, 1, D) each
    z = torch.zeros(B, H, 1, D, dtype=qkv.dtype, device=qkv.device)
    for row, position in enumerate(positions[:, 0].tolist()):
        if position < 0:  # idle
            continue
        keys, values = kv[:, row : row + 1]  # (1, H, context + 1, D) each
        keys[:, :, position] = k[row : row + 1, :, 0]
        values[:, :, position] = v[row : row + 1, :, 0]
        seen = min(position + 1, context)
        z[row] = F.scaled_dot_product_attention(
            q[row : row + 1], keys[:, :, :seen], values[:, :, :seen], scale=scale
        )[0]
    return z


def attend_with_mask(qkv: Tensor, kv: Tensor, positions: Tensor, H: int, scale: float) -> Tensor:
    """All sequences over the whole context, with a mask: for GPUs where Triton's kernel cannot be used."""
    B, D, context = len(qkv), kv.shape[4], kv.shape[3] - 1
    q, k, v = qkv.view(B, 3, H, 1, D).unbind(dim=1)  # (B, H, 1, D) each
    keys, values = LayerCache(kv, context).update(k, v, positions)  # (B, H, context, D) each
    return F.scaled_dot_product_attention(q, keys, values, visible(positions, context), scale=scale)
