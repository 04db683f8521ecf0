"""The packed format: a Hugging Face folder whose matrices are int8 or int4, laid out to be multiplied with.

`model.int8.safetensors` has every matrix as int8 and, under the same name with `.scale` appended, one float32
per output; value = int8 * scale. Outputs are the rows of the embeddings and the columns of the other
matrices. So a dot product can be computed in integers and scaled once at the end. `model.int4.safetensors`
has 4.5 bits a value, in groups of 32 with a float16 scale each.

The matrices lie as in panels.py, where the native engine maps them from the file. Those that are only looked
up (positions) are int8 rows, (out, in), as are all matrices of the shipped models. Vectors are float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import atomic_write
from glassgpt.weights import panels, safetensors_file
from glassgpt.weights.checkpoint import (
    Array,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    RowsInFile,
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
from glassgpt.weights.linear import is_linear
from glassgpt.weights.panels import Panels
from glassgpt.weights.safetensors_file import TensorToWrite
from glassgpt.weights.tokenizers import find_tokenizer

DTYPES = ("int8", "int4")
FILE = "model.int8.safetensors"
FILES = {dtype: f"model.{dtype}.safetensors" for dtype in DTYPES}
PAGE = 4096  # the arrays of a file start on one
_SCALE = ".scale"
_EMBEDDINGS = ("wte.weight", "wpe.weight", "lm_head.weight")  # a row of these is already one output
_F32, _I8, _U8 = np.dtype(np.float32), np.dtype(np.int8), np.dtype(np.uint8)


def detect(path: str | Path) -> bool:
    """Whether this is a folder with the int8 or int4 file, or such a file itself."""
    path = Path(path)
    if path.is_dir():
        return any((path / name).is_file() for name in FILES.values())
    return path.name in FILES.values() and safetensors_file.has_signature(path)


def load(path: str | Path, dtype: str = "float32") -> Checkpoint:
    """Open the folder; a tensor is dequantized to `dtype` at every access."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    files = [folder / name for name in FILES.values() if (folder / name).is_file()]
    file = files[0] if path.is_dir() else path
    config = read_config(folder / "config.json")
    entries, _ = safetensors_file.open_tensors(file)
    score = entries.pop(SCORE, None)
    for name in entries:
        if name.endswith(_SCALE) and name.removesuffix(_SCALE) not in entries:
            raise FileFormatError(f"{file}: {name!r} scales a tensor that is not there.")
    if config.n_layer > len(entries):  # before listing the layers of a hostile config
        check_tensors(config, LazyTensors(entries), str(file))
    shapes = config.shapes()
    tensors = {
        name: _open(str(file), name, entries, shapes.get(name), dtype)
        for name in entries
        if not name.endswith(_SCALE)
    }
    lazy = LazyTensors(tensors)
    check_tensors(config, lazy, str(file))
    tokenizer, notes = find_tokenizer(folder)
    head = None if score is None else check_score(config, score, str(file))
    return Checkpoint(config, lazy, tokenizer, "packed", str(path), notes, read_task(folder), head)


