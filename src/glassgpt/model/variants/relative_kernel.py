"""Relative attention on a GPU: Triton, CUDA only.

The same function as the skewing form, and tested against it.

Attention with relative positions adds q_i . e_(i-j) to the score of query i and key j. The table of e is
short (one row a distance), but the scores are as many as (i, j) pairs, so what counts is how often these
pass through memory, and whether they do so in whole vectors of 16 bytes. Here

  1. one kernel multiplies queries and table, and stores the products of each query with distances up to i;
  2. the forward pass is attention in tiles with a running softmax, which reads these tiles as it goes;
  3. backward, the gradient of the scores is written once and read along columns (for keys and values), along
     rows (for queries) and along diagonals (for queries and the table).

Both arrays lie by query and key. By query and distance, each row of a tile is moved by one more place than
the row before, and memory is read and written in vectors of 8 numbers (16 bytes) that cannot start anywhere.
So whatever works with distances takes every eighth query together: i = 8 t + r, for one r. It counts from the
last multiple of 8, that is, key j = 8 t - u is at distance u + r. Now a row is moved by 8 places, a vector,
and r chooses rows of the table.

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
PRODUCTS: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 128, "STEPS": 4, "num_warps": 4, "num_stages": 2}
FORWARD: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
KEYS: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
QUERIES: dict[str, Any] = {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
TABLE: dict[str, Any] = {"BLOCK": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
LARGEST_BLOCK = 128  # where it divides T, only tiles on the diagonal need masks
LOG2_E = tl.constexpr(1.4426950408889634)
STRIDE = tl.constexpr(8)  # queries of one group stand this far apart: 16 bytes of bfloat16


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
    q, k, v, row = _strided(q, k, v)
    R, table = table.shape[1], table.contiguous()
    out = q.new_empty(B, T, H, D)
    log_sums = q.new_empty(B, H, T, dtype=torch.float32)
    products = q.new_empty(B, H, T, T)
    scale = D**-0.5 * LOG2_E.value
    same: Any = {"D": D, "EXACT": q.dtype == torch.float32}
    tiles = _tiles(PRODUCTS, q)
    blocks = triton.cdiv(triton.cdiv(T, STRIDE.value), tiles["BLOCK"])
    parts = triton.cdiv(T + STRIDE.value, tiles["BLOCK_N"] * tiles["STEPS"])
    grid: Any = (blocks * STRIDE.value, parts, B * H)
    _table_products[grid](q, table, products, T, H, R, row, scale, **same, **tiles)
    tiles = _tiles(FORWARD, q)
    grid = (triton.cdiv(T, tiles["BLOCK"]), B * H)
    even = T % LARGEST_BLOCK == 0
    _attend[grid](q, k, v, products, out, log_sums, T, H, row, scale, EVEN=even, **same, **tiles)
    return out, log_sums, products


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    B, T, H, D = q.shape
    out = q.new_empty(B, T, H, D)
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
    q, k, v, row = _strided(q, k, v)
    dout, table = dout.contiguous(), table.contiguous()
    inner = torch.empty_like(log_sums)
    dq, dk, dv = (torch.empty_like(out) for _ in range(3))
    dscores = torch.empty_like(products)
    scale = D**-0.5
    same: Any = {"D": D, "EXACT": q.dtype == torch.float32}
    grid: Any = (triton.cdiv(T, 128), B * H)
    _inner_products[grid](dout, out, inner, T, H, D=D, BLOCK=128)
    tiles = _tiles(KEYS, q)
    grid = (triton.cdiv(T, tiles["BLOCK"]), B * H)
    _gradients_of_keys[grid](
        q, k, v, products, dout, log_sums, inner, dscores, dk, dv, T, H, row, scale * LOG2_E.value,
        EVEN=T % LARGEST_BLOCK == 0, **same, **tiles
    )  # fmt: skip
    tiles = _tiles(QUERIES, q)
    blocks = triton.cdiv(triton.cdiv(T, STRIDE.value), tiles["BLOCK"])
    grid = (blocks * STRIDE.value, B * H)
    _gradient_of_queries[grid](k, table, dscores, dq, T, H, R, row, scale, **same, **tiles)
    tiles = _tiles(TABLE, q)
    blocks = triton.cdiv(T + 2 * STRIDE.value, tiles["BLOCK"])
    partial = q.new_empty(STRIDE.value, H, blocks * tiles["BLOCK"], D, dtype=torch.float32)
    _gradient_of_table[(blocks, H, STRIDE.value)](q, dscores, partial, B, T, H, row, scale, **same, **tiles)
    rows = _sum_of_groups(partial, T)
    dtable = torch.zeros(H, R, D, device=q.device)
    dtable[:, :T] = rows[:, :R]
    if R < T:
        dtable[:, -1] += rows[:, R:].sum(1)
    return dq, dk, dv, dtable.to(table.dtype)


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
    dq, dk, dv = (torch.empty_like(out) for _ in range(3))
    return dq, dk, dv, torch.empty_like(table, memory_format=torch.contiguous_format)


def _tiles(config: dict[str, Any], q: Tensor) -> dict[str, Any]:
    """A kernel's tiles: smaller ones and shorter queues for vectors that fill the shared memory sooner."""
    D = q.shape[3]
    if q.dtype == torch.float32:
        return config | {"BLOCK": 64 if D < 128 else 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
    if D == 128:
        return config | {"BLOCK": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    return config


def _strided(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """The three (B, T, H, D) and the stride of their positions: as they are, where they are parts of one
    projection, otherwise copied."""
    _, T, H, D = q.shape
    row = q.stride(1)
    if any(x.stride() != (T * row, row, D, 1) for x in (q, k, v)) or row < H * D:
        q, k, v = (x.contiguous() for x in (q, k, v))
        row = H * D
    return q, k, v, row


def _sum_of_groups(partial: Tensor, T: int) -> Tensor:
    """The gradient for each distance (H, T, D) from that of each group r of queries: (8, H, more than T, D),
    with distance d in row d + 7 - r."""
    S = STRIDE.value
    _, H, L, D = partial.shape
    shifted = partial.as_strided((S, H, T, D), (H * L * D - D, L * D, D, 1), (S - 1) * D)
    return shifted.sum(0)


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
def _rows(start, positions, batch_head, T, H, row, D: tl.constexpr):
    """Pointers to rows of a (B, T, H, D) array: one head's vectors at these positions, `row` apart."""
    place = (batch_head // H).to(tl.int64) * T + positions
    return start + place[:, None] * row + batch_head % H * D + tl.arange(0, D)[None, :]


@triton.jit
def _scores(start, batch_head, rows, columns, T):
    """Pointers into a (B, H, T, T) array."""
    return start + batch_head.to(tl.int64) * T * T + (rows * T + columns)


@triton.jit
def _entries(table, head, distance, R, D: tl.constexpr):
    """Pointers to rows of the table. Distances below 0 belong to later keys, which nobody reads."""
    row = head * R + tl.minimum(tl.maximum(distance, 0), R - 1)
    return table + row[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def _table_products(
    q, table, products, T, H, R, row, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, STEPS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """q_i . e_(i - j), scaled, at row i and column j; a program has queries of one group and some distances.

    Distances run downwards, so that addresses run upwards.
    """
    batch_head = tl.program_id(2)
    r = tl.program_id(0) % STRIDE
    first = tl.program_id(0) // STRIDE * BLOCK
    t = first + tl.arange(0, BLOCK)
    n = tl.arange(0, BLOCK_N)
    i = t * STRIDE + r
    begin = tl.program_id(1) * (STEPS * BLOCK_N)
    end = tl.minimum(begin + STEPS * BLOCK_N, (first + BLOCK) * STRIDE)
    if begin < end:
        queries = tl.load(_rows(q, i, batch_head, T, H, row, D), mask=i[:, None] < T, other=0.0)
        for nearest in range(begin, end, BLOCK_N):
            farthest = nearest + BLOCK_N - STRIDE
            entries = tl.load(_entries(table, batch_head % H, farthest - n + r, R, D))
            tile = (_dot(queries, tl.trans(entries), EXACT) * scale).to(products.dtype.element_ty)
            column = (t * STRIDE - farthest)[:, None] + n[None, :]
            inside = (column >= 0) & (column < T) & (i[:, None] < T)
            tl.store(_scores(products, batch_head, i[:, None], column, T), tile, mask=inside)


@triton.jit
def _attend(
    q, k, v, products, out, log_sums, T, H, row, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One block of queries meets all keys before it. `scale` holds log2(e): exponentials are of base 2."""
    batch_head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows first
    i = block * BLOCK + tl.arange(0, BLOCK)
    queries = tl.load(_rows(q, i, batch_head, T, H, row, D), mask=i[:, None] < T, other=0.0)
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, D), tl.float32)
    below = block * BLOCK // BLOCK_N * BLOCK_N if EVEN else 0
    for masked in tl.static_range(2):  # first the tiles below the diagonal, then those it crosses
        begin = below if masked else 0
        end = tl.minimum((block + 1) * BLOCK, T) if masked else below
        for first in range(begin, end, BLOCK_N):
            j = first + tl.arange(0, BLOCK_N)
            pointers = _scores(products, batch_head, i[:, None], j[None, :], T)
            if masked:
                keys = tl.load(_rows(k, j, batch_head, T, H, row, D), mask=j[:, None] < T, other=0.0)
                values = tl.load(_rows(v, j, batch_head, T, H, row, D), mask=j[:, None] < T, other=0.0)
            else:
                keys = tl.load(_rows(k, j, batch_head, T, H, row, D))
                values = tl.load(_rows(v, j, batch_head, T, H, row, D))
            scores = _dot(queries, tl.trans(keys), EXACT) * scale
            if masked:
                scores += tl.load(pointers, mask=(j[None, :] < T) & (i[:, None] < T), other=0.0)
                scores = tl.where(j[None, :] <= i[:, None], scores, -1e30)
            else:
                scores += tl.load(pointers)
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            decay = tl.exp2(largest - new_largest)
            weights = tl.exp2(scores - new_largest[:, None])
            total = total * decay + tl.sum(weights, 1)
            mixed = mixed * decay[:, None] + _dot(weights.to(values.dtype), values, EXACT)
            largest = new_largest
    mixed = mixed / total[:, None]
    tl.store(_rows(out, i, batch_head, T, H, H * D, D), mixed.to(out.dtype.element_ty), mask=i[:, None] < T)
    tl.store(log_sums + batch_head.to(tl.int64) * T + i, largest + tl.log2(total), mask=i < T)


@triton.jit
def _inner_products(a, b, result, T, H, D: tl.constexpr, BLOCK: tl.constexpr):
    """The inner product of each row of a with the same row of b, (B, H, T)."""
    batch_head = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(_rows(a, i, batch_head, T, H, H * D, D), mask=i[:, None] < T, other=0.0).to(tl.float32)
    right = tl.load(_rows(b, i, batch_head, T, H, H * D, D), mask=i[:, None] < T, other=0.0).to(tl.float32)
    tl.store(result + batch_head.to(tl.int64) * T + i, tl.sum(left * right, 1), mask=i < T)


@triton.jit
def _gradients_of_keys(
    q, k, v, products, dout, log_sums, inner, dscores, dk, dv, T, H, row, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One block of keys and values meets all queries after it; the scores' gradient is stored on the way.

    The gradient of the scores is that of the scaled ones: who reads it multiplies its sums by 1 / sqrt(D).
    Tiles on the diagonal are stored whole, with zeros for later keys.
    """
    batch_head = tl.program_id(1)
    start = tl.program_id(0) * BLOCK
    j = start + tl.arange(0, BLOCK)
    keys = tl.load(_rows(k, j, batch_head, T, H, row, D), mask=j[:, None] < T, other=0.0)
    values = tl.load(_rows(v, j, batch_head, T, H, row, D), mask=j[:, None] < T, other=0.0)
    key_gradient = tl.zeros((BLOCK, D), tl.float32)
    value_gradient = tl.zeros((BLOCK, D), tl.float32)
    below = tl.minimum(tl.cdiv(start + BLOCK, BLOCK_N) * BLOCK_N, T) if EVEN else T
    for masked in tl.static_range(1, -1, -1):  # first the tiles that the diagonal crosses, then those below
        begin = start // BLOCK_N * BLOCK_N if masked else below
        end = below if masked else T
        for first in range(begin, end, BLOCK_N):
            i = first + tl.arange(0, BLOCK_N)
            sums = log_sums + batch_head.to(tl.int64) * T + i
            means = inner + batch_head.to(tl.int64) * T + i
            pointers = _scores(products, batch_head, i[:, None], j[None, :], T)
            if masked:
                inside = i < T
                queries = tl.load(_rows(q, i, batch_head, T, H, row, D), mask=inside[:, None], other=0.0)
                gradient = tl.load(
                    _rows(dout, i, batch_head, T, H, H * D, D), mask=inside[:, None], other=0.0
                )
                log_sum = tl.load(sums, mask=inside, other=0.0)
                mean = tl.load(means, mask=inside, other=0.0)
            else:
                queries = tl.load(_rows(q, i, batch_head, T, H, row, D))
                gradient = tl.load(_rows(dout, i, batch_head, T, H, H * D, D))
                log_sum = tl.load(sums)
                mean = tl.load(means)
            scores = _dot(queries, tl.trans(keys), EXACT) * scale - log_sum[:, None]
            if masked:
                scores += tl.load(pointers, mask=(j[None, :] < T) & inside[:, None], other=0.0)
            else:
                scores += tl.load(pointers)
            weights = tl.exp2(scores)
            if masked:
                weights = tl.where((j[None, :] <= i[:, None]) & inside[:, None], weights, 0.0)
            value_gradient += _dot(tl.trans(weights.to(gradient.dtype)), gradient, EXACT)
            dweights = _dot(gradient, tl.trans(values), EXACT)
            dscore = (weights * (dweights - mean[:, None])).to(queries.dtype)
            key_gradient += _dot(tl.trans(dscore), queries, EXACT)
            pointers = _scores(dscores, batch_head, i[:, None], j[None, :], T)
            if masked:
                tl.store(pointers, dscore, mask=(j[None, :] < T) & inside[:, None])
            else:
                tl.store(pointers, dscore)
    key_gradient *= scale / LOG2_E
    to = _rows(dk, j, batch_head, T, H, H * D, D)
    tl.store(to, key_gradient.to(dk.dtype.element_ty), mask=j[:, None] < T)
    to = _rows(dv, j, batch_head, T, H, H * D, D)
    tl.store(to, value_gradient.to(dv.dtype.element_ty), mask=j[:, None] < T)


@triton.jit
def _gradient_of_queries(
    k, table, dscores, dq, T, H, R, row, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What queries of one group owe to the keys and to the table: their rows of the scores' gradient twice,
    by key and, moved, by distance (farthest first, so that both readings are near each other)."""
    batch_head = tl.program_id(1)
    block = (tl.num_programs(0) - 1 - tl.program_id(0)) // STRIDE  # the longest rows first
    r = tl.program_id(0) % STRIDE
    t = block * BLOCK + tl.arange(0, BLOCK)
    i = t * STRIDE + r
    n = tl.arange(0, BLOCK_N)
    end = (block + 1) * (BLOCK * STRIDE)
    gradient = tl.zeros((BLOCK, D), tl.float32)
    for first in range(0, end, BLOCK_N):
        j = first + n
        keys = tl.load(_rows(k, j, batch_head, T, H, row, D), mask=j[:, None] < T, other=0.0)
        inside = (j[None, :] < ((t + 1) * STRIDE)[:, None]) & (j[None, :] < T) & (i[:, None] < T)
        by_key = tl.load(_scores(dscores, batch_head, i[:, None], j[None, :], T), mask=inside, other=0.0)
        gradient += _dot(by_key, keys, EXACT)
        farthest = end - STRIDE - first
        entries = tl.load(_entries(table, batch_head % H, farthest - n + r, R, D))
        column = (t * STRIDE - farthest)[:, None] + n[None, :]
        inside = (column >= 0) & (column < T) & (i[:, None] < T)
        by_distance = tl.load(_scores(dscores, batch_head, i[:, None], column, T), mask=inside, other=0.0)
        gradient += _dot(by_distance, entries, EXACT)
    gradient *= scale
    to = _rows(dq, i, batch_head, T, H, H * D, D)
    tl.store(to, gradient.to(dq.dtype.element_ty), mask=i[:, None] < T)


@triton.jit
def _gradient_of_table(
    q, dscores, partial, B, T, H, row, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One block of distances sums over the diagonals that belong to it, for the queries of one group."""
    head = tl.program_id(1)
    r = tl.program_id(2)
    nearest = tl.program_id(0) * BLOCK
    farthest = nearest + BLOCK - STRIDE
    n = tl.arange(0, BLOCK)  # of distance farthest - n + r
    begin = nearest // STRIDE
    per_sequence = tl.maximum(tl.cdiv(tl.cdiv(T, STRIDE) - begin, BLOCK_N), 0)
    gradient = tl.zeros((BLOCK, D), tl.float32)
    for step in range(0, B * per_sequence):
        batch_head = step // per_sequence * H + head
        t = begin + step % per_sequence * BLOCK_N + tl.arange(0, BLOCK_N)
        i = t * STRIDE + r
        queries = tl.load(_rows(q, i, batch_head, T, H, row, D), mask=i[:, None] < T, other=0.0)
        column = (t * STRIDE - farthest)[:, None] + n[None, :]
        inside = (column >= 0) & (column < T) & (i[:, None] < T)
        along = tl.load(_scores(dscores, batch_head, i[:, None], column, T), mask=inside, other=0.0)
        gradient += _dot(tl.trans(along), queries, EXACT)
    place = (r * H + head).to(tl.int64) * (tl.num_programs(0) * BLOCK) + nearest + BLOCK - 1 - n
    tl.store(partial + place[:, None] * D + tl.arange(0, D)[None, :], gradient * scale)
