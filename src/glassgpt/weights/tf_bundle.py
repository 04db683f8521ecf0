"""TensorFlow's checkpoint files ("tensor bundle", Saver V2), read and written without TensorFlow.

NAME.index is a table (sstable.py) of small protobuf messages: under the empty key a header, under each
variable's name its dtype, its shape and where its bytes lie in NAME.data-00000-of-00001, with a checksum.
Only the handful of message fields that matter here are known; they are read by a reader of a dozen lines.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.files import file_size, read_bytes
from glassgpt.files.byte_reader import ByteReader
from glassgpt.weights.checkpoint import Array, LazyTensor
from glassgpt.weights.crc32c import crc32c, masked
from glassgpt.weights.sstable import FILE_LIMIT, read_table, read_varint, varint, write_table

# TensorFlow's ids (types.proto) of the dtypes of weights.
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype("<f2"),
}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_SHARD_LIMIT = 1000


@dataclass(frozen=True)
class Entry:
    """The position of a variable. (BundleEntryProto)"""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


def read_bundle(prefix: Path, skip: Iterable[str] = ()) -> dict[str, LazyTensor]:
    """The variables of `prefix`.index by name; each is read, and its checksum verified, on access.

    A name that ends in one of `skip`, or has a dtype no weight has (a step counter), is left out.
    """
    index = prefix.with_name(prefix.name + ".index")
    where = str(index)
    if file_size(index) > FILE_LIMIT:
        _fail(where, f"is {file_size(index):,} bytes long; an index has at most {FILE_LIMIT:,}")
    table = read_table(read_bytes(index), where)
    if b"" not in table:
        _fail(where, "has no header")
    n_shards = _read_header(table.pop(b""), where)
    endings = tuple(skip)
    entries: dict[str, Entry] = {}
    for key, value in table.items():
        try:
            name = key.decode()
        except UnicodeDecodeError:
            _fail(where, f"has the unreadable name {key[:80]!r}")
        if not name.endswith(endings):
            entries[name] = _read_entry(value, name, where)
    shards = {shard: _Shard(prefix, shard, n_shards) for shard in sorted({e.shard for e in entries.values()})}
    weights = {name: entry for name, entry in entries.items() if entry.dtype in DTYPES}
    tensors = {name: shards[entry.shard].tensor(name, entry) for name, entry in weights.items()}
    _refuse_overlaps(weights, where)
    return tensors


def write_bundle(prefix: Path, tensors: Iterable[tuple[str, Array]]) -> None:
    """Write `prefix`.index and the one data file, from arrays of one of the four dtypes above."""
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    # The header: one data file, little-endian (0, left out), made by version 1 of the format.
    table = {b"": b"\x08\x01" + b"\x1a\x02\x08\x01"}
    offset = 0
    with open(_shard_path(prefix, 0, 1), "wb") as file:
        for name, array in tensors:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file.write(data)
            shape = b"".join(b"\x12" + _sized(b"\x08" + varint(n)) for n in array.shape)
            table[name.encode()] = (
                (b"\x08" + varint(numbers[array.dtype]))
                + (b"\x12" + _sized(shape))
                + (b"\x20" + varint(offset))
                + (b"\x28" + varint(len(data)))
                + (b"\x35" + struct.pack("<I", masked(crc32c(data))))
            )
            offset += len(data)
    prefix.with_name(prefix.name + ".index").write_bytes(write_table(table))


class _Shard:
    """One data file."""

    def __init__(self, prefix: Path, number: int, of: int) -> None:
        if not 0 <= number < of <= _SHARD_LIMIT:
            _fail(f"{prefix}.index", f"puts a variable into data file {number} of {of}")
        self.path = _shard_path(prefix, number, of)
        self.size = file_size(self.path)
        self.bytes = ByteReader(self.path)

    def tensor(self, name: str, entry: Entry) -> LazyTensor:
        dtype = DTYPES[entry.dtype]
        if math.prod(entry.shape) * dtype.itemsize != entry.size:
            _fail(str(self.path), f"would hold {name} of shape {entry.shape} in {entry.size:,} bytes")
        if entry.offset + entry.size > self.size:
            _fail(
                str(self.path),
                f"is {self.size:,} bytes long, but {name} ends at {entry.offset + entry.size:,}",
            )

        def read() -> Array:
            data = self.bytes.read(entry.offset, entry.size)
            if masked(crc32c(data.data)) != entry.crc:
                _fail(str(self.path), f"has a wrong checksum on {name}")
            return data.view(dtype).reshape(entry.shape)

        return LazyTensor(entry.shape, dtype, read)


def _shard_path(prefix: Path, number: int, of: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{of:05d}")


def _read_header(message: bytes, where: str) -> int:
    fields = _fields(message, where)
    if _last_int(fields, 2, where) != 0:
        _fail(where, "was written on a big-endian machine, which no GPT-2 was")
    n_shards = _last_int(fields, 1, where)
    if not 1 <= n_shards <= _SHARD_LIMIT:
        _fail(where, f"promises {n_shards:,} data files")
    return n_shards


def _read_entry(message: bytes, name: str, where: str) -> Entry:
    fields = _fields(message, where)
    if 7 in fields:
        raise FileFormatError(f"{where}: {name} is stored in slices. Save it again as one variable.")
    shape = []
    for part in fields.get(2, [])[-1:]:
        dims = _fields(_as_bytes(part, where), where).get(2, [])
        if len(dims) > 8:
            _fail(where, f"gives {name} {len(dims)} dimensions")
        shape = [_last_int(_fields(_as_bytes(dim, where), where), 1, where) for dim in dims]
    # A negative int64 (an unknown dimension, an offset before the file) appears here as a huge integer.
    offset, size = _last_int(fields, 4, where), _last_int(fields, 5, where)
    if max([offset, size, *shape]) >= 2**48:
        _fail(where, f"gives {name} a shape or place that no file has")
    return Entry(
        dtype=_last_int(fields, 1, where),
        shape=tuple(shape),
        shard=_last_int(fields, 3, where),
        offset=offset,
        size=size,
        crc=_last_int(fields, 6, where),
    )


def _refuse_overlaps(entries: dict[str, Entry], where: str) -> None:
    """A small data file must not be used for many large variables."""
    placed = sorted((e.shard, e.offset, e.offset + e.size, name) for name, e in entries.items())
    for (shard, _, end, name), (next_shard, start, _, next_name) in itertools.pairwise(placed):
        if shard == next_shard and start < end:
            _fail(where, f"puts {next_name} inside {name}")


def _fields(message: bytes, where: str) -> dict[int, list[int | bytes]]:
    """A parsed protobuf message: field number -> all its values, in order."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at, where)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == _VARINT:
            value, at = read_varint(message, at, where)
        else:
            if wire == _BYTES:
                length, at = read_varint(message, at, where)
            elif wire in (_FIXED32, _FIXED64):
                length = 4 if wire == _FIXED32 else 8
            else:
                _fail(where, f"has a field of the unknown kind {wire}")
            if at + length > len(message):
                _fail(where, "has a field longer than its message")
            raw = message[at : at + length]
            value = raw if wire == _BYTES else int.from_bytes(raw, "little")
            at += length
        fields.setdefault(number, []).append(value)
    return fields


def _last_int(fields: dict[int, list[int | bytes]], number: int, where: str) -> int:
    """The last value of a field wins; a field left out is 0. So protobuf has it."""
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        _fail(where, f"has bytes where a number belongs (field {number})")
    return value


def _as_bytes(value: int | bytes, where: str) -> bytes:
    if not isinstance(value, bytes):
        _fail(where, "has a number where a message belongs")
    return value


def _sized(message: bytes) -> bytes:
    return varint(len(message)) + message


def _fail(where: str, what: str) -> NoReturn:
    raise FileFormatError(f"{where} {what}: damaged. Download the file again.") from None
