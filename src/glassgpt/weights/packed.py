"""The shipped format: a Hugging Face folder whose matrices are int8 with one scale per row.

`model.int8.safetensors` has every matrix as int8 rows and, under the same name with `.scale` appended, one
float32 per row; value = int8 * scale. A row is one output: a token or a position of the embeddings, an output
channel of the other matrices, which are therefore stored transposed, (out, in). So a dot product with a row
can be computed in integers and scaled once at the end. Vectors are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import atomic_write
from glassgpt.weights import safetensors_file
from glassgpt.weights.checkpoint import (
    Array,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    check_tensors,
    parse_dtype,
)
from glassgpt.weights.huggingface import (
    SCORE,
    check_score,
    read_config,
    read_task,
    score_to_write,
    write_config,
    write_task,
)
from glassgpt.weights.tokenizers import find_tokenizer

FILE = "model.int8.safetensors"
_SCALE = ".scale"
_EMBEDDINGS = ("wte.weight", "wpe.weight", "lm_head.weight")  # a row of these is already one output
_F32, _I8 = np.dtype(np.float32), np.dtype(np.int8)


def detect(path: str | Path) -> bool:
    """Whether this is a folder with the int8 file, or that file itself."""
    path = Path(path)
    return (
        (path / FILE).is_file()
        if path.is_dir()
        else path.name == FILE and safetensors_file.has_signature(path)
    )


def load(path: str | Path, dtype: str = "float32") -> Checkpoint:
    """Open the folder; a tensor is dequantized to `dtype` at every access."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    file = folder / FILE
    config = read_config(folder / "config.json")
    entries, _ = safetensors_file.open_tensors(file)
    score = entries.pop(SCORE, None)
    tensors: dict[str, LazyTensor] = {}
    for name, entry in entries.items():
        if name.endswith(_SCALE):
            if name.removesuffix(_SCALE) not in entries:
                raise FileFormatError(f"{file}: {name!r} scales a tensor that is not there.")
        elif entry.dtype == _I8:
            scale = entries.get(name + _SCALE)
            if scale is None or len(entry.shape) != 2 or scale.shape != entry.shape[:1]:
                raise FileFormatError(f"{file}: int8 tensor {name!r} has no {_SCALE} with one value per row.")
            tensors[name] = _matrix(name, functools.partial(_read_both, entry, scale), entry.shape, dtype)
        else:
            tensors[name] = _vector(entry.read, entry.shape, dtype)
    lazy = LazyTensors(tensors)
    check_tensors(config, lazy, str(file))
    tokenizer, notes = find_tokenizer(folder)
    head = None if score is None else check_score(config, score, str(file))
    return Checkpoint(config, lazy, tokenizer, "packed", str(path), notes, read_task(folder), head)


def load_config(path: str | Path) -> Config:
    """The config alone; the weights are not opened."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return read_config(folder / "config.json")


def pack(checkpoint: Checkpoint) -> Checkpoint:
    """The model in this format: matrices are quantized to int8 rows at the first access."""
    source = checkpoint.tensors
    check_tensors(checkpoint.config, source, checkpoint.source)
    tensors: dict[str, LazyTensor] = {}
    for name, shape in checkpoint.config.shapes().items():
        if len(shape) == 1:
            tensors[name] = _vector(functools.partial(source.__getitem__, name), shape, "float32")
        else:
            both = functools.cache(functools.partial(_quantize_matrix, checkpoint, name))
            tensors[name] = _matrix(name, both, _rows_first(name, shape), "float32")
    return Checkpoint(
        checkpoint.config, LazyTensors(tensors), checkpoint.tokenizer, "packed", checkpoint.source,
        task=checkpoint.task, score=checkpoint.score,
    )  # fmt: skip


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write the folder. The dtypes are fixed."""
    if dtype not in (None, "int8"):
        raise SettingError(f"the packed format stores int8, not {dtype!r}. Leave the dtype out.")
    model = pack(checkpoint)
    outgoing: list[safetensors_file.TensorToWrite] = []
    for name, shape in model.config.shapes().items():
        if len(shape) == 1:
            read = functools.partial(model.tensors.__getitem__, name)
            outgoing.append(safetensors_file.TensorToWrite(name, shape, _F32, read))
        else:
            rows = _rows_first(name, shape)
            values, scales = (functools.partial(_part, model, name, i) for i in (0, 1))
            outgoing.append(safetensors_file.TensorToWrite(name, rows, _I8, values))
            outgoing.append(safetensors_file.TensorToWrite(name + _SCALE, rows[:1], _F32, scales))
    if model.score is not None:
        outgoing.append(score_to_write(model.score))
    with atomic_write(path, folder=True, needs=safetensors_file.size_of(outgoing)) as part:
        safetensors_file.write_tensors(part / FILE, outgoing, {"format": "glassgpt-int8-rows"})
        write_config(model.config, part, "float32")
        write_task(model.task, part)
        if model.tokenizer is not None:
            model.tokenizer.save(part)


def quantize_rows(rows: Array) -> tuple[Array, Array]:
    """Each row as int8 with its float32 scale: the largest magnitude becomes 127."""
    rows = rows.astype(np.float32, copy=False)
    largest = np.abs(rows).max(axis=1, initial=0.0)  # (rows,)
    scale = (largest / np.float32(127)).astype(np.float32)
    steps = np.zeros_like(rows)  # a row of zeros has scale 0 and stays zero
    np.divide(rows, scale[:, None], out=steps, where=scale[:, None] > 0)
    return np.rint(steps).clip(-127, 127).astype(np.int8), scale


def dequantize_rows(values: Array, scale: Array) -> Array:
    """The float32 rows of int8 values and their scales."""
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale must not print a warning
        return np.multiply(values, scale[:, None], dtype=np.float32)


def dequantize_transposed(values: Array, scale: Array) -> Array:
    """The same as (in, out). Transposing int8 while multiplying is 6 times faster than transposing floats."""
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale must not print a warning
        return np.multiply(values.T, scale, dtype=np.float32, order="C")


def _rows_first(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as stored: rows are outputs. Its own inverse."""
    return shape if name in _EMBEDDINGS else shape[::-1]


def _matrix(
    name: str, both: Callable[[], tuple[Array, Array]], stored: tuple[int, ...], dtype: str
) -> LazyTensor:
    target = parse_dtype(dtype)

    def read() -> Array:
        matrix = dequantize_rows(*both()) if name in _EMBEDDINGS else dequantize_transposed(*both())
        return matrix.astype(target, copy=False)

    return LazyTensor(_rows_first(name, stored), target, read, both, "int8")


def _vector(read: Callable[[], Array], shape: tuple[int, ...], dtype: str) -> LazyTensor:
    target = parse_dtype(dtype)
    return LazyTensor(shape, target, lambda: read().astype(target, copy=False))


def _quantize_matrix(checkpoint: Checkpoint, name: str) -> tuple[Array, Array]:
    both = checkpoint.packed(name)
    if both is not None:  # already int8: quantizing again would lose precision
        return both
    matrix = checkpoint.tensors[name]
    rows = matrix if name in _EMBEDDINGS else matrix.T
    if not np.isfinite(rows).all():
        raise FileFormatError(f"{checkpoint.source}: {name!r} contains NaN or infinity and cannot be packed.")
    return quantize_rows(rows)


def _read_both(values: LazyTensor, scale: LazyTensor) -> tuple[Array, Array]:
    return values.read(), scale.read()


def _part(model: Checkpoint, name: str, which: int) -> Array:
    both = model.packed(name)
    assert both is not None
    return both[which]
