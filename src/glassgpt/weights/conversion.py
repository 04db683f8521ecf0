"""Conversion between formats, with a report on every tensor: the written file is read back and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.files import atomic_write, check_target, expand_user, recover_interrupted_write, resolve_symlink
from glassgpt.progress import Progress, no_progress
from glassgpt.weights.checkpoint import DTYPES, Array, Checkpoint, shape_of, storage_dtype
from glassgpt.weights.modelfile import check_modelfile, write_modelfile
from glassgpt.weights.registry import check_only_model_files, format_for, load_checkpoint, writer

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# The dtypes that only some formats hold.
QUANTIZED = {"int8": ("packed", "gguf"), "int4": ("packed", "gguf"), "q8_0": ("gguf",), "q4_0": ("gguf",),
             "q4_k": ("gguf",)}  # fmt: skip
_BLOCK = 1 << 22  # values compared at a time, which bounds the memory


@dataclass(frozen=True)
class TensorReport:
    """The conversion of one tensor."""

    name: str
    shape: tuple[int, ...]
    source_dtype: str
    target_dtype: str
    max_abs_error: float  # 0: all values are equal
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The result of a conversion; iterates over the tensors."""

    source: str
    target: str
    source_format: str
    target_format: str
    tensors: list[TensorReport]
    notes: list[str] = field(default_factory=list)  # about the model as a whole

    def __iter__(self) -> Iterator[TensorReport]:
        return iter(self.tensors)

    @property
    def max_abs_error(self) -> float:
        return max((tensor.max_abs_error for tensor in self.tensors), default=0.0)


def convert(
    src: str | Path,
    dst: str | Path,
    format: str | None = None,
    dtype: str | None = None,
    *,
    force: bool = False,
    modelfile: bool = False,
    offline: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Read `src` (a name or a path), write it to `dst`, read that back, and report on every tensor.

    With `modelfile` a Modelfile for Ollama is written beside a GGUF file.
    """
    if not str(dst):  # pathlib would take it for the current folder
        raise SettingError("the target's name is empty. Give a folder or a file.")
    if "\0" in str(dst):
        raise SettingError(f"the target {str(dst)!r} contains a null byte. Give a folder or a file.")
    target = resolve_symlink(expand_user(dst))
    format = format_for(target, dtype) if format is None else format
    module = writer(format)
    check_dtype(dtype, format)
    _check_target(src, target, force)
    place = check_modelfile(target, format, force) if modelfile else None
    checkpoint = load_checkpoint(src, offline=offline, progress=progress)
    notes = list(module.remarks(checkpoint.config)) if hasattr(module, "remarks") else []
    if checkpoint.tokenizer is None:
        why_not = checkpoint.notes.get("tokenizer")
        reason = "has no tokenizer" if why_not is None else f"has a tokenizer that cannot be read ({why_not})"
        notes.append(f"the source {reason}, so none was written")
    module.save(checkpoint, target, dtype)
    written: Checkpoint = module.load(target)
    if place is not None:
        write_modelfile(checkpoint, target, place)
        notes.append(f"for Ollama: ollama create {target.stem} -f {place}")
    if checkpoint.tokenizer is not None:
        notes += _write_tokenizer_beside(checkpoint.tokenizer, written.tokenizer, target, format)
    if checkpoint.score is not None and written.score is None:
        notes.append(f"{format} files have no place for a classifier's head; it was left out")
    if checkpoint.task is not None and written.task is None:
        notes.append(f"{format} files have no place for the task; without task.toml it only generates text")
    tensors = [_compare_tensor(checkpoint, written, name) for name in checkpoint.config.shapes()]
    return Report(str(src), str(target), checkpoint.format, format, tensors, notes)


def check_dtype(dtype: str | None, format: str) -> None:
    """Refuse a dtype that no format has, or not this one; the same words for all of them."""
    names = (*DTYPES, *QUANTIZED)
    if dtype is not None and dtype not in names:
        raise SettingError(f"dtype {dtype!r} is not one of {', '.join(names)}.")
    holders = QUANTIZED.get(dtype, (format,)) if dtype is not None else (format,)
    if format not in holders:
        raise SettingError(f"{format} files do not hold {dtype}; {' and '.join(holders)} files do.")


def _write_tokenizer_beside(
    ours: Tokenizer, present: Tokenizer | None, target: Path, format: str
) -> list[str]:
    """Most single-file formats have no tokenizer: write it next to the file, unless there is one already."""
    file = target.parent / "tokenizer.json"
    if present is None and not file.exists():
        with atomic_write(file) as part:
            part.write_text(ours.files()["tokenizer.json"], "utf-8")
        return [f"{format} files contain no tokenizer; it was written next to the file: {file}"]
    if present is None or (target.is_file() and format != "gguf" and present.hash != ours.hash):
        return [
            f"{format} files contain no tokenizer, and the one next to {target} is a different one: "
            "move the file to its own folder, with the source's tokenizer.json"
        ]
    return []


def _check_target(src: str | Path, target: Path, force: bool) -> None:
    source = expand_user(src)
    source_exists = str(src) != "" and source.exists()
    check_target(target, [source] if source_exists else [])
    recover_interrupted_write(target)
    if not target.exists():
        return
    if source_exists and source.resolve() in target.resolve().parents:
        raise SettingError(f"{target} is a part of the source {source}. Choose another target.")
    if target.is_dir() and not any(target.iterdir()):
        return
    if not force:
        raise SettingError(f"{target} exists. Choose another target, or add --force to replace it.")
    check_only_model_files(target)


def _compare_tensor(source: Checkpoint, target: Checkpoint, name: str) -> TensorReport:
    notes = [checkpoint.notes[name] for checkpoint in (source, target) if name in checkpoint.notes]
    return TensorReport(
        name,
        shape_of(source.tensors, name),
        storage_dtype(source.tensors, name),
        storage_dtype(target.tensors, name),
        max_abs_error(source.tensors[name], target.tensors[name]),
        "; ".join(dict.fromkeys(notes)),
    )


def max_abs_error(one: Array, other: Array) -> float:
    """The largest absolute difference of two arrays; a NaN in only one of them counts as infinite."""
    if one.shape != other.shape:
        return float("inf")
    flat, other_flat = one.reshape(-1), other.reshape(-1)
    worst = 0.0
    for start in range(0, flat.size, _BLOCK):
        a = flat[start : start + _BLOCK].astype(np.float64)
        b = other_flat[start : start + _BLOCK].astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not same.all():
            gap = np.abs(a[~same] - b[~same])
            worst = max(worst, float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max()))
    return worst
