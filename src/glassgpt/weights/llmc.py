"""llm.c's `.bin` checkpoint: 256 int32 of header, then every parameter in one fixed order.

Version 3 is float32, version 5 bfloat16; both pad the vocabulary with zero rows to a multiple of 128, and
word 7 of the header says to how many. Versions 1 and 2 (float32) did not pad, nor did the first version 3,
which was bfloat16; its word 7 is zero. One kind of tensor follows the other, each for all layers in turn;
matrices are (out, in).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, SettingError
from glassgpt.files import atomic_write, file_size
from glassgpt.files.byte_reader import ByteReader
from glassgpt.weights.checkpoint import (
    DTYPES,
    Array,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    cast,
    check_published_architecture,
    check_tensors,
    dtype_of,
)
from glassgpt.weights.linear import is_linear, transposed
from glassgpt.weights.tokenizers import find_tokenizer

MAGIC = 20240326
HEADER = 1024  # bytes
PADDING = 128  # the vocabulary is padded to a multiple of this
_VERSIONS = {"float32": 3, "bfloat16": 5}
_PER_LAYER = (
    "ln_1.weight",
    "ln_1.bias",
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
)


def detect(path: str | Path) -> bool:
    """Whether the file starts with llm.c's magic number."""
    path = Path(path)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return int.from_bytes(file.read(4), "little") == MAGIC


def load(path: str | Path) -> Checkpoint:
    path = Path(path)
    size = file_size(path)
    with open(path, "rb") as file:
        start = file.read(HEADER)
        if len(start) < HEADER:
            raise FileFormatError(f"{path} ends within its header. Download the file again.")
        config, dtype, rows = _read_header(path, [int(word) for word in np.frombuffer(start, "<i4")])
        numbers = config.n_parameters + (rows - config.vocab_size) * config.n_embd
        described = HEADER + numbers * dtype.itemsize
        if described != size:
            raise FileFormatError(
                f"{path} is {size:,} bytes long, but its header describes {described:,}: "
                "truncated or corrupt. Download the file again."
            )
    data = ByteReader(path)
    shapes = config.shapes()
    tensors: dict[str, LazyTensor] = {}
    reached = HEADER
    for name in order(config):
        stored = shapes[name][::-1] if is_linear(name) else shapes[name]
        tensor = LazyTensor(stored, dtype, functools.partial(data.array, reached, stored, dtype))
        tensors[name] = transposed(tensor) if is_linear(name) else tensor
        height = rows if name == "wte.weight" else stored[0]
        reached += height * math.prod(stored[1:]) * dtype.itemsize
    lazy = LazyTensors(tensors)
    check_tensors(config, lazy, str(path))
    tokenizer, notes = find_tokenizer(path.parent)
    if rows != config.vocab_size:
        notes["wte.weight"] = f"padded to {rows:,} rows in llm.c's file"
    return Checkpoint(config, lazy, tokenizer, "llmc", str(path), notes)


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write the file that llm.c reads: float32 (version 3) or bfloat16 (version 5)."""
    config, tensors = checkpoint.config, checkpoint.tensors
    check_tensors(config, tensors, checkpoint.source)
    check_published_architecture(config, "llm.c")
    if dtype is None:
        dtype = "bfloat16" if dtype_of(tensors, "wte.weight").name == "bfloat16" else "float32"
    if dtype not in _VERSIONS:
        raise SettingError(f"llm.c stores float32 or bfloat16, not {dtype!r}. Choose one of the two.")
    rows = -(-config.vocab_size // PADDING) * PADDING
    words = [
        MAGIC,
        _VERSIONS[dtype],
        config.n_positions,
        config.vocab_size,
        config.n_layer,
        config.n_head,
        config.n_embd,
        rows,
    ]
    header = np.zeros(HEADER // 4, "<i4")
    header[: len(words)] = words
    padding = np.zeros((rows - config.vocab_size, config.n_embd), DTYPES[dtype])
    needs = HEADER + config.n_parameters * DTYPES[dtype].itemsize + padding.nbytes
    with atomic_write(path, needs=needs) as part, open(part, "wb") as file:
        file.write(header.tobytes())
        for name in order(config):
            array = cast(tensors[name], dtype)
            file.write(_bytes(array.T if is_linear(name) else array))
            if name == "wte.weight":
                file.write(_bytes(padding))


def remarks(config: Config) -> list[str]:
    """Notes for running the written file in llm.c."""
    if config.activation_function == "gelu":
        return ["llm.c computes the tanh GELU, this model the exact one: its logits there differ a little"]
    return []


def order(config: Config) -> Iterator[str]:
    """The names of the tensors in the order of llm.c's parameter block."""
    yield from ("wte.weight", "wpe.weight")
    for kind in _PER_LAYER:
        for layer in range(config.n_layer):
            yield f"h.{layer}.{kind}"
    yield from ("ln_f.weight", "ln_f.bias")


def _read_header(path: Path, words: list[int]) -> tuple[Config, np.dtype[Any], int]:
    """The config, the dtype and the number of rows of the padded embedding."""
    magic, version, n_positions, vocab_size, n_layer, n_head, n_embd, padded = words[:8]
    if magic != MAGIC:
        raise FileFormatError(f"{path} starts with {magic}, not with llm.c's {MAGIC}.")
    if version not in {1, 2, 3, 5}:
        raise FileFormatError(f"{path} is version {version} of llm.c's format; 1, 2, 3 and 5 are known.")
    half = version == 5 or (version == 3 and padded == 0)
    rows = vocab_size if version < 3 or padded == 0 else padded
    if n_layer > 10_000 or rows < vocab_size:
        raise FileFormatError(
            f"{path} claims {n_layer:,} layers, {vocab_size:,} tokens and {rows:,} rows for them, "
            "which is not possible."
        )
    try:
        config = Config(
            vocab_size=vocab_size, n_positions=n_positions, n_embd=n_embd, n_layer=n_layer, n_head=n_head
        )
    except ConfigError as error:
        raise FileFormatError(f"{path}: its header is not a valid model: {error}") from None
    return config, DTYPES["bfloat16" if half else "float32"], rows


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
