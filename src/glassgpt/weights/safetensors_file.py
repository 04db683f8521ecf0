"""The safetensors file: 8 bytes of header length, a JSON header, then the arrays end to end.

Tensors are read on access. The header is validated against the file first, because it can be wrong about its
own length, about the offsets of arrays (past the end, overlapping) and about their sizes. Writing streams one
tensor at a time, so a 6 GB model needs only the memory of its largest tensor.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import file_size
from glassgpt.files.byte_reader import ByteReader
from glassgpt.weights.checkpoint import LazyTensor

# The header of GPT-2 XL is 60 kB. Parsed JSON takes up to thirty times its own size in memory.
HEADER_LIMIT = 2**20

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Span:
    """The position of a tensor, from the start of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def has_signature(path: str | Path) -> bool:
    """Whether a file starts like a safetensors file."""
    with open(path, "rb") as file:
        start = file.read(9)
    # No header is 4 GB long; a GGUF file of 123 tensors would otherwise match.
    return len(start) == 9 and start[8:] == b"{" and start[4:8] == bytes(4)


def open_tensors(path: str | Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Every tensor of the file, unread, and the strings of its `__metadata__`."""
    spans, metadata = read_header(path)
    file = ByteReader(path)
    tensors = {
        name: LazyTensor(
            span.shape,
            span.dtype,
            functools.partial(file.array, span.begin, span.shape, span.dtype),
            place=(file, span.begin),
            mapped=functools.partial(file.mapped, span.begin, span.shape, span.dtype),
        )
        for name, span in spans.items()
    }
    return tensors, metadata


def read_header(path: str | Path) -> tuple[dict[str, Span], dict[str, str]]:
    """The validated header: dtype, shape and position of every tensor, and the metadata."""
    path = Path(path)
    size = file_size(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise _invalid(path, f"its header claims {length:,} bytes but the file has {size:,}")
        if length > HEADER_LIMIT:
            raise _invalid(path, f"its header is {length:,} bytes; a GPT-2 needs less than {HEADER_LIMIT:,}")
        header = file.read(length)
    try:
        values = json.loads(header, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"its header is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise _invalid(path, "its header is not a JSON object")
    metadata = values.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _invalid(path, "its __metadata__ is not an object of strings")
    spans = {name: _span(path, name, value, 8 + length) for name, value in values.items()}
    _check_tiling(path, spans, 8 + length, size)
    return spans, metadata


def _span(path: Path, name: str, value: Any, base: int) -> Span:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _invalid(path, f"{short_repr(name)} is not described by dtype, shape and data_offsets")
    if not isinstance(value["dtype"], str) or value["dtype"] not in DTYPES:
        raise _invalid(
            path, f"{short_repr(name)} has dtype {short_repr(value['dtype'])}, which GPT-2 weights do not use"
        )
    shape, offsets = value["shape"], value["data_offsets"]
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _invalid(
            path, f"{short_repr(name)} has shape {short_repr(shape)} and data_offsets {short_repr(offsets)}"
        )
    dtype = DTYPES[value["dtype"]]
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise _invalid(
            path,
            f"{short_repr(name)} of shape {shape} takes {needed:,} bytes, "
            f"its offsets {offsets} say otherwise",
        )
    return Span(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _check_tiling(path: Path, spans: Mapping[str, Span], begin: int, end: int) -> None:
    """The tensors must fill the rest of the file exactly: no overlap, no hole, nothing past the end."""
    reached = begin
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
        if span.begin != reached:
            what = "overlaps the tensor before it" if span.begin < reached else "leaves a hole before it"
            raise _invalid(path, f"{short_repr(name)} {what}")
        reached = span.end
    if reached != end:
        raise _invalid(path, f"its tensors end at byte {reached:,} but the file at byte {end:,}")


def _are_sizes(values: Any) -> bool:
    if not isinstance(values, list) or len(values) > 8:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in values)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {short_repr(key)} occurs twice")
        values[key] = value
    return values


def _invalid(path: Path, what: str) -> FileFormatError:
    return FileFormatError(f"{path} is not a valid safetensors file: {what}. Download the file again.")


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor to be written: its description, and a function that computes it when needed."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    array: Any  # () -> Array


def size_of(tensors: Iterable[TensorToWrite]) -> int:
    """The size of the arrays in bytes."""
    return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)


def write_tensors(
    path: str | Path, tensors: list[TensorToWrite], metadata: Mapping[str, str], align: int = 8
) -> None:
    """Write a safetensors file, one tensor in memory at a time. Arrays start on a multiple of `align`."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    reached = 0
    for tensor in tensors:
        end = reached + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [reached, end],
        }
        reached = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % align)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            array = np.asarray(tensor.array(), order="C")
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                raise AssertionError(f"{tensor.name} changed while being written")
            file.write(array.reshape(-1).view(np.uint8).data)
