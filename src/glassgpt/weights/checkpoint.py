"""What every file format is read into and written from: a config, named arrays, perhaps a tokenizer.

Arrays carry the canonical names and shapes of `Config.shapes()`: OpenAI's names, matrices stored (in, out).
A format that can be read piece by piece hands out a `LazyTensors`, so a 6 GB file costs no memory until a
tensor is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, SettingError, short_repr

if TYPE_CHECKING:
    from glassgpt.files.byte_reader import ByteReader
    from glassgpt.tokenizer import Tokenizer
    from glassgpt.weights.panels import Panels

Array = NDArray[Any]

# numpy has no bfloat16; ml_dtypes registers one that casts with the right rounding.
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass
class Checkpoint:
    """A model as stored in a file: config, tensors and tokenizer."""

    config: Config
    tensors: Mapping[str, Array]
    tokenizer: Tokenizer | None = None
    format: str = "memory"  # the format it was read from: hf, gguf, openai, nanogpt, llmc, packed, run
    source: str = ""  # the path or name it was read from
    # Tensor name, or "tokenizer" -> what reading did to it.
    notes: dict[str, str] = field(default_factory=dict)
    task: str | None = None  # the definition of the task it was made for: the text of its task.toml
    score: Array | None = None  # (classes, C): the head of a classifier, score.weight in transformers

    def packed(self, name: str) -> tuple[Array, Array] | None:
        """The int8 values and scales of a tensor stored that way in its file, else None."""
        return self.tensors.packed(name) if isinstance(self.tensors, LazyTensors) else None

    def panels(self, name: str, mapped: bool = False) -> Panels | None:
        """A matrix that its file holds as the native engine multiplies with it, else None; `mapped`: where it
        lies in the file, not copied, if that is possible."""
        return self.tensors.panels(name, mapped) if isinstance(self.tensors, LazyTensors) else None

    def rows_in_file(self, name: str) -> RowsInFile | None:
        """Where a file holds a matrix as int8 rows, for a reader that needs no copy of them, else None."""
        return self.tensors.entries[name].rows if isinstance(self.tensors, LazyTensors) else None

    def stored_dtype(self, name: str) -> str:
        """The name of the dtype in which the file stores a tensor."""
        return storage_dtype(self.tensors, name)

    @property
    def remarks(self) -> list[str]:
        """What a user of the model should know about its files, one line each."""
        remarks = []
        names = [short_repr(name) for name in self.config.unread]
        if names:
            listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            remarks.append(
                f"{self.source}: its config has keys that GPT-2 does not use, which are preserved: {listed}"
            )
        if self.tokenizer is None and "tokenizer" in self.notes:
            why_not = " ".join(self.notes["tokenizer"].split())
            remarks.append(f"{self.source} is loaded without a tokenizer, for token ids only: {why_not}")
        return remarks

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token embedding, reported as the model's."""
        return dtype_of(self.tensors, "wte.weight")


@dataclass(frozen=True)
class RowsInFile:
    """int8 rows, (out, in), at a position of an open file."""

    file: ByteReader
    begin: int
    scale: Callable[[], Array]  # float32, (out,)


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that has not been read yet, with everything known about it before that."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array]
    packed: Callable[[], tuple[Array, Array]] | None = None
    stored: str | None = None  # the dtype in the file, if it is not `dtype` (int8, Q8_0)
    panels: Callable[..., Panels] | None = None  # takes `mapped`
    rows: RowsInFile | None = None
    place: tuple[ByteReader, int] | None = None  # where it lies in a file, in `dtype` and `shape`
    mapped: Callable[[], Array | None] | None = None  # not copied; gives None where that cannot be


