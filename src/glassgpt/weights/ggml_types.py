"""The tensor types of GGUF: plain floats, and blocks of small integers with a scale (ggml's Q types).

A row is cut into blocks of 32 or 256 numbers. In a block of the older types (Q4_0 ... Q8_0)
    x = d * q        or        x = d * q + m
with one scale d (and minimum m). The "K" types have blocks of 256, cut again into groups of 16 or 32, each
with its own scale and perhaps minimum, themselves integers times the block's d and dmin.
Everything can be read. Written are Q8_0, whose error is a 254th of a block's largest number, Q4_0, whose
error is a 16th to an 8th of it, and Q4_K, which is as small as Q4_0 and finer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Block = NDArray[Any]  # a structured array, one record a block


@dataclass(frozen=True)
class GGMLType:
    """A tensor type: `block` values in `block_bytes` bytes."""

    name: str
    number: int
    block: int
    layout: np.dtype[Any]  # of one value, or of one block
    dequantize: Callable[[Block], Floats] | None = None  # (blocks,) records -> (blocks, block) values

    @property
    def block_bytes(self) -> int:
        return int(self.layout.itemsize)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What reading gives: the floats as they are, or float32 out of blocks."""
        return self.layout if self.dequantize is None else np.dtype(np.float32)

    def n_bytes(self, n_numbers: int) -> int:
        return n_numbers // self.block * self.block_bytes

    def read(self, data: Bytes, shape: tuple[int, ...]) -> NDArray[Any]:
        """The values in these bytes, in the given shape."""
        stored = data.view(self.layout)
        if self.dequantize is None:
            return stored.reshape(shape)
        out = np.empty((len(stored), self.block), np.float32)
        step = 2**16  # blocks: enough to be fast, and the intermediate arrays stay below 100 MB
        with np.errstate(
            all="ignore"
        ):  # a damaged scale gives NaN, as a damaged float would; numpy need not warn
            for at in range(0, len(stored), step):
                out[at : at + step] = self.dequantize(stored[at : at + step])
        return out.reshape(shape)


def quantize_q8_0(numbers: Floats) -> Bytes:
    """Rows of a multiple of 32 values -> Q8_0 bytes, rounded as ggml rounds (halves away from zero)."""
    blocks = numbers.reshape(-1, 32)  # (blocks, 32)
    scale = np.abs(blocks).max(axis=1) / np.float32(127)  # (blocks,)
    out = np.empty(len(blocks), Q8_0.layout)
    with np.errstate(divide="ignore", over="ignore"):  # the caller checks for infinite scales
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        out["d"] = scale
    scaled = blocks * inverse[:, None]
    with np.errstate(invalid="ignore"):
        out["q"] = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return out.view(np.uint8)


def quantize_q4_0(numbers: Floats) -> Bytes:
    """Rows of a multiple of 32 values -> Q4_0 bytes, as ggml makes them: the value that is furthest from zero
    becomes -8, whatever its sign, and the others multiples of an eighth of it, up to 7."""
    blocks = numbers.reshape(-1, 32)  # (blocks, 32)
    furthest = np.abs(blocks).argmax(axis=1)  # (blocks,)
    scale = blocks[np.arange(len(blocks)), furthest] / np.float32(-8)
    out = np.empty(len(blocks), Q4_0.layout)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # the caller checks for infinite ones
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        out["d"] = scale
        q = np.clip(np.trunc(blocks * inverse[:, None] + np.float32(8.5)), 0, 15).astype(np.uint8)
    out["q"] = q[:, :16] | q[:, 16:] << 4
    return out.view(np.uint8)


def quantize_q4_k(numbers: Floats) -> Bytes:
    """Rows of a multiple of 256 values -> Q4_K bytes. The format leaves open how scales are chosen."""
    blocks = numbers.reshape(-1, 8, 32)  # (blocks, groups, 32)
    out = np.empty(len(blocks), Q4_K.layout)
    step = 2**12  # blocks: the intermediate arrays stay below 100 MB
    with np.errstate(all="ignore"):  # the caller checks for infinite scales
        for at in range(0, len(blocks), step):
            out[at : at + step] = _make_q4_k(blocks[at : at + step])
    return out.view(np.uint8)