def load_config(path: str | Path) -> Config:
    """The config alone; the weights are not opened."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return read_config(folder / "config.json")


def pack(checkpoint: Checkpoint, dtype: str = "int8") -> Checkpoint:
    """The model in this format: matrices are quantized at the first access."""
    source = checkpoint.tensors
    check_tensors(checkpoint.config, source, checkpoint.source)
    tensors: dict[str, LazyTensor] = {}
    for name, shape in checkpoint.config.shapes().items():
        if len(shape) == 1:
            tensors[name] = _vector(functools.partial(source.__getitem__, name), shape, "float32")
        elif _is_multiplied(name):
            quantized = functools.cache(functools.partial(_quantize_to_panels, checkpoint, name, dtype))
            read = functools.partial(_unmapped, quantized)
            tensors[name] = _panel_matrix(name, read, dtype, _rows_first(name, shape), "float32")
        else:
            both = functools.cache(functools.partial(_quantize_matrix, checkpoint, name))
            tensors[name] = _row_matrix(name, both, _rows_first(name, shape), "float32")
    return Checkpoint(
        checkpoint.config, LazyTensors(tensors), checkpoint.tokenizer, "packed", checkpoint.source,
        task=checkpoint.task, score=checkpoint.score,
    )  # fmt: skip


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write the folder in int8 or int4; without a dtype in int8, unless the source is int4."""
    if dtype is None:
        dtype = "int4" if checkpoint.stored_dtype("h.0.mlp.c_fc.weight") == "int4" else "int8"
    if dtype not in DTYPES:
        raise SettingError(f"the packed format stores int8 or int4, not {dtype!r}. Leave the dtype out.")
    model = pack(checkpoint, dtype)
    outgoing = [*_panels_to_write(model, dtype), *_others_to_write(model, dtype)]
    if model.score is not None:
        outgoing.append(score_to_write(model.score))
    with atomic_write(path, folder=True, needs=safetensors_file.size_of(outgoing)) as part:
        metadata = {"format": f"glassgpt-{dtype}-panels"}
        safetensors_file.write_tensors(part / FILES[dtype], outgoing, metadata, align=PAGE)
        write_config(model.config, part, "float32")
        write_task(model.task, part)
        if model.tokenizer is not None:
            model.tokenizer.save(part)


def _panels_to_write(model: Checkpoint, dtype: str) -> Iterator[TensorToWrite]:
    """They come first: their sizes are multiples of cache lines, so all of them start on one."""
    for name, shape in model.config.shapes().items():
        if _is_multiplied(name):
            stored = panels.shape_of_panels(dtype, *_rows_first(name, shape))
            data = functools.partial(_part_of_panels, model, name, "data")
            yield TensorToWrite(name, stored, _I8 if dtype == "int8" else _U8, data)


def _others_to_write(model: Checkpoint, dtype: str) -> Iterator[TensorToWrite]:
    for name, shape in model.config.shapes().items():
        rows = _rows_first(name, shape)
        if len(shape) == 1:
            yield TensorToWrite(name, shape, _F32, functools.partial(model.tensors.__getitem__, name))
        elif not _is_multiplied(name):
            values, scale = (functools.partial(_part_of_rows, model, name, i) for i in (0, 1))
            yield TensorToWrite(name, rows, _I8, values)
            yield TensorToWrite(name + _SCALE, rows[:1], _F32, scale)
        elif dtype == "int8":
            scale = functools.partial(_part_of_panels, model, name, "scale")
            yield TensorToWrite(name + _SCALE, rows[:1], _F32, scale)


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


def _open(
    file: str, name: str, entries: dict[str, LazyTensor], shape: tuple[int, ...] | None, dtype: str
) -> LazyTensor:
    """One tensor of the file: a vector, int8 rows, or panels, which must be those of the shape."""
    entry, scale = entries[name], entries.get(name + _SCALE)
    if entry.dtype not in (_I8, _U8) or shape is None:
        return _vector(entry.read, entry.shape, dtype)
    kind = "int8" if entry.dtype == _I8 else "int4"
    rows = _rows_first(name, shape)
    in_panels = _is_multiplied(name) and entry.shape == panels.shape_of_panels(kind, *rows)
    if not in_panels and (kind == "int4" or len(entry.shape) != 2):
        raise FileFormatError(
            f"{file}: tensor {name!r} of shape {entry.shape} is no {kind} matrix of shape {shape}. "
            "Check that config.json belongs to this file."
        )
    if kind == "int4":
        return _panel_matrix(name, functools.partial(_read_panels, entry, None), kind, rows, dtype)
    if scale is None or scale.dtype != _F32 or scale.shape != (rows if in_panels else entry.shape)[:1]:
        raise FileFormatError(f"{file}: int8 tensor {name!r} has no {_SCALE} with one value per row.")
    if in_panels:
        return _panel_matrix(name, functools.partial(_read_panels, entry, scale), kind, rows, dtype)
    rows_in_file = None if entry.place is None else RowsInFile(*entry.place, scale.read)
    matrix = _row_matrix(name, functools.partial(_read_both, entry, scale), entry.shape, dtype)
    return dataclasses.replace(matrix, rows=rows_in_file)


