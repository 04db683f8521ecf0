"""A checkpoint of a training run (RUN/checkpoints/step-00000400) as a model. `glassgpt train` writes it.

    training.safetensors          of one process: weights (`model.*`), optimizer state, RNG states
    shard-*.safetensors           of several (FSDP, tensor parallel): the shards of each, with their offsets
    rest.safetensors              and what is not sharded
    DONE                          written last: the size and CRC-32 of every file

The metadata of training.safetensors or rest.safetensors has the model's config; the tokenizer is the run's.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import file_crc32, file_size, path_inside, read_json
from glassgpt.weights.checkpoint import Array, Checkpoint, LazyTensor, LazyTensors, check_tensors
from glassgpt.weights.safetensors_file import open_tensors, read_header
from glassgpt.weights.tokenizers import find_tokenizer

STATE = "training.safetensors"
REST = "rest.safetensors"
DONE = "DONE"
OFFSETS = "DCP_SHARDING_INFO"  # the metadata in which torch's distributed checkpoint stores them


def detect(path: str | Path) -> bool:
    """A folder with a run's training state, finished or not."""
    path = Path(path)
    return path.is_dir() and ((path / STATE).is_file() or is_sharded(path))


def is_sharded(folder: Path) -> bool:
    return (folder / REST).exists() or any(folder.glob("shard-*.safetensors"))


def load(path: str | Path) -> Checkpoint:
    """Check every file against DONE and open the weights. Tensors are read on demand."""
    folder = Path(path)
    files = read_done(folder)
    check_files(folder, files)
    config = _read_config(folder)
    tensors = _open_shards(folder, files) if is_sharded(folder) else _weights(open_tensors(folder / STATE)[0])
    tokenizer, notes = find_tokenizer(run_folder(folder))
    return Checkpoint(
        config,
        check_tensors(config, LazyTensors(tensors), str(folder)),
        tokenizer,
        format="run",
        source=str(folder),
        notes=notes,
    )


def load_config(path: str | Path) -> Config:
    folder = Path(path)
    read_done(folder)
    return _read_config(folder)


def run_folder(checkpoint: Path) -> Path:
    """The run that a checkpoint belongs to: its tokenizer is there."""
    folder = checkpoint.resolve()
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder


def read_done(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a finished checkpoint by name, each with its size and CRC-32."""
    if not (folder / DONE).is_file():
        raise FileFormatError(
            f"{folder} is incomplete: it has no {DONE} file. Use another checkpoint of the run."
        )
    values = read_json(folder / DONE)
    files = values.get("files", {STATE: [values.get("bytes"), values.get("crc32")]})
    if not isinstance(files, dict) or not files:
        raise FileFormatError(f"{folder / DONE} is damaged. Use another checkpoint of the run.")
    sizes = {}
    for name, numbers in files.items():
        path_inside(folder, name)
        if not isinstance(numbers, list) or len(numbers) != 2 or not all(map(_is_count, numbers)):
            raise FileFormatError(f"{folder / DONE} is damaged. Use another checkpoint of the run.")
        sizes[name] = (numbers[0], numbers[1])
    if (REST if is_sharded(folder) else STATE) not in sizes:
        raise FileFormatError(f"{folder / DONE} belongs to other files. Use another checkpoint of the run.")
    return sizes


def check_files(folder: Path, files: dict[str, tuple[int, int]]) -> None:
    """Compare files with their size and CRC-32."""
    for name, (size, crc32) in files.items():
        if not (folder / name).is_file():
            raise FileFormatError(f"{folder} is damaged: {name} is missing.")
        if file_size(folder / name) != size or file_crc32(folder / name) != crc32:
            raise FileFormatError(f"{folder / name} is damaged: it differs from what was saved.")


def _read_config(folder: Path) -> Config:
    file = folder / (REST if is_sharded(folder) else STATE)
    _, metadata = read_header(file)
    if "config" not in metadata:
        raise FileFormatError(f"{file} has no config in its metadata. Use another checkpoint of the run.")
    return Config.from_dict(_parse_object(metadata["config"], f"{file}: its config"), where=str(file))


def _parse_object(text: str, what: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{what} is not JSON ({error}). Use another checkpoint of the run.") from None
    if not isinstance(values, dict):
        raise FileFormatError(f"{what} is not a JSON object. Use another checkpoint of the run.")
    return values


def _weights(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    return {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}


# Shards.

Shard = tuple[tuple[int, ...], LazyTensor]  # its offset in the whole tensor, and the shard


def _open_shards(folder: Path, files: dict[str, tuple[int, int]]) -> dict[str, LazyTensor]:
    shards: dict[str, list[Shard]] = {}
    for name in sorted(files):
        if name == REST:
            continue
        tensors, metadata = open_tensors(folder / name)
        offsets = _parse_object(metadata.get(OFFSETS, "{}"), f"{folder / name}: {OFFSETS}")
        for key, tensor in _weights(tensors).items():
            if math.prod(tensor.shape):  # a rank may have no part of a small tensor
                offset = _read_offset(
                    offsets.get(f"model.{key}"), tensor, f"{folder / name}: {short_repr(key)}"
                )
                shards.setdefault(key, []).append((offset, tensor))
    return {name: _join(name, parts, folder) for name, parts in shards.items()}


def _read_offset(value: Any, tensor: LazyTensor, where: str) -> tuple[int, ...]:
    offset = value.get("saved_offsets") if isinstance(value, dict) else None
    if not isinstance(offset, list) or len(offset) != len(tensor.shape) or not all(map(_is_count, offset)):
        raise FileFormatError(
            f"{where} has the offset {short_repr(offset)} for the shape {tensor.shape}. "
            "Use another checkpoint of the run."
        )
    return tuple(offset)


def _join(name: str, shards: list[Shard], folder: Path) -> LazyTensor:
    """The whole tensor of these shards, which must tile it: what they say of themselves is checked first."""
    first = shards[0][1]
    same = all(len(s.shape) == len(first.shape) and s.dtype == first.dtype for _, s in shards)
    starts = np.array([offset for offset, _ in shards], np.float64) if same else np.zeros((0, 1))
    ends = starts + np.array([s.shape for _, s in shards], np.float64) if same else starts
    full = tuple(int(n) for n in ends.max(axis=0)) if same else ()
    volume = sum(math.prod(shard.shape) for _, shard in shards)
    overlaps = any(
        ((starts[i] < ends[i + 1 :]) & (starts[i + 1 :] < ends[i])).all(axis=1).any()
        for i in range(len(starts))
    )
    if not same or math.prod(full) != volume or overlaps:
        raise FileFormatError(
            f"{folder}: the shards of {short_repr(name)} do not add up to a tensor. "
            "Use another checkpoint of the run."
        )
    # The fused q, k, v matrix is stored as (C, 3, C): see `train/checkpoint/sharded.py`.
    fused = name.endswith(".c_attn.weight") and len(full) == 3
    shape = (full[0], full[1] * full[2]) if fused else full
    return LazyTensor(shape, first.dtype, functools.partial(_read_joined, shards, full, shape))


def _read_joined(shards: list[Shard], full: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    joined = np.empty(full, shards[0][1].dtype)
    for offset, shard in shards:
        joined[tuple(slice(at, at + n) for at, n in zip(offset, shard.shape, strict=True))] = shard.read()
    return joined.reshape(shape)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
