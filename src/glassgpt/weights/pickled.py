"""Files written by `torch.save`: a pickle, which is a program, and raw storages.

A pickle can call any function it names. There are three checks before that: the zip around it (only
uncompressed entries, no larger than the file), the pickle's instructions, parsed without executing them
(pickle_check.py), and `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import functools
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from glassgpt.errors import NEEDS_TORCH, FileFormatError, UserError
from glassgpt.files import file_size
from glassgpt.files.byte_reader import ByteReader
from glassgpt.weights.checkpoint import Array, LazyTensor
from glassgpt.weights.pickle_check import DTYPES, OLD_START, check_instructions, instructions

if TYPE_CHECKING:
    import torch

# The pickle of a GPT-2 XL with its optimizer state is about 300 kB.
PICKLE_LIMIT = 2**20
ENTRY_LIMIT = 20_000  # 1,750 in the same file


def has_signature(path: str | Path) -> bool:
    """Whether a file starts as one of `torch.save` does: a zip, or (before 2020) a bare pickle."""
    with open(path, "rb") as file:
        start = file.read(len(OLD_START))
    return start.startswith(b"PK\x03\x04") or start == OLD_START


def mentions(path: str | Path, key: str) -> bool:
    """Whether the pickle contains that string, without executing it."""
    path = Path(path)
    return any(argument == key for _, argument in instructions(_pickles(path), path))


@dataclass(frozen=True)
class Pickled:
    """The dictionary in a file. The positions of its storages are known by their addresses in memory."""

    path: Path
    values: dict[str, Any]
    file: ByteReader
    slots: Mapping[int, int]  # address of a storage -> its position in the file; empty before 2020


def load_pickled(path: str | Path) -> Pickled:
    """The dictionary in the file; tensors are not read, except in files from before 2020."""
    path = Path(path)
    check_instructions(_pickles(path), path)
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{path} was made by torch.save: reading it {NEEDS_TORCH} "
            "Or use the .safetensors file of the same model."
        ) from None
    addresses: list[int] = []

    def stay(storage: Any, location: str) -> Any:
        """Whatever device it was saved from, it stays on the CPU."""
        if storage.nbytes():
            addresses.append(storage.data_ptr())
        return storage

    slots: dict[int, int] = {}
    try:
        if _is_zip(path):
            # Mapped for its structure only, no tensor is accessed: see byte_reader.py.
            values = torch.load(path, map_location=stay, weights_only=True, mmap=True)
            slots = _places(addresses, _storages(path))
        if not slots:
            values = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # torch raises many types for a broken file
        raise FileFormatError(
            f"{path} cannot be opened: {_reason(error)}. Download the file again."
        ) from None
    if not isinstance(values, dict):
        raise FileFormatError(f"{path} contains a {type(values).__name__}, not a dictionary of tensors.")
    return Pickled(path, values, ByteReader(path), slots)


def _storages(path: Path) -> list[int]:
    """Where the storages of a torch zip begin, by its directory."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        begins = []
        for info in archive.infolist():
            if info.file_size and re.search(r"/data/\d+$", info.filename):
                file.seek(info.header_offset + 26)  # the lengths of the name and of the padding that follow
                name, padding = struct.unpack("<HH", file.read(4))
                begins.append(info.header_offset + 30 + name + padding)
    return begins


def _places(addresses: list[int], begins: list[int]) -> dict[int, int]:
    """Each storage's address with its place in the file, or nothing if the two do not match one to one."""
    if not addresses or len(addresses) != len(begins):
        return {}
    start = min(addresses) - min(begins)  # of the map
    slots = {address: address - start for address in addresses}
    return slots if sorted(slots.values()) == sorted(begins) else {}


def _reason(error: Exception) -> str:
    """The one useful line of torch's message, whose others advise opening the file unsafely."""
    lines = str(error).strip().splitlines()
    reasons = [
        line.split("WeightsUnpickler error:")[1] for line in lines if "WeightsUnpickler error:" in line
    ]
    if not reasons and lines and not lines[0].startswith("Weights only load failed"):
        reasons = lines
    reason = reasons[0].strip().rstrip(".")[:200] if reasons else ""
    return reason if reason else "torch finds no weights in it"


