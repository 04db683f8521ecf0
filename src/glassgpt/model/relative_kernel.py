"""Relative attention on a GPU: Triton, CUDA only.

The same function as the skewing form, and tested against it.

Attention with relative positions adds q_i . e_(i-j) to the score of query i and key j. The table of e is
short (one row a distance), but the scores are as many as (i, j) pairs, so what counts is how often these
pass through memory. Plain torch needs them padded, shifted, added and masked, forward and
back. Here

  1. one kernel multiplies queries and table, and stores the products of each query with distances up to i;
  2. the forward pass is attention in tiles with a running softmax, which reads these tiles as it goes;
  3. backward, the gradient of the scores is written once and read along columns (for keys and values), along
     rows (for queries) and along diagonals (for the table).

Shapes: B batch, H heads, T positions, D width of a head, R rows of the table, of which the last stands for
every distance from R - 1 on.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTHS = (16, 32, 64, 128)  # of a head: the tiles are powers of two
# Tiles of each kernel: positions of its own block, positions of what it loops over. Measured on an H200.
PRODUCTS: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 32, "num_warps": 4}
FORWARD: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
KEYS: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 1}
QUERIES: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
TABLE: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
LARGEST_BLOCK = 128  # where it divides T, only tiles on the diagonal need masks
LOG2_E = tl.constexpr(1.4426950408889634)
SPLITS = 8  # partial sums over the batch, for the table's gradient


def relative_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """softmax((q k^T + q . table[min(i - j, R - 1)]) / sqrt(D)) v, causal: (B, H, T, D) of (B, H, T, D) each.

    `table` is (H, R, D). All have one dtype: float32, bfloat16 or float16.
    """
    rows = [x.transpose(1, 2) for x in (q, k, v)]  # (B, T, H, D)
    out: Tensor = _forward(*rows, table)[0]
    return out.transpose(1, 2)


@torch.library.custom_op("glassgpt::relative_attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output (B, T, H, D), the log of each softmax's sum (B, H, T), the table's part of the scores."""
    B, T, H, D = q.shape
    q, k, v, table = (x.contiguous() for x in (q, k, v, table))
    out = torch.empty_like(q)
    log_sums = q.new_empty(B, H, T, dtype=torch.float32)
    products = q.new_empty(B, H, T, T)
    scale = D**-0.5 * LOG2_E.value
    same: Any = {"D": D, "EXACT": q.dtype == torch.float32, "EVEN": T % LARGEST_BLOCK == 0}
    grid: Any = (triton.cdiv(T, PRODUCTS["BLOCK"]), triton.cdiv(T, PRODUCTS["BLOCK_N"]), B * H)
    _table_products[grid](q, table, products, T, H, table.shape[1], scale, **same, **PRODUCTS)
    grid = (triton.cdiv(T, FORWARD["BLOCK"]), B * H)
    _attend[grid](q, k, v, products, out, log_sums, T, H, scale, **same, **FORWARD)
    return out, log_sums, products


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    B, T, H, _ = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(B, H, T, dtype=torch.float32), q.new_empty(B, H, T, T)


@torch.library.custom_op("glassgpt::relative_attention_backward", mutates_args=())
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    out: Tensor,
    log_sums: Tensor,
    products: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, T, H, D = q.shape
    R = table.shape[1]
    dout, q, k, v, table = (x.contiguous() for x in (dout, q, k, v, table))
    inner = torch.empty_like(log_sums)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dscores = torch.empty_like(products)
    splits = min(B, SPLITS)
    dtable = q.new_empty(splits, H, T, D, dtype=torch.float32)  # a row a distance, unclipped
    scale = D**-0.5
    same: Any = {"D": D, "EXACT": q.dtype == torch.float32, "EVEN": T % LARGEST_BLOCK == 0}
    grid: Any = (triton.cdiv(T, 128), B * H)
    _inner_products[grid](dout, out, inner, T, H, D=D, BLOCK=128)
    grid = (triton.cdiv(T, KEYS["BLOCK"]), B * H)
    _gradients_of_keys[grid](
        q, k, v, products, dout, log_sums, inner, dscores, dk, dv, T, H, scale * LOG2_E.value, **same, **KEYS
    )  # fmt: skip
    grid = (triton.cdiv(T, QUERIES["BLOCK"]), B * H)
    _gradient_of_queries[grid](k, table, dscores, dq, T, H, R, scale, **same, **QUERIES)
    grid = (triton.cdiv(T, TABLE["BLOCK"]), H, splits)
    _gradient_of_table[grid](q, dscores, dtable, B, T, H, scale, **same, **TABLE)
    rows = dtable.sum(0)  # (H, T, D)
    clipped = torch.zeros(H, R, D, device=q.device)
    clipped[:, : min(R, T)] = rows[:, :R]
    if R < T:
        clipped[:, -1] += rows[:, R:].sum(1)
    return dq, dk, dv, clipped.to(table.dtype)


