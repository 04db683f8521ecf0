"""Matrices as the native engine multiplies with them (cpp/layout.h), so that a file of them is mapped.

64 outputs make a panel, 32 inputs of an output share a scale in int4. A matrix of int8 rows becomes

    (panel, input / 4, output in the panel, 4 inputs) of int8

and one of int4 in groups of 32 inputs, 4.5 bits a value,

    (panel, group, 1152) of bytes: 64 float16 scales, then 4 pairs of steps * 64 outputs * 4 inputs;

step s has the inputs 4 s to 4 s + 3 of the group; the low half of a byte belongs to step 2p of its pair p,
the high half to 2p + 1; a value is (half - 8) * scale. What does not exist is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from glassgpt.weights.checkpoint import Array

PANEL, GROUP = 64, 32
GROUP_BYTES = 2 * PANEL + PANEL * GROUP // 2
_BLOCK = 1 << 16  # values quantized at a time: they fit a core's cache
_F32 = np.float32


class Panels(NamedTuple):
    """A matrix in this layout."""

    dtype: str  # int8 or int4
    data: Array
    scale: Array | None  # int8: (outputs,), float32
    mapped: bool = False  # whether `data` lies in a mapped file


def shape_of_panels(dtype: str, n_out: int, n_in: int) -> tuple[int, ...]:
    panels = -(-n_out // PANEL)
    return (panels, -(-n_in // GROUP), GROUP_BYTES) if dtype == "int4" else (panels, -(-n_in // 4), PANEL, 4)


def panels_of_int8(rows: Array) -> Array:
    """int8 rows, (out, in), as panels."""
    panels, steps, *_ = shape_of_panels("int8", *rows.shape)
    padded = np.zeros((panels * PANEL, steps * 4), np.int8)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    return np.ascontiguousarray(padded.reshape(panels, PANEL, steps, 4).swapaxes(1, 2))


def int8_of_panels(data: Array, n_out: int, n_in: int) -> Array:
    """The int8 rows, (out, in), of panels."""
    rows = data.swapaxes(1, 2).reshape(data.shape[0] * PANEL, data.shape[1] * 4)
    return np.ascontiguousarray(rows[:n_out, :n_in])


def panels_of_floats(rows: Array) -> Array:
    """Rows of numbers, (out, in), quantized to int4: by the native engine if it was built, else by numpy,
    which is slower and gives the same bits."""
    from glassgpt.backends.native import is_available

    quantize = quantize_natively if is_available() else quantize_with_numpy
    return quantize(rows, shape_of_panels("int4", *rows.shape))


def quantize_natively(rows: Array, shape: tuple[int, ...]) -> Array:
    from glassgpt.backends.native.quantize import quantize_int4

    data = np.zeros(shape, np.uint8)
    quantize_int4(np.asarray(rows, _F32), data)
    return data


def quantize_with_numpy(rows: Array, shape: tuple[int, ...]) -> Array:
    data = np.empty(shape, np.uint8)
    each = max(1, _BLOCK // (PANEL * GROUP * shape[1]))  # panels
    for first in range(0, shape[0], each):
        some = rows[first * PANEL : (first + each) * PANEL]
        panels = -(-some.shape[0] // PANEL)
        padded = np.zeros((panels * PANEL, shape[1] * GROUP), _F32)
        padded[: some.shape[0], : some.shape[1]] = some
        steps, scale = quantize_groups(padded.reshape(-1, GROUP))
        _write_groups(data[first : first + panels], steps, scale)
    return data


def floats_of_panels(data: Array, n_out: int, n_in: int) -> Array:
    """The float32 rows, (out, in), of int4 panels."""
    panels, groups, _ = data.shape
    scale = scales_of(data).swapaxes(1, 2).astype(_F32)  # (panels, 64, groups)
    pairs = data[:, :, 2 * PANEL :].reshape(panels, groups, 4, PANEL, 4)
    both = np.stack([pairs & 15, pairs >> 4], axis=3)  # (panels, groups, 4, 2, 64, 4)
    steps = both.transpose(0, 4, 1, 2, 3, 5).reshape(panels, PANEL, groups, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale must not print a warning
        values = (steps.astype(_F32) - _F32(8)) * scale[..., None]
    return np.ascontiguousarray(values.reshape(panels * PANEL, groups * GROUP)[:n_out, :n_in])


def scales_of(data: Array) -> Array:
    """The float16 scales of int4 panels, (panels, groups, 64)."""
    return np.ascontiguousarray(data[:, :, : 2 * PANEL]).view("<f2")


def quantize_groups(groups: Array) -> tuple[Array, Array]:
    """Each group of 32 numbers in steps of -8 to 7, and its scale, which leaves the least squared error: the
    best of some around the one that maps the largest magnitude to -8, each improved by least squares.

    The same operations in the same order as `best_scales` in the engine's cpp/pack.cpp, so the same bits."""
    x = np.ascontiguousarray(groups.T, _F32)  # (32, n): sums run over the first axis in its order
    at = np.abs(x).argmax(axis=0)
    largest = np.take_along_axis(x, at[None], axis=0)[0]
    sign = np.where(largest < 0, _F32(1), _F32(-1))
    largest = np.abs(largest)
    best, best_gain = np.zeros_like(largest), np.full_like(largest, -1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # a group of zeros keeps scale 0
        for trial in range(-9, 10):
            inverse = sign * (_F32(8) + _F32(0.1) * _F32(trial)) / largest
            q = _round(x * inverse)
            xq, qq = (x * q).sum(axis=0), (q * q).sum(axis=0)
            gain = xq * xq / qq
            better = (qq > 0) & (gain > best_gain)
            np.copyto(best_gain, gain, where=better)
            np.copyto(best, xq / qq, where=better)
        scale = best.astype(np.float16)
        steps = _round(x / scale.astype(_F32))
    steps[:, scale == 0] = 0
    return steps.astype(np.int8).T, scale


def _round(x: Array) -> Array:
    np.rint(x, out=x)
    np.maximum(x, _F32(-8), out=x)
    return np.minimum(x, _F32(7), out=x)


def _write_groups(data: Array, steps: Array, scale: Array) -> None:
    """Steps (rows * groups, 32) and their scales as bytes of panels."""
    panels, groups, _ = data.shape
    halves = scale.reshape(panels, PANEL, groups).swapaxes(1, 2).astype("<f2")
    data[:, :, : 2 * PANEL] = np.ascontiguousarray(halves).view(np.uint8)
    pairs = (steps + np.int8(8)).astype(np.uint8).reshape(panels, PANEL, groups, 4, 2, 4)
    both = pairs[:, :, :, :, 0] | pairs[:, :, :, :, 1] << 4  # (panels, 64, groups, 4, 4)
    data[:, :, 2 * PANEL :] = both.transpose(0, 2, 3, 1, 4).reshape(panels, groups, -1)
