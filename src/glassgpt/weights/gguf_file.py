"""The GGUF container, versions 2 and 3: named settings, then named tensors, then their bytes.

    "GGUF", version, how many tensors, how many settings
    settings:  name, type, value           (a value may be a list of numbers or of texts)
    tensors:   name, dimensions, storage type, place of the bytes
    padding up to a multiple of general.alignment, and the bytes

The gguf package from PyPI believes every count in a file (a list of 2**40 items is built item by item), so
the reader is our own: nothing is allocated for a number that the file is too short to back.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import file_size
from glassgpt.files.byte_reader import ByteReader
from glassgpt.weights.ggml_types import TYPES, Bytes, GGMLType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32

# GPT-2's 50,257 tokens and 50,000 merges take 1.5 MB; the largest vocabularies in use, of a quarter million
# tokens, about 15 MB. Python texts take up to four times their bytes, and all stays below 200 MB.
METADATA_LIMIT = 32 * 2**20
TEXT_LIMIT = 2**20  # how many texts there may be in all lists together
DIMENSIONS_LIMIT = 4

_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32, _I32, _F32, _BOOL, _TEXT, _LIST = 4, 5, 6, 7, 8, 9

Setting = bool | int | float | str | list[str] | list[int]  # what can be written
Value = int | float | bool | str | list[str] | NDArray[Any]


@dataclass(frozen=True)
class StoredTensor:
    """The position and type of a tensor. The shape is numpy's: the last dimension is the fastest."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLType
    offset: int  # from the start of the file
    n_bytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A file whose every promise has been held against its size."""

    path: Path
    settings: dict[str, Value]
    tensors: dict[str, StoredTensor]
    data: ByteReader

    def bytes_of(self, tensor: StoredTensor) -> Bytes:
        return self.data.read(tensor.offset, tensor.n_bytes)

    def read(self, tensor: StoredTensor) -> NDArray[Any]:
        return tensor.kind.read(self.bytes_of(tensor), tensor.shape)


def read_gguf(path: Path) -> GGUFFile:
    """Open the file and read everything but the tensors' data."""
    size = file_size(path)
    if size < 24:
        raise FileFormatError(f"{path} is {size} bytes long, too short for a GGUF file. Get it again.")
    data = ByteReader(path)
    cursor = _Cursor(path, data.read(0, min(size, METADATA_LIMIT)).data)
    if cursor.take(4) != MAGIC:
        raise FileFormatError(f"{path} does not begin with 'GGUF': it is another kind of file.")
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise FileFormatError(
            f"{path} is GGUF version {version}; versions 2 and 3 (little-endian) are read. "
            "Convert it again with a current llama.cpp."
        )
    n_tensors, n_settings = cursor.number("<Q"), cursor.number("<Q")
    cursor.require(n_settings, 8 + 4 + 1, "settings")
    settings: dict[str, Value] = {}
    for _ in range(n_settings):
        name = cursor.text()
        if name in settings:
            cursor.fail(f"has the setting {name[:80]!r} twice")
        settings[name] = cursor.value(cursor.number("<I"))
    alignment = settings.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 2**20 or alignment & (alignment - 1):
        cursor.fail(f"has general.alignment {short_repr(alignment)}, not a power of two of at least 8")
    cursor.require(n_tensors, 8 + 4 + 8 + 4 + 8, "tensors")
    listed = [cursor.tensor() for _ in range(n_tensors)]
    start = cursor.at + -cursor.at % alignment
    tensors: dict[str, StoredTensor] = {}
    for name, shape, kind, offset in listed:
        n_bytes = kind.n_bytes(math.prod(shape))
        if name in tensors:
            cursor.fail(f"has the tensor {name[:80]!r} twice")
        if offset % alignment or start + offset + n_bytes > size:
            cursor.fail(
                f"is {size:,} bytes long, but {name[:80]!r} of shape {shape} would be the {n_bytes:,} bytes "
                f"from {start + offset:,}"
            )
        tensors[name] = StoredTensor(name, shape, kind, start + offset, n_bytes)
    placed = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for one, other in itertools.pairwise(placed):
        if one.offset + one.n_bytes > other.offset:
            cursor.fail(f"puts {other.name[:80]!r} inside {one.name[:80]!r}")
    return GGUFFile(path, settings, tensors, data)