def lazy_tensors(pickled: Pickled, values: Mapping[Any, Any]) -> dict[str, LazyTensor]:
    """The tensors of a dictionary in the file, each read on access."""
    path, tensors = pickled.path, {}
    for name, tensor in values.items():
        if not isinstance(name, str) or not hasattr(tensor, "untyped_storage"):
            key = repr(name) if isinstance(name, str) else type(name).__name__
            raise FileFormatError(f"{path}: the entry {key} is a {type(tensor).__name__}, not a tensor.")
        # A stride of 0 can expand one value to any shape; real files do not contain such tensors.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise FileFormatError(
                f"{path}: tensor {name!r} claims shape {tuple(tensor.shape)}, more than the file contains."
            )
        tensors[name] = LazyTensor(tuple(tensor.shape), _dtype(path, name, tensor), _reader(pickled, tensor))
    return tensors


def _reader(pickled: Pickled, tensor: torch.Tensor) -> Callable[[], Array]:
    place = pickled.slots.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
    if place is None:
        return functools.partial(_as_numpy, tensor)
    file = pickled.file  # alone: what hangs on the dictionary may go
    shape, stride, dtype, width = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.element_size()
    begin = place + int(tensor.storage_offset()) * width
    length = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))  # elements it spans

    def read() -> Array:
        import torch

        numbers = torch.from_numpy(file.read(begin, length * width)).view(dtype)
        return _as_numpy(numbers.as_strided(shape, stride))

    return read


def _as_numpy(tensor: torch.Tensor) -> Array:
    import torch

    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: Array = plain.numpy()
    return array


def _dtype(path: str | Path, name: str, tensor: torch.Tensor) -> np.dtype[Any]:
    label = str(tensor.dtype).removeprefix("torch.")
    if label not in DTYPES:
        raise FileFormatError(f"{path}: tensor {name!r} has dtype {label}, which GPT-2 weights do not use.")
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if label == "bfloat16" else label)
    return dtype


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _pickles(path: Path) -> bytes:
    """The bytes of the pickle, or of the several that an old file starts with."""
    return _pickle_of_zip(path) if _is_zip(path) else _start_of(path)


def _start_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(PICKLE_LIMIT)


def _pickle_of_zip(path: Path) -> bytes:
    """The `data.pkl` of a torch zip, after its directory has been checked for bombs."""
    size = file_size(path)
    entries = _entry_count(path, size)
    if entries > ENTRY_LIMIT:
        raise FileFormatError(f"{path} refused: a zip of {entries:,} entries; a GPT-2 has a few thousand.")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > ENTRY_LIMIT:
                raise FileFormatError(f"{path} refused: a zip of {len(infos):,} entries.")
            for info in infos:
                if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                    raise FileFormatError(
                        f"{path} refused: {info.filename!r} is compressed ({info.compress_size:,} to "
                        f"{info.file_size:,} bytes); torch.save stores entries plainly. It may be a zip bomb."
                    )
            total = sum(info.file_size for info in infos)
            if total > size:
                raise FileFormatError(
                    f"{path} refused: its entries claim {total:,} bytes but the file has {size:,}."
                )
            pickles = [info for info in infos if info.filename.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise FileFormatError(f"{path} is a zip but not one of torch.save: no data.pkl in it.")
            if pickles[0].file_size > PICKLE_LIMIT:
                raise FileFormatError(f"{path} refused: its pickle is {pickles[0].file_size:,} bytes long.")
            return archive.read(pickles[0])
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} is a broken zip: {error}. Download the file again.") from None


def _entry_count(path: Path, size: int) -> int:
    """The number of entries by the zip's last record, known before the directory itself is parsed."""
    with open(path, "rb") as file:
        file.seek(max(0, size - 65_557))  # the record is 22 bytes and a comment of at most 65,535
        tail = file.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) - end < 22:
            raise FileFormatError(f"{path} is a truncated zip: it has no directory. Download the file again.")
        count = int.from_bytes(tail[end + 10 : end + 12], "little")
        locator = tail[max(0, end - 20) : end]
        if locator.startswith(b"PK\x06\x07"):  # a 64-bit record exists and this says where
            file.seek(min(size, int.from_bytes(locator[8:16], "little")))
            wide = file.read(40)
            if wide.startswith(b"PK\x06\x06"):
                count = int.from_bytes(wide[32:40], "little")
    return count
