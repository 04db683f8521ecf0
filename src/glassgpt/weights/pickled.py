"""Files made by `torch.save`: a pickle, which is a program, beside raw storages.

A pickle can call any function it names. Three walls stand before that: the zip around it is measured (only
plain stored entries, no larger than the file), the pickle's instructions are read without being executed
and every function it names must be on a short list, and only then `torch.load(weights_only=True)` runs it.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from glassgpt.errors import FileFormatError, UserError
from glassgpt.weights.checkpoint import Array, LazyTensor
from glassgpt.weights.safe import file_size

if TYPE_CHECKING:
    import torch

# The pickle of a GPT-2 XL with its optimizer state is about 300 kB; reading 1 MB of instructions takes 1 s.
PICKLE_LIMIT = 2**20
ENTRY_LIMIT = 20_000  # 1,750 in the same file
_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch's magic number, pickled

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")

# All that state dicts and training checkpoints of GPT-2s need. torch's own list is longer and can be made
# to allocate memory (`bytearray`, `torch.Tensor`); it remains as the wall behind this one.
_ALLOWED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_parameter",
    "torch.nn.parameter Parameter",
    "torch Size",
    "torch device",
    *(f"torch {kind}Storage" for kind in _STORAGES),
    *(f"torch {dtype}" for dtype in _DTYPES),
    "torch.storage UntypedStorage",
}


def looks_like(path: str | Path) -> bool:
    """Whether a file starts as one of `torch.save` does: a zip, or (before 2020) a bare pickle."""
    with open(path, "rb") as file:
        start = file.read(len(_LEGACY_START))
    return start.startswith(b"PK\x03\x04") or start == _LEGACY_START


def mentions(path: str | Path, key: str) -> bool:
    """Whether the pickle holds that string, found without executing it."""
    return any(argument == key for _, argument in _instructions(Path(path)))


def load_pickled(path: str | Path) -> dict[str, Any]:
    """The dictionary in the file; tensors stay on the disk (mapped) where the file's age allows."""
    path = Path(path)
    _check_instructions(path)
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{path} was made by torch.save and needs torch to be read: pip install 'glassgpt[torch]', "
            "or use the .safetensors file of the same model."
        ) from None
    try:
        mapped = _is_zip(path)
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # whatever torch makes of a broken file, the user needs one line of it
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise FileFormatError(f"{path} cannot be opened safely: {reason}. Get the file again.") from None
    if not isinstance(values, dict):
        raise FileFormatError(f"{path} holds a {type(values).__name__}, not a dictionary of tensors.")
    return values


def lazy_tensors(path: str | Path, values: Mapping[Any, Any]) -> dict[str, LazyTensor]:
    """Numpy views of a dictionary of torch tensors."""
    tensors = {}
    for name, tensor in values.items():
        if not isinstance(name, str) or not hasattr(tensor, "untyped_storage"):
            raise FileFormatError(f"{path}: the entry {name!r} is a {type(tensor).__name__}, not a tensor.")
        # A stride of 0 can blow one number up to any shape; real files do not contain such tensors.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise FileFormatError(
                f"{path}: tensor {name!r} claims shape {tuple(tensor.shape)}, more than the file holds of it."
            )
        tensors[name] = LazyTensor(tuple(tensor.shape), _dtype(path, name, tensor), _reader(tensor))
    return tensors


def _reader(tensor: torch.Tensor) -> Any:
    def read() -> Array:
        import torch

        plain = tensor.detach()
        if plain.dtype == torch.bfloat16:
            return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        array: Array = plain.numpy()
        return array

    return read


def _dtype(path: str | Path, name: str, tensor: torch.Tensor) -> np.dtype[Any]:
    label = str(tensor.dtype).removeprefix("torch.")
    if label not in _DTYPES:
        raise FileFormatError(f"{path}: tensor {name!r} has dtype {label}, which GPT-2 weights do not use.")
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if label == "bfloat16" else label)
    return dtype


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _check_instructions(path: Path) -> None:
    size = file_size(path)
    number = 0
    for opcode, argument in _instructions(path):
        if opcode == "GLOBAL" and argument not in _ALLOWED:
            function = str(argument).replace(" ", ".")
            raise FileFormatError(
                f"{path} refused: opening it would call {function}, which no weight file needs. "
                "It may be an attack; use a .safetensors file from a source you trust."
            )
        if opcode in {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"}:
            raise FileFormatError(f"{path} refused: its pickle uses {opcode}, which torch.save never writes.")
        if isinstance(argument, int):
            number = argument
        # The last number before a storage is named is its length, allocated as soon as it is read.
        if opcode == "BINPERSID" and not 0 <= number <= size:
            raise FileFormatError(
                f"{path} refused: it promises a storage of {number:,} numbers but is {size:,} bytes long."
            )


def _instructions(path: Path) -> Iterator[tuple[str, Any]]:
    """The pickle's instructions by name, read but not executed."""
    pickles = BytesIO(_pickle_of_zip(path) if _is_zip(path) else _start_of(path))
    while pickles.read(1):  # a file of the old kind holds several pickles one after the other
        pickles.seek(-1, 1)
        start = pickles.tell()
        try:
            for opcode, argument, _ in pickletools.genops(pickles):
                yield opcode.name, argument
        except Exception as error:
            # Raw storages follow the fifth pickle of an old file; they are no pickle and need not be one.
            if start > 0 and not _is_zip(path):
                return
            raise FileFormatError(f"{path} holds a broken pickle: {error}. Get the file again.") from None


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
        raise FileFormatError(f"{path} is a broken zip: {error}. Get the file again.") from None


def _entry_count(path: Path, size: int) -> int:
    """The number of entries by the zip's last record, known before the directory itself is parsed."""
    with open(path, "rb") as file:
        file.seek(max(0, size - 65_557))  # the record is 22 bytes and a comment of at most 65,535
        tail = file.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) - end < 22:
            raise FileFormatError(f"{path} is a truncated zip: it has no directory. Get the file again.")
        count = int.from_bytes(tail[end + 10 : end + 12], "little")
        locator = tail[max(0, end - 20) : end]
        if locator.startswith(b"PK\x06\x07"):  # a 64-bit record exists and this says where
            file.seek(min(size, int.from_bytes(locator[8:16], "little")))
            wide = file.read(40)
            if wide.startswith(b"PK\x06\x06"):
                count = int.from_bytes(wide[32:40], "little")
    return count
