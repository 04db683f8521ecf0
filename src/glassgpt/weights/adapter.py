"""An adapter: a small folder that says what to change of another model (LoRA, Hu et al., 2021).

`adapter.json` names the model it is for, `adapter.safetensors` holds for a changed matrix W the factors
`W.lora_A` (in, r) and `W.lora_B` (r, out), so that it becomes W + A B, for a changed vector the vector, and
for added tokens their rows, `W.added`. Opened, it is that model with the changes made, in any program here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import atomic_write, read_json
from glassgpt.weights import safetensors_file
from glassgpt.weights.checkpoint import Array, Checkpoint, LazyTensor, LazyTensors, check_tensors, shape_of
from glassgpt.weights.huggingface import read_config, read_task, write_config, write_task
from glassgpt.weights.tokenizers import find_tokenizer

if TYPE_CHECKING:
    from glassgpt.backends.protocol import LowRankFactors
    from glassgpt.tokenizer import Tokenizer

FILE, ABOUT = "adapter.safetensors", "adapter.json"
A, B, ADDED = ".lora_A", ".lora_B", ".added"
_F32 = np.dtype(np.float32)
_FREE = {
    "vocab_size", "initializer_range", "embd_pdrop", "attn_pdrop", "resid_pdrop", "bos_token_id",
    "eos_token_id", "also_eos",
}  # fmt: skip


def detect(path: str | Path) -> bool:
    return (Path(path) / FILE).is_file() and (Path(path) / ABOUT).is_file()


def load(path: str | Path) -> Checkpoint:
    """The model that the adapter is for, with its changes; computed at every access."""
    from glassgpt.weights.registry import load_checkpoint, resolve_model

    folder = Path(path)
    config = read_config(folder / "config.json")
    base_path, _ = resolve_model(read_base(folder))
    if detect(base_path):  # they could name each other endlessly
        raise FileFormatError(f"{folder / ABOUT} names {base_path}, another adapter. Name a whole model.")
    base = load_checkpoint(base_path)
    entries, _ = safetensors_file.open_tensors(folder / FILE)
    _check_config(config, base, folder)
    tensors = changed_tensors(base, entries, config, folder / FILE)
    tokenizer, notes = find_tokenizer(folder)
    if tokenizer is None:
        tokenizer = base.tokenizer
    return Checkpoint(config, tensors, tokenizer, "adapter", str(path), notes, read_task(folder))


def load_config(path: str | Path) -> Config:
    return read_config(Path(path) / "config.json")


def read_base(folder: Path) -> str:
    """The name of the model that an adapter is for; a relative path is relative to the adapter."""
    base = read_json(folder / ABOUT).get("base_model")
    if not isinstance(base, str) or not base:
        raise FileFormatError(f"{folder / ABOUT}: base_model is {short_repr(base)}; it must name a model.")
    if base.startswith("."):
        return str(folder / base)
    return base


def save_adapter(
    changes: Mapping[str, Array],
    config: Config,
    base_model: str,
    out: str | Path,
    task: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write an adapter folder from the changes, named as in `adapter.safetensors`. A tokenizer belongs to it
    only if it has more tokens than that of the model."""
    outgoing = [
        safetensors_file.TensorToWrite(name, array.shape, array.dtype, functools.partial(lambda a: a, array))
        for name, array in changes.items()
    ]
    with atomic_write(out, folder=True, needs=safetensors_file.size_of(outgoing)) as part:
        safetensors_file.write_tensors(part / FILE, outgoing, {"format": "glassgpt-adapter"})
        (part / ABOUT).write_text(json.dumps({"base_model": base_model}, indent=2) + "\n", "utf-8")
        write_config(config, part, "float32")
        write_task(task, part)
        if tokenizer is not None:
            tokenizer.save(part)


def changed_tensors(
    base: Checkpoint, entries: Mapping[str, LazyTensor], config: Config, file: Path
) -> LazyTensors:
    """The tensors of a model with the changes of a file, which are named as in `adapter.safetensors`."""
    check_entries(base.config, entries, base.source, file)
    tensors = LazyTensors({name: _tensor(base, entries, name) for name in config.shapes()})
    check_tensors(config, tensors, str(file.parent))
    return tensors