class _Cursor:
    """A place in the metadata, moving forward; every step is held against what is there."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0
        self.texts_left = TEXT_LIMIT

    def fail(self, what: str) -> NoReturn:
        raise FileFormatError(f"{self.path} {what}: damaged. Download the file again.")

    def require(self, count: int, each: int, what: str) -> None:
        """Refuse a count of things that would not fit, even at their smallest."""
        if count * each > len(self.data) - self.at:
            self.fail(f"promises {count:,} {what}, more than it has room for")

    def take(self, n: int) -> bytes:
        self.require(n, 1, "bytes")
        self.at += n
        return bytes(self.data[self.at - n : self.at])

    def number(self, code: str) -> int:
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return int(value)

    def text(self) -> str:
        try:
            return self.take(self.number("<Q")).decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"has a text before byte {self.at:,} that is not UTF-8")

    def value(self, kind: int) -> Value:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            return self.values(self.number("<I"), self.number("<Q"))
        return self.numbers(kind, 1)[0].item()  # type: ignore[no-any-return]

    def values(self, kind: int, count: int) -> Value:
        if kind != _TEXT:
            return self.numbers(kind, count)
        self.require(count, 8, "texts")
        if count > self.texts_left:
            self.fail(f"has more than {TEXT_LIMIT:,} texts")
        self.texts_left -= count
        return self.texts(count)

    def texts(self, count: int) -> list[str]:
        """What `text` does, `count` times over, in a third of the time: a vocabulary is 100,000 texts."""
        found, data, at, length = [], self.data, self.at, struct.Struct("<Q")
        try:
            for _ in range(count):
                start = at + 8
                at = start + length.unpack_from(data, at)[0]
                if at > len(data):
                    self.fail("has a list of texts longer than itself")
                found.append(str(data[start:at], "utf-8"))
        except (struct.error, UnicodeDecodeError):
            self.fail(f"has a list of texts that breaks off, or is not UTF-8, near byte {at:,}")
        self.at = at
        return found

    def numbers(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _SCALARS:
            self.fail(f"has a value of the unknown type {kind}")  # a list of lists, too: GPT-2 has none
        dtype = _SCALARS[kind]
        self.require(count, dtype.itemsize, "numbers")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def tensor(self) -> tuple[str, tuple[int, ...], GGMLType, int]:
        name = self.text()
        n_dimensions = self.number("<I")
        if not 1 <= n_dimensions <= DIMENSIONS_LIMIT:
            self.fail(f"gives {name[:80]!r} {n_dimensions:,} dimensions")
        shape = tuple(self.number("<Q") for _ in range(n_dimensions))[::-1]
        if min(shape) < 1 or math.prod(shape) > 2**48:
            self.fail(f"gives {name[:80]!r} the impossible shape {shape}")
        number = self.number("<I")
        kind = TYPES.get(number)
        if kind is None:
            raise FileFormatError(
                f"{self.path}: {name[:80]!r} is stored as ggml type {number}; supported are "
                f"{', '.join(known.name for known in TYPES.values())}. Quantize it again as one of these."
            )
        if shape[-1] % kind.block:
            self.fail(f"stores rows of {shape[-1]:,} numbers ({name[:80]!r}) in blocks of {kind.block}")
        return name, shape, kind, self.number("<Q")


@dataclass(frozen=True)
class GGUFTensorToWrite:
    """A tensor to be written; `make` returns its bytes when needed, so one is in memory at a time."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLType
    make: Callable[[], Bytes]


def write_gguf(path: Path, settings: dict[str, Setting], tensors: Sequence[GGUFTensorToWrite]) -> None:
    """Write a version 3 file with the standard alignment. Integers are written as 32 bits."""
    with open(path, "wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(settings)))
        for name, value in settings.items():
            file.write(_text(name) + _setting(value))
        offset = 0
        for tensor in tensors:
            dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
            file.write(_text(tensor.name) + dimensions + struct.pack("<IQ", tensor.kind.number, offset))
            n_bytes = tensor.kind.n_bytes(math.prod(tensor.shape))
            offset += n_bytes + -n_bytes % ALIGNMENT
        file.write(bytes(-file.tell() % ALIGNMENT))
        for tensor in tensors:
            file.write(tensor.make().data)
            file.write(bytes(-file.tell() % ALIGNMENT))


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _setting(value: Setting) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _TEXT) + _text(value)
    if all(isinstance(item, str) for item in value):
        return struct.pack("<IIQ", _LIST, _TEXT, len(value)) + b"".join(_text(str(item)) for item in value)
    return struct.pack("<IIQ", _LIST, _I32, len(value)) + np.array(value, "<i4").tobytes()