@_backward.register_fake
def _(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    out: Tensor,
    log_sums: Tensor,
    products: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dtable = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, table)
    )
    return dq, dk, dv, dtable


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)  # no zeros for the outputs that nobody differentiates


def _differentiate(ctx: Any, dout: Tensor, *_: Tensor) -> Any:
    return _backward(dout, *ctx.saved_tensors)


_forward.register_autograd(_differentiate, setup_context=_save)


@triton.jit
def _dot(a, b, EXACT: tl.constexpr):
    """Tiles of float32 are multiplied in float32, not in the tensor cores' shorter format."""
    return tl.dot(a, b, input_precision="ieee") if EXACT else tl.dot(a, b)


@triton.jit
def _rows(start, positions, batch_head, T, H, D: tl.constexpr):
    """Pointers to rows of a (B, T, H, D) array: one head's vectors at these positions."""
    row = (batch_head // H).to(tl.int64) * T + positions
    return start + (row[:, None] * H + batch_head % H) * D + tl.arange(0, D)[None, :]


@triton.jit
def _scores(start, batch_head, rows, columns, T):
    """Pointers into a (B, H, T, T) array."""
    return start + batch_head.to(tl.int64) * T * T + rows * T + columns


@triton.jit
def _table_products(
    q, table, products, T, H, R, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """q_i . e_(i - j), scaled, at row i and column j; a program computes a block of distances.

    Distances run downwards, so that addresses run upwards: only then does the compiler let neighbouring
    threads write (and below, read) together.
    """
    batch_head = tl.program_id(2)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, BLOCK_N)
    farthest = (tl.program_id(1) + 1) * BLOCK_N - 1
    if farthest - BLOCK_N + 1 < (tl.program_id(0) + 1) * BLOCK:
        queries = tl.load(_rows(q, i, batch_head, T, H, D), mask=i[:, None] < T, other=0.0)
        row = batch_head % H * R + tl.minimum(farthest - n, R - 1)
        entries = tl.load(table + row[:, None] * D + tl.arange(0, D)[None, :])
        tile = (_dot(queries, tl.trans(entries), EXACT) * scale).to(products.dtype.element_ty)
        column = (i - farthest)[:, None] + n[None, :]
        pointers = _scores(products, batch_head, i[:, None], column, T)
        if EVEN and farthest < tl.program_id(0) * BLOCK:
            tl.store(pointers, tile)
        else:
            tl.store(pointers, tile, mask=(column >= 0) & (column <= i[:, None]) & (i[:, None] < T))


@triton.jit
def _attend(
    q, k, v, products, out, log_sums, T, H, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One block of queries meets all keys before it. `scale` holds log2(e): exponentials are of base 2."""
    batch_head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows first
    i = block * BLOCK + tl.arange(0, BLOCK)
    queries = tl.load(_rows(q, i, batch_head, T, H, D), mask=i[:, None] < T, other=0.0)
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, D), tl.float32)
    for masked in tl.static_range(2):  # first the tiles below the diagonal, then those it crosses
        below = block * BLOCK // BLOCK_N * BLOCK_N if EVEN else 0
        begin = below if masked else 0
        end = tl.minimum((block + 1) * BLOCK, T) if masked else below
        for first in range(begin, end, BLOCK_N):
            j = first + tl.arange(0, BLOCK_N)
            pointers = _scores(products, batch_head, i[:, None], j[None, :], T)
            if masked:
                keys = tl.load(_rows(k, j, batch_head, T, H, D), mask=j[:, None] < T, other=0.0)
                values = tl.load(_rows(v, j, batch_head, T, H, D), mask=j[:, None] < T, other=0.0)
                allowed = (j[None, :] <= i[:, None]) & (i[:, None] < T)
                relative = tl.load(pointers, mask=allowed, other=0.0)
            else:
                keys = tl.load(_rows(k, j, batch_head, T, H, D))
                values = tl.load(_rows(v, j, batch_head, T, H, D))
                relative = tl.load(pointers)
            scores = _dot(queries, tl.trans(keys), EXACT) * scale + relative
            if masked:
                scores = tl.where(allowed, scores, -1e30)
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            decay = tl.exp2(largest - new_largest)
            weights = tl.exp2(scores - new_largest[:, None])
            total = total * decay + tl.sum(weights, 1)
            mixed = mixed * decay[:, None] + _dot(weights.to(values.dtype), values, EXACT)
            largest = new_largest
    mixed = mixed / total[:, None]
    tl.store(_rows(out, i, batch_head, T, H, D), mixed.to(out.dtype.element_ty), mask=i[:, None] < T)
    tl.store(log_sums + batch_head.to(tl.int64) * T + i, largest + tl.log2(total), mask=i < T)


@triton.jit
def _inner_products(a, b, result, T, H, D: tl.constexpr, BLOCK: tl.constexpr):
    """The inner product of each row of a with the same row of b, (B, H, T)."""
    batch_head = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(_rows(a, i, batch_head, T, H, D), mask=i[:, None] < T, other=0.0).to(tl.float32)
    right = tl.load(_rows(b, i, batch_head, T, H, D), mask=i[:, None] < T, other=0.0).to(tl.float32)
    tl.store(result + batch_head.to(tl.int64) * T + i, tl.sum(left * right, 1), mask=i < T)


@triton.jit
def _gradients_of_keys(
    q, k, v, products, dout, log_sums, inner, dscores, dk, dv, T, H, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One block of keys and values meets all queries after it; the scores' gradient is stored on the way.

    Tiles are (keys, queries) here, so that both products take them from registers. The gradient of the scores
    is that of the scaled ones: who reads it multiplies its sums by 1 / sqrt(D).
    """
    batch_head = tl.program_id(1)
    start = tl.program_id(0) * BLOCK
    j = start + tl.arange(0, BLOCK)
    keys = tl.load(_rows(k, j, batch_head, T, H, D), mask=j[:, None] < T, other=0.0)
    values = tl.load(_rows(v, j, batch_head, T, H, D), mask=j[:, None] < T, other=0.0)
    key_gradient = tl.zeros((BLOCK, D), tl.float32)
    value_gradient = tl.zeros((BLOCK, D), tl.float32)
    for masked in tl.static_range(
        1, -1, -1
    ):  # first the tiles that the diagonal crosses, then those below it
        on_diagonal = start // BLOCK_N * BLOCK_N
        below = tl.minimum((start + BLOCK + BLOCK_N - 1) // BLOCK_N * BLOCK_N, T) if EVEN else T
        begin = on_diagonal if masked else below
        end = below if masked else T
        for first in range(begin, end, BLOCK_N):
            i = first + tl.arange(0, BLOCK_N)
            sums = log_sums + batch_head.to(tl.int64) * T + i
            means = inner + batch_head.to(tl.int64) * T + i
            pointers = _scores(products, batch_head, i[None, :], j[:, None], T)
            if masked:
                inside = i < T
                queries = tl.load(_rows(q, i, batch_head, T, H, D), mask=inside[:, None], other=0.0)
                gradient = tl.load(_rows(dout, i, batch_head, T, H, D), mask=inside[:, None], other=0.0)
                log_sum = tl.load(sums, mask=inside, other=0.0)
                mean = tl.load(means, mask=inside, other=0.0)
                allowed = (j[:, None] <= i[None, :]) & inside[None, :]
                relative = tl.load(pointers, mask=allowed, other=0.0)
            else:
                queries = tl.load(_rows(q, i, batch_head, T, H, D))
                gradient = tl.load(_rows(dout, i, batch_head, T, H, D))
                log_sum = tl.load(sums)
                mean = tl.load(means)
                relative = tl.load(pointers)
            scores = _dot(keys, tl.trans(queries), EXACT) * scale + (relative - log_sum[None, :])
            weights = tl.exp2(scores)
            if masked:
                weights = tl.where(allowed, weights, 0.0)
            value_gradient += _dot(weights.to(gradient.dtype), gradient, EXACT)
            dweights = _dot(values, tl.trans(gradient), EXACT)
            dscore = (weights * (dweights - mean[None, :])).to(queries.dtype)
            key_gradient += _dot(dscore, queries, EXACT)
            pointers = _scores(dscores, batch_head, i[:, None], j[None, :], T)
            if masked:
                tl.store(pointers, tl.trans(dscore), mask=(j[None, :] <= i[:, None]) & inside[:, None])
            else:
                tl.store(pointers, tl.trans(dscore))
    key_gradient *= scale / LOG2_E
    tl.store(_rows(dk, j, batch_head, T, H, D), key_gradient.to(dk.dtype.element_ty), mask=j[:, None] < T)
    tl.store(_rows(dv, j, batch_head, T, H, D), value_gradient.to(dv.dtype.element_ty), mask=j[:, None] < T)


@triton.jit
def _gradient_of_queries(
    k, table, dscores, dq, T, H, R, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """What a query owes to the keys (its row of the scores' gradient) and to the table (it reversed)."""
    batch_head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    gradient = tl.zeros((BLOCK, D), tl.float32)
    n = tl.arange(0, BLOCK_N)
    for masked in tl.static_range(2):
        below = block * BLOCK // BLOCK_N * BLOCK_N if EVEN else 0
        begin = below if masked else 0
        end = tl.minimum((block + 1) * BLOCK, T) if masked else below
        for first in range(begin, end, BLOCK_N):
            j = first + n
            by_key = _scores(dscores, batch_head, i[:, None], j[None, :], T)
            column = (i - first - BLOCK_N + 1)[:, None] + n[None, :]
            by_distance = _scores(dscores, batch_head, i[:, None], column, T)
            row = batch_head % H * R + tl.minimum(first + BLOCK_N - 1 - n, R - 1)
            entries = tl.load(table + row[:, None] * D + tl.arange(0, D)[None, :])
            if masked:
                allowed = (j[None, :] <= i[:, None]) & (i[:, None] < T)
                keys = tl.load(_rows(k, j, batch_head, T, H, D), mask=j[:, None] < T, other=0.0)
                gradient += _dot(tl.load(by_key, mask=allowed, other=0.0), keys, EXACT)
                allowed = (column >= 0) & (i[:, None] < T)
                gradient += _dot(tl.load(by_distance, mask=allowed, other=0.0), entries, EXACT)
            else:
                gradient += _dot(tl.load(by_key), tl.load(_rows(k, j, batch_head, T, H, D)), EXACT)
                gradient += _dot(tl.load(by_distance), entries, EXACT)
    gradient *= scale
    tl.store(_rows(dq, i, batch_head, T, H, D), gradient.to(dq.dtype.element_ty), mask=i[:, None] < T)


@triton.jit
def _gradient_of_table(
    q, dscores, dtable, B, T, H, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One block of distances sums over the diagonals that belong to it, of every SPLITS-th sequence."""
    head = tl.program_id(1)
    start = tl.program_id(0) * BLOCK
    n = tl.arange(0, BLOCK)  # of distance start + BLOCK - 1 - n
    gradient = tl.zeros((BLOCK, D), tl.float32)
    for batch in range(tl.program_id(2), B, tl.num_programs(2)):
        batch_head = batch * H + head
        for masked in tl.static_range(1, -1, -1):
            below = tl.minimum((start + BLOCK + BLOCK_N - 1) // BLOCK_N * BLOCK_N, T) if EVEN else T
            begin = start // BLOCK_N * BLOCK_N if masked else below
            end = below if masked else T
            for first in range(begin, end, BLOCK_N):
                i = first + tl.arange(0, BLOCK_N)
                column = (i - start - BLOCK + 1)[None, :] + n[:, None]
                along = _scores(dscores, batch_head, i[None, :], column, T)
                if masked:
                    queries = tl.load(_rows(q, i, batch_head, T, H, D), mask=i[:, None] < T, other=0.0)
                    allowed = (column >= 0) & (column <= i[None, :]) & (i[None, :] < T)
                    gradient += _dot(tl.load(along, mask=allowed, other=0.0), queries, EXACT)
                else:
                    queries = tl.load(_rows(q, i, batch_head, T, H, D))
                    gradient += _dot(tl.load(along), queries, EXACT)
    distance = start + BLOCK - 1 - n
    row = (tl.program_id(2) * H + head).to(tl.int64) * T + distance
    tl.store(
        dtable + row[:, None] * D + tl.arange(0, D)[None, :], gradient * scale, mask=distance[:, None] < T
    )