def _is_multiplied(name: str) -> bool:
    """Whether inputs are multiplied with this matrix: the engine wants it in panels."""
    return is_linear(name) or name in ("wte.weight", "lm_head.weight")


def _rows_first(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as (out, in). Its own inverse."""
    return shape if name in _EMBEDDINGS else shape[::-1]


def _row_matrix(
    name: str, both: Callable[[], tuple[Array, Array]], stored: tuple[int, ...], dtype: str
) -> LazyTensor:
    target = parse_dtype(dtype)

    def read() -> Array:
        matrix = dequantize_rows(*both()) if name in _EMBEDDINGS else dequantize_transposed(*both())
        return matrix.astype(target, copy=False)

    return LazyTensor(_rows_first(name, stored), target, read, both, "int8")


def _panel_matrix(
    name: str, made: Callable[..., Panels], kind: str, rows: tuple[int, ...], dtype: str
) -> LazyTensor:
    def both() -> tuple[Array, Array]:
        _, data, scale, _ = made()
        assert scale is not None
        return panels.int8_of_panels(data, *rows), scale

    def read() -> Array:
        matrix = panels.floats_of_panels(made().data, *rows)
        return np.ascontiguousarray(matrix if name in _EMBEDDINGS else matrix.T).astype(target, copy=False)

    if kind == "int8":
        return dataclasses.replace(_row_matrix(name, both, rows, dtype), panels=made)
    target = parse_dtype(dtype)
    return LazyTensor(_rows_first(name, rows), target, read, stored="int4", panels=made)


def _vector(read: Callable[[], Array], shape: tuple[int, ...], dtype: str) -> LazyTensor:
    target = parse_dtype(dtype)
    return LazyTensor(shape, target, lambda: read().astype(target, copy=False))


def _quantize_matrix(checkpoint: Checkpoint, name: str) -> tuple[Array, Array]:
    both = checkpoint.packed(name)
    if both is not None:  # already int8: quantizing again would lose precision
        return both
    return quantize_rows(_finite_rows(checkpoint, name))


def _quantize_to_panels(checkpoint: Checkpoint, name: str, dtype: str) -> Panels:
    if checkpoint.stored_dtype(name) == dtype:  # already quantized
        stored = checkpoint.panels(name)
        if stored is not None:
            return stored
    if dtype == "int8":
        values, scale = _quantize_matrix(checkpoint, name)
        return Panels(dtype, panels.panels_of_int8(values), scale)
    data = panels.panels_of_floats(_finite_rows(checkpoint, name))
    if not np.isfinite(panels.scales_of(data)).all():
        raise FileFormatError(f"{checkpoint.source}: {name!r} has values too large for int4. Use int8.")
    return Panels(dtype, data, None)


def _finite_rows(checkpoint: Checkpoint, name: str) -> Array:
    matrix = checkpoint.tensors[name]
    rows = matrix if name in _EMBEDDINGS else matrix.T
    if not np.isfinite(rows).all():
        raise FileFormatError(f"{checkpoint.source}: {name!r} contains NaN or infinity and cannot be packed.")
    return rows


def _read_both(values: LazyTensor, scale: LazyTensor) -> tuple[Array, Array]:
    return values.read(), scale.read()


def _read_panels(entry: LazyTensor, scale: LazyTensor | None, mapped: bool = False) -> Panels:
    data = entry.mapped() if mapped and entry.mapped is not None else None
    scales = None if scale is None else scale.read()
    kind = "int8" if entry.dtype == _I8 else "int4"
    return Panels(kind, entry.read() if data is None else data, scales, data is not None)


def _unmapped(made: Callable[[], Panels], mapped: bool = False) -> Panels:
    return made()


def _part_of_panels(model: Checkpoint, name: str, part: str) -> Array:
    found: Array = getattr(model.panels(name), part)
    return found


def _part_of_rows(model: Checkpoint, name: str, which: int) -> Array:
    both = model.packed(name)
    assert both is not None
    return both[which]