def _make_q4_k(x: Floats) -> Block:
    scale, least = _fit_groups(x)  # (blocks, 8) each, both >= 0
    out = np.zeros(len(x), Q4_K.layout)
    out["d"], out["m"] = scale.max(axis=1) / 63, least.max(axis=1) / 63
    whole = [
        np.clip(np.rint(_divide(values, out[name].astype(np.float32)[:, None])), 0, 63).astype(np.uint8)
        for values, name in ((scale, "d"), (least, "m"))
    ]
    s, m = whole
    out["s"][:, :4] = s[:, :4] | s[:, 4:] >> 4 << 6
    out["s"][:, 4:8] = m[:, :4] | m[:, 4:] >> 4 << 6
    out["s"][:, 8:] = s[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    scale, least = _scales_and_mins(out)  # as they will be read
    q = np.clip(np.rint(_divide(x + least[:, :, None], scale[:, :, None])), 0, 15).astype(np.uint8)
    out["q"] = (q[:, 0::2] | q[:, 1::2] << 4).reshape(len(x), 128)
    return out


def _fit_groups(x: Floats) -> tuple[Floats, Floats]:
    """For each group of 32 the scale and the minimum with the least squared error, large values counting more
    (as in llama.cpp): of several first guesses, each improved by one linear regression on its integers."""
    low = np.minimum(x.min(axis=2, keepdims=True), 0)  # (blocks, 8, 1): 0 stays representable
    span = np.maximum(x.max(axis=2, keepdims=True), 0) - low
    weight = np.sqrt((x * x).mean(axis=2, keepdims=True)) + np.abs(x)
    total_w, total_x = weight.sum(axis=2), (weight * x).sum(axis=2)
    best = np.full(x.shape[:2], np.inf, np.float32)
    scale, least = span[:, :, 0] / 15, -low[:, :, 0]
    for levels in np.arange(14.0, 16.1, 0.25, dtype=np.float32):
        q = np.clip(np.rint(_divide(x - low, span) * levels), 0, 15)
        wq = weight * q
        total_q, total_qq, total_xq = wq.sum(axis=2), (wq * q).sum(axis=2), (wq * x).sum(axis=2)
        det = total_w * total_qq - total_q * total_q
        a = _divide(total_w * total_xq - total_x * total_q, det)
        b = _divide(total_qq * total_x - total_q * total_xq, det)
        a, b = np.where(b > 0, _divide(total_xq, total_qq), a), np.minimum(b, 0)
        error = (weight * (a[:, :, None] * q + b[:, :, None] - x) ** 2).sum(axis=2)
        better = (error < best) & (a > 0) & (det > 0)
        best = np.where(better, error, best)
        scale, least = np.where(better, a, scale), np.where(better, -b, least)
    return scale, least


def _divide(a: Floats, b: Floats) -> Floats:
    """a / b, and 0 where b is 0."""
    quotient: Floats = np.where(b == 0, np.float32(0), a / np.where(b == 0, np.float32(1), b))
    return quotient


def _nibbles(packed: Bytes) -> Bytes:
    """(blocks, n) bytes -> (blocks, 2n): all low halves, then all high ones."""
    halves: Bytes = np.concatenate([packed & 15, packed >> 4], axis=-1)
    return halves


def _fifth_bits(packed: NDArray[np.uint32]) -> Bytes:
    """(blocks,) words -> (blocks, 32): bit j, as the 16's place of number j."""
    bits = packed[:, None] >> np.arange(32, dtype=np.uint32) & 1
    return (bits << 4).astype(np.uint8)


def _scaled(b: Block, q: NDArray[Any]) -> Floats:
    return b["d"].astype(np.float32)[:, None] * q.astype(np.float32)


def _q4_0(b: Block) -> Floats:
    return _scaled(b, _nibbles(b["q"]).astype(np.int8) - 8)


def _q4_1(b: Block) -> Floats:
    return _scaled(b, _nibbles(b["q"])) + b["m"].astype(np.float32)[:, None]


def _q5_0(b: Block) -> Floats:
    return _scaled(b, (_nibbles(b["q"]) | _fifth_bits(b["h"])).astype(np.int8) - 16)


def _q5_1(b: Block) -> Floats:
    return _scaled(b, _nibbles(b["q"]) | _fifth_bits(b["h"])) + b["m"].astype(np.float32)[:, None]


def _q8_0(b: Block) -> Floats:
    return _scaled(b, b["q"])


def _pairs_of_bits(packed: Bytes) -> Bytes:
    """(blocks, 32k) bytes -> (blocks, k, 4, 32): of each run of 32 bytes, the four pairs of bits in turn."""
    runs = packed.reshape(len(packed), -1, 1, 32)
    pairs: Bytes = (runs >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).astype(np.uint8)
    return pairs


def _grouped(scale: Floats, q: NDArray[Any]) -> Floats:
    """(blocks, groups) scales times (blocks, 256) integers, each group its own scale."""
    product: Floats = scale[:, :, None] * q.reshape(*scale.shape, -1).astype(np.float32)
    return product


def _q2_k(b: Block) -> Floats:
    q = _pairs_of_bits(b["q"]).reshape(-1, 256)
    scale = _scaled(b, b["s"] & 15)  # (blocks, 16)
    least = b["m"].astype(np.float32)[:, None] * (b["s"] >> 4)
    return (_grouped(scale, q) - least[:, :, None]).reshape(-1, 256)


def _q3_k(b: Block) -> Floats:
    # 16 scales of 6 bits: low four in the first eight bytes, high two in the last four.
    low = _nibbles(b["s"][:, :8])
    high = b["s"][:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3  # (blocks, 4, 4)
    scale = _scaled(b, (low | high.reshape(-1, 16) << 4).astype(np.int8) - 32)
    # The third bit of number 32 * i + j is bit i of byte j, and means "do not subtract four".
    third = b["h"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # (blocks, 8, 32)
    q = (_pairs_of_bits(b["q"]).reshape(-1, 256) | third.reshape(-1, 256) << 2).astype(np.int8) - 4
    return _grouped(scale, q).reshape(-1, 256)


def _scales_and_mins(b: Block) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the last four of each in three pieces."""
    first, second, third = b["s"][:, :4], b["s"][:, 4:8], b["s"][:, 8:]
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)  # (blocks, 8)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return _scaled(b, scale), b["m"].astype(np.float32)[:, None] * least.astype(np.float32)


def _q4_k(b: Block) -> Floats:
    scale, least = _scales_and_mins(b)
    q = _nibbles(b["q"].reshape(-1, 4, 32)).reshape(-1, 256)
    return (_grouped(scale, q) - least[:, :, None]).reshape(-1, 256)


def _q5_k(b: Block) -> Floats:
    scale, least = _scales_and_mins(b)
    fifth = b["h"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # (blocks, 8, 32)
    q = _nibbles(b["q"].reshape(-1, 4, 32)).reshape(-1, 256) | fifth.reshape(-1, 256) << 4
    return (_grouped(scale, q) - least[:, :, None]).reshape(-1, 256)


def _q6_k(b: Block) -> Floats:
    low = _nibbles(b["q"].reshape(-1, 2, 64)).reshape(-1, 256)
    q = (low | _pairs_of_bits(b["h"]).reshape(-1, 256) << 4).astype(np.int8) - 32
    return _grouped(_scaled(b, b["s"]), q).reshape(-1, 256)


def _layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype(list(fields))


F32 = GGMLType("F32", 0, 1, np.dtype("<f4"))
F16 = GGMLType("F16", 1, 1, np.dtype("<f2"))
BF16 = GGMLType("BF16", 30, 1, np.dtype(ml_dtypes.bfloat16))
Q4_0 = GGMLType("Q4_0", 2, 32, _layout(("d", "<f2"), ("q", "u1", 16)), _q4_0)
Q8_0 = GGMLType("Q8_0", 8, 32, _layout(("d", "<f2"), ("q", "i1", 32)), _q8_0)

_D, _M = ("d", "<f2"), ("m", "<f2")
Q4_K = GGMLType("Q4_K", 12, 256, _layout(_D, _M, ("s", "u1", 12), ("q", "u1", 128)), _q4_k)
TYPES: dict[int, GGMLType] = {
    kind.number: kind
    for kind in (
        F32,
        F16,
        BF16,
        Q4_0,
        GGMLType("Q4_1", 3, 32, _layout(_D, _M, ("q", "u1", 16)), _q4_1),
        GGMLType("Q5_0", 6, 32, _layout(_D, ("h", "<u4"), ("q", "u1", 16)), _q5_0),
        GGMLType("Q5_1", 7, 32, _layout(_D, _M, ("h", "<u4"), ("q", "u1", 16)), _q5_1),
        Q8_0,
        GGMLType("Q2_K", 10, 256, _layout(("s", "u1", 16), ("q", "u1", 64), _D, _M), _q2_k),
        GGMLType("Q3_K", 11, 256, _layout(("h", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), _D), _q3_k),
        Q4_K,
        GGMLType("Q5_K", 13, 256, _layout(_D, _M, ("s", "u1", 12), ("h", "u1", 32), ("q", "u1", 128)), _q5_k),
        GGMLType("Q6_K", 14, 256, _layout(("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), _D), _q6_k),
    )
}
