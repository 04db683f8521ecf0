"""A block for one new token per sequence, as five Triton kernels instead of a dozen: CUDA only.

A single token is bound by latency, not arithmetic: what counts is how few kernels run one after another, and
how wide they read. `attend_one` stores the token's key and value and attends over the cache in one kernel; it
reads only what the sequence holds, so short sequences cost little next to long ones, and one CUDA graph
serves every length. `project` multiplies a vector by a matrix, with the norm before and the bias, GELU and
residual sum after it in the same kernel.

A sequence's sums run in an order that depends on that sequence alone: its values are the same whatever its
neighbors. `tests/model/test_gpu.py` compares these kernels with gpt2.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from glassgpt.backends.torch.decode import AttendOne
from glassgpt.model.gpt2 import Block, Projection

FEW_PROGRAMS = (
    200  # below this an H200's 132 multiprocessors are not all busy: each program gets larger blocks
)


def decode_block(block: Block, x: Tensor, positions: Tensor, kv: Tensor, attend_one: AttendOne) -> Tensor:
    """`decode.decode_block` for blocks that pass `fast_path.can_use_triton_block`."""
    qkv = project(x, block.attn.c_attn, norm=block.ln_1)  # (B, 1, 3 C)
    z = attend_one(qkv, kv, positions, block.attn.n_head, block.attn.scale)  # (B, H, 1, D)
    x = project(z, block.attn.c_proj, residual=x)  # (B, 1, C)
    wide = project(x, block.mlp.c_fc, norm=block.ln_2, gelu=True)  # (B, 1, M)
    return project(wide, block.mlp.c_proj, residual=x)  # (B, 1, C)


def attend_one(qkv: Tensor, kv: Tensor, positions: Tensor, H: int, scale: float) -> Tensor:
    """The mixed values (B, H, 1, D) from c_attn's output (B, 1, 3 C); the cache kv takes in the new token."""
    B, D, context = len(qkv), kv.shape[4], kv.shape[3] - 1
    z = torch.empty(B, H, 1, D, device=qkv.device, dtype=qkv.dtype)
    few = B * H < FEW_PROGRAMS
    grid: Any = (B, H)
    _attend[grid](
        qkv, kv, positions, z, scale,
        kv.stride(1), kv.stride(2), kv.stride(0), context,
        H, D, triton.next_power_of_2(D), BLOCK=256 if few else 64, num_warps=16 if few else 2,
    )  # fmt: skip
    return z


def project(
    x: Tensor,
    projection: Projection,
    norm: nn.LayerNorm | None = None,
    gelu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """gelu(norm(x) @ weight + bias) + residual, for a few rows: (B, ..., in) -> (B, 1, out)."""
    weight = projection.weight  # (in, out)
    K, N = weight.shape
    out = torch.empty(len(x), 1, N, device=x.device, dtype=x.dtype)
    # Fastest of 60 tried on an H200 for the shapes of small and XL: with a norm, which every program has to
    # compute for itself, a program makes several outputs.
    outputs, block = (1, 1024) if norm is None else (8, 512)
    grid: Any = (triton.cdiv(N, outputs), len(x))
    _project[grid](
        x, weight, projection.bias,
        projection.bias if norm is None else norm.weight, projection.bias if norm is None else norm.bias,
        out if residual is None else residual, out,
        0.0 if norm is None else norm.eps, K, N, weight.stride(0), weight.stride(1),
        NORM=norm is not None, GELU=gelu, ADD=residual is not None,
        OUTPUTS=outputs, BLOCK=min(block, triton.next_power_of_2(K)), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    qkv, kv, positions, z, scale,
    kv_row, kv_head, to_values, context,
    H: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row)
    d = tl.arange(0, D_PADDED)
    inside = d < D
    here = qkv + row * 3 * H * D + head * D + d
    query = tl.load(here, mask=inside, other=0.0).to(tl.float32)  # (D,)
    query = (query * scale).to(tl.float32)  # torch.compile hands the scale over as a float64
    key = tl.load(here + H * D, mask=inside, other=0.0)
    value = tl.load(here + 2 * H * D, mask=inside, other=0.0)
    keys = kv + row * kv_row + head * kv_head
    values = keys + to_values
    slot = tl.where(position < 0, context, position)  # padding goes into the spare slot
    tl.store(keys + slot * D + d, key, mask=inside)
    tl.store(values + slot * D + d, value, mask=inside)

    # A running softmax (Milakov and Gimelshein, 2018) that starts with the token's look at itself.
    best = tl.sum(query * key.to(tl.float32))
    total = 1.0
    mixed = value.to(tl.float32)  # (D,)
    for start in range(0, position, BLOCK):
        slots = start + tl.arange(0, BLOCK)
        seen = slots < position
        where = slots[:, None] * D + d[None, :]
        mask = seen[:, None] & inside[None, :]
        some_keys = tl.load(keys + where, mask=mask, other=0.0).to(tl.float32)  # (BLOCK, D)
        some_values = tl.load(values + where, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(some_keys * query[None, :], axis=1), float("-inf"))  # (BLOCK,)
        new_best = tl.maximum(best, tl.max(scores))
        weights = tl.exp(scores - new_best)
        shrink = tl.exp(best - new_best)
        total = total * shrink + tl.sum(weights)
        mixed = mixed * shrink + tl.sum(some_values * weights[:, None], axis=0)
        best = new_best
    out = (row * H + head) * D + d
    tl.store(z + out, (mixed / total).to(z.dtype.element_ty), mask=inside)


@triton.jit
def _project(
    x, weight, bias, gain, shift, residual, out,
    eps, K, N, weight_in, weight_out,
    NORM: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(1)
    wanted = n < N
    x += row * K
    mean = 0.0
    spread = 1.0
    if NORM:
        sums = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, K, BLOCK):
            k = start + tl.arange(0, BLOCK)
            sums += tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        mean = tl.sum(sums) / K
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, K, BLOCK):
            k = start + tl.arange(0, BLOCK)
            off = tl.where(k < K, tl.load(x + k, mask=k < K, other=0.0).to(tl.float32) - mean, 0.0)
            squares += off * off
        spread = 1 / tl.sqrt(tl.sum(squares) / K + eps)
    sums = tl.zeros((OUTPUTS, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        some = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)  # (BLOCK,)
        if NORM:
            some = (some - mean) * spread * tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)
            some += tl.load(shift + k, mask=k < K, other=0.0).to(tl.float32)
        where = n[:, None] * weight_out + k[None, :] * weight_in
        mask = wanted[:, None] & (k < K)[None, :]
        sums += tl.load(weight + where, mask=mask, other=0.0).to(tl.float32) * some[None, :]
    y = tl.sum(sums, axis=1) + tl.load(bias + n, mask=wanted, other=0.0).to(tl.float32)  # (OUTPUTS,)
    if GELU:
        inner = 0.7978845608028654 * (y + 0.044715 * y * y * y)
        y = y * tl.sigmoid(2 * inner)  # 0.5 (1 + tanh(u)) is sigmoid(2 u)
    if ADD:
        y += tl.load(residual + row * N + n, mask=wanted, other=0.0).to(tl.float32)
    tl.store(out + row * N + n, y.to(out.dtype.element_ty), mask=wanted)