class LazyTensors(Mapping[str, Array]):
    """Arrays that are read from the file at every access and not cached."""

    def __init__(self, entries: Mapping[str, LazyTensor]) -> None:
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Array:
        return self.entries[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # the default of Mapping would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def packed(self, name: str) -> tuple[Array, Array] | None:
        reader = self.entries[name].packed
        return None if reader is None else reader()

    def panels(self, name: str, mapped: bool = False) -> Panels | None:
        reader = self.entries[name].panels
        return None if reader is None else reader(mapped=mapped)


def shape_of(tensors: Mapping[str, Array], name: str) -> tuple[int, ...]:
    """The shape of a tensor, without reading one that is lazy."""
    if isinstance(tensors, LazyTensors):
        return tensors.entries[name].shape
    return tuple(tensors[name].shape)


def dtype_of(tensors: Mapping[str, Array], name: str) -> np.dtype[Any]:
    """The dtype of a tensor, without reading one that is lazy."""
    if isinstance(tensors, LazyTensors):
        return tensors.entries[name].dtype
    return tensors[name].dtype


def storage_dtype(tensors: Mapping[str, Array], name: str) -> str:
    """The name of the dtype in which the file stores a tensor."""
    stored = tensors.entries[name].stored if isinstance(tensors, LazyTensors) else None
    return str(dtype_of(tensors, name)) if stored is None else stored


def check_tensors(
    config: Config, tensors: Mapping[str, Array], where: str = "checkpoint"
) -> Mapping[str, Array]:
    """Check every name, shape and dtype against the config, and return the tensors."""
    if config.n_layer > len(tensors):  # before listing the layers of a hostile config
        raise FileFormatError(
            f"{where}: the config has {config.n_layer:,} layers, but there are only {len(tensors)} "
            "tensors. Check that config.json belongs to this file."
        )
    expected = config.shapes()
    for name in tensors:
        if name not in expected:
            raise FileFormatError(
                f"{where}: unknown tensor {short_repr(name)} of shape {shape_of(tensors, name)}; "
                f"a GPT-2 of {config.n_layer} layers has none of that name. Check config.json."
            )
    for name, shape in expected.items():
        if name not in tensors:
            raise FileFormatError(
                f"{where}: tensor {name!r} of shape {shape} is missing. "
                "Check that the file is complete and that config.json belongs to it."
            )
        actual = shape_of(tensors, name)
        if actual != shape:
            raise FileFormatError(
                f"{where}: tensor {name!r} has shape {actual}, but the config requires {shape}. "
                "Check that config.json belongs to this file."
            )
        dtype = dtype_of(tensors, name)
        if dtype.name not in {"float64", "float32", "float16", "bfloat16"}:
            raise FileFormatError(
                f"{where}: tensor {name!r} is {dtype}, not floating point. "
                "Convert it with the program that made it."
            )
    return tensors


def check_causal_attention(config: Config, program: str) -> None:
    """Refuse to write a model for a program that would silently compute another attention."""
    if config.attention != Config.attention:
        raise ConfigError(
            f"{program} has no attention {config.attention!r}: it would compute another model. "
            "Convert to packed instead."
        )


SCALING = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx")  # of attention scores


def check_published_architecture(
    config: Config,
    program: str,
    settings: Sequence[str] = (*SCALING, "layer_norm_epsilon", "tie_word_embeddings", "d_mlp"),
) -> None:
    """Refuse to write a variant for a program that supports these settings only as published, and one kind
    of activation."""
    check_causal_attention(config, program)
    plain = Config(n_embd=config.n_embd, n_head=config.n_head)
    for name in settings:
        if getattr(config, name) != getattr(plain, name):
            raise ConfigError(
                f"{program} has no setting for {name} = {getattr(config, name)!r}. Convert to hf instead."
            )
    if not config.activation_function.startswith("gelu"):
        raise ConfigError(
            f"{program} has no activation_function {config.activation_function!r}. Convert to hf instead."
        )


def parse_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype called float32, float16 or bfloat16."""
    if name in ("int8", "int4"):
        raise SettingError(f"only packed files hold {name}. Add --format packed, or leave the format out.")
    if name not in DTYPES:
        raise SettingError(f"dtype {name!r} is not one of {', '.join(DTYPES)}.")
    return DTYPES[name]


def cast(array: Array, dtype: str | None) -> Array:
    """The array in the named dtype, or unchanged without one."""
    return array if dtype is None else array.astype(parse_dtype(dtype), copy=False)
