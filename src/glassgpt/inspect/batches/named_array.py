"""`NamedArray`: the numbers of an experiment with named axes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import atomic_write
from glassgpt.inspect.figures.display import Displayable
from glassgpt.inspect.taps import check_index
from glassgpt.weights.safetensors_file import TensorToWrite, open_tensors, size_of, write_tensors

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure

Array = np.ndarray
FORMAT = "glassgpt named array 1"


@dataclass(frozen=True, eq=False, repr=False)
class NamedArray(Displayable):
    """An array whose axes have names and labels. NaN where there is nothing: past a text's end."""

    values: Array
    dims: tuple[str, ...]  # ("prompt", "layer", "position")
    labels: Mapping[str, tuple[str, ...]]  # of each dim, one text for each index
    name: str = "value"

    def __post_init__(self) -> None:
        sizes = tuple(len(self.labels[dim]) for dim in self.dims)
        assert self.values.shape == sizes, f"{self.values.shape} has labels {sizes}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.values if dtype is None else self.values.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """The numbers, as of a numpy array."""
        return self.values[index]

    def __repr__(self) -> str:
        axes = ", ".join(f"{dim} {size}" for dim, size in zip(self.dims, self.shape, strict=True))
        return f"{type(self).__name__}({self.name}: {axes})"

    def at(self, **where: int | str) -> NamedArray:
        """A part: `.at(layer=5, component="head 5.1")`, each by index or by label."""
        array = self
        for dim, index in where.items():
            axis = array.axis(dim)
            found = array.index_of(dim, index)
            array = array.without(dim, np.take(array.values, found, axis))
        return array

    def mean(self, dim: str = "prompt") -> NamedArray:
        """The mean over an axis, of the numbers that are there."""
        axis = self.axis(dim)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nothing there at all: NaN
            return self.without(dim, np.nanmean(self.values, axis))

    def top(self, k: int = 5) -> list[tuple[dict[str, str], float]]:
        """The k numbers farthest from zero, with their labels; an axis of prompts is averaged first."""
        array = self.mean("prompt") if "prompt" in self.dims and len(self.dims) > 1 else self
        flat = np.abs(np.nan_to_num(array.values, nan=0.0)).ravel()
        order = np.argsort(-flat, kind="stable")[:k]
        found = []
        for each in order:
            index = np.unravel_index(each, array.shape)
            labels = {dim: array.labels[dim][i] for dim, i in zip(array.dims, index, strict=True)}
            found.append((labels, float(array.values[index])))
        return found

    def axis(self, dim: str) -> int:
        if dim not in self.dims:
            raise SettingError(f"{self.name} has no axis {dim!r}. Its axes are {', '.join(self.dims)}.")
        return self.dims.index(dim)

    def index_of(self, dim: str, index: int | str) -> int:
        labels = self.labels[dim]
        if not isinstance(index, str):
            return check_index(dim, index, len(labels))
        if index not in labels:
            raise SettingError(f"no {dim} is labeled {index!r}. Labels are {', '.join(labels[:8])}, ...")
        return labels.index(index)

    def without(self, dim: str, values: Array) -> NamedArray:
        """`values` are these numbers with one axis less."""
        dims = tuple(each for each in self.dims if each != dim)
        return NamedArray(np.asarray(values), dims, {each: self.labels[each] for each in dims}, self.name)

    def figure(self) -> Figure:
        """A heat map; of many prompts, their mean."""
        from glassgpt.inspect.figures.heat_map import plot_heat_map

        return plot_heat_map(self)

    def to_pandas(self) -> Any:
        """A data frame with a row for each number: a column for each axis, and the number's own."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise UserError("to_pandas() needs pandas. Type: pip install pandas") from None
        grids = np.meshgrid(*(np.arange(size) for size in self.shape), indexing="ij")
        flat = self.values.ravel()
        there = ~np.isnan(flat)
        columns: dict[str, Any] = {
            dim: np.array(self.labels[dim], dtype=object)[grid.ravel()[there]]
            for dim, grid in zip(self.dims, grids, strict=True)
        }
        return pandas.DataFrame({**columns, self.name: flat[there]})

    def save(self, path: str | Path) -> None:
        """Write a safetensors file for `load`."""
        arrays = {"values": np.ascontiguousarray(self.values), **self.more_arrays()}
        out = [TensorToWrite(name, a.shape, a.dtype, _return(a)) for name, a in arrays.items()]
        header = {"dims": self.dims, "labels": dict(self.labels), "name": self.name}
        metadata = {"format": FORMAT, "array": json.dumps(header, ensure_ascii=False), **self.more_metadata()}
        with atomic_write(path, needs=size_of(out)) as part:
            write_tensors(part, out, metadata)

    def more_arrays(self) -> dict[str, Array]:
        return {}

    def more_metadata(self) -> dict[str, str]:
        return {}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Open a saved array."""
        tensors, metadata = open_tensors(path)
        if metadata.get("format") != FORMAT:
            raise FileFormatError(f"{path} has no array of an experiment. Write one with .save(path).")
        try:
            header = json.loads(metadata.get("array", ""))
            dims = tuple(header["dims"])
            labels = {dim: tuple(map(str, header["labels"][dim])) for dim in dims}
            arrays = {name: np.array(tensor.read()) for name, tensor in tensors.items()}
            values, name = arrays.pop("values"), str(header["name"])
            if values.shape != tuple(len(labels[dim]) for dim in dims) or values.dtype.kind != "f":
                raise ValueError(f"values of shape {values.shape} do not fit its labels")
            return cls.of_file(values, dims, labels, name, arrays, metadata)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise FileFormatError(f"{path} is not a valid array: {error}. Save it again.") from None

    @classmethod
    def of_file(
        cls,
        values: Array,
        dims: tuple[str, ...],
        labels: dict[str, tuple[str, ...]],
        name: str,
        arrays: dict[str, Array],
        metadata: dict[str, str],
    ) -> Self:
        return cls(values, dims, labels, name)


def _return(array: Array) -> Any:
    return lambda: array


def numbered(count: int) -> tuple[str, ...]:
    """The labels of an axis that is only counted."""
    return tuple(map(str, range(count)))