def read_low_rank(folder: Path, config: Config, source: str) -> LowRankFactors:
    """The factors of an adapter that changes nothing but the matrices of the blocks."""
    entries, _ = safetensors_file.open_tensors(folder / FILE)
    return low_rank_factors(entries, config, source, folder / FILE)


def low_rank_factors(
    entries: Mapping[str, LazyTensor], config: Config, source: str, file: Path
) -> LowRankFactors:
    check_entries(config, entries, source, file)
    other = next((name for name in entries if not (name.startswith("h.") and name.endswith((A, B)))), None)
    if other is not None:
        raise FileFormatError(
            f"{file} changes {short_repr(other)} as well, and adapters that share their model may change "
            "only matrices of its blocks. Serve it as a model of its own: "
            f"--model {file.parent.name}={file.parent}"
        )
    names = [name.removesuffix(A) for name in entries if name.endswith(A)]
    read = {name: entry.read().astype(_F32, copy=False) for name, entry in entries.items()}
    for name, factor in read.items():
        if not np.isfinite(factor).all():
            raise FileFormatError(f"{file}: {short_repr(name)} has numbers that are not finite.")
    return {name: (read[name + A], read[name + B]) for name in names}


def check_entries(config: Config, entries: Mapping[str, LazyTensor], source: str, file: Path) -> None:
    """Whether the tensors of a file fit the model that they change."""
    shapes = config.shapes()
    for name, entry in entries.items():
        matrix = next((name.removesuffix(end) for end in (A, B, ADDED) if name.endswith(end)), name)
        shape = shapes.get(matrix)
        if shape is None:
            raise FileFormatError(f"{file}: {source} has no tensor {short_repr(matrix)}.")
        fits = {
            A: len(entry.shape) == 2 and entry.shape[0] == shape[0],
            B: len(entry.shape) == 2
            and entry.shape[1:] == shape[1:]
            and _rank(entries, matrix) == entry.shape[0],
            ADDED: len(entry.shape) == 2 and entry.shape[1:] == shape[1:],
        }.get(name.removeprefix(matrix), entry.shape == shape)
        if not fits:
            raise FileFormatError(
                f"{file}: {short_repr(name)} has shape {entry.shape}, which does not fit {shape} of "
                f"{source}. Use the model that the adapter was made for."
            )
        if name == matrix + A and matrix + B not in entries:
            raise FileFormatError(f"{file}: {short_repr(name)} has no {B[1:]}. Get the adapter again.")


def _check_config(config: Config, base: Checkpoint, folder: Path) -> None:
    """An adapter computes like its model: only its vocabulary and what training alone reads may differ."""
    for field in dataclasses.fields(Config):
        if not field.compare or field.name in _FREE:
            continue
        own, expected = (_comparable(each, field.name) for each in (config, base.config))
        if own != expected:
            raise FileFormatError(
                f"{folder / 'config.json'}: {field.name} is {short_repr(own)}, and that of {base.source} is "
                f"{short_repr(expected)}. Use the model that the adapter was made for."
            )


def _comparable(config: Config, name: str) -> Any:
    if name == "n_inner":
        return config.d_mlp
    value = getattr(config, name)
    return float(np.float32(value)) if isinstance(value, float) else value  # as GGUF stores it


def _rank(entries: Mapping[str, LazyTensor], matrix: str) -> int:
    entry = entries.get(matrix + A)
    return -1 if entry is None or len(entry.shape) != 2 else entry.shape[1]


def _tensor(base: Checkpoint, entries: Mapping[str, LazyTensor], name: str) -> LazyTensor:
    """A tensor of the adapted model. An unchanged one is handed on as it is stored."""
    unchanged = not any(name + end in entries for end in ("", A, ADDED))
    if unchanged and isinstance(base.tensors, LazyTensors):
        return base.tensors.entries[name]

    def read() -> Array:
        if name in entries:
            return entries[name].read().astype(_F32, copy=False)
        matrix = base.tensors[name].astype(_F32)
        if name + A in entries:
            matrix += entries[name + A].read().astype(_F32) @ entries[name + B].read().astype(_F32)
        if name + ADDED in entries:
            matrix = np.concatenate([matrix, entries[name + ADDED].read().astype(_F32)])
        return matrix

    grown = entries.get(name + ADDED)
    base_shape = shape_of(base.tensors, name)
    shape = base_shape if grown is None else (base_shape[0] + grown.shape[0], *base_shape[1:])
    return LazyTensor(shape, _F32, read)
