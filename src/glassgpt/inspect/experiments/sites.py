"""What can be patched: a kind of activation, in which blocks, at which positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.inspect.batches.named_array import numbered
from glassgpt.inspect.batches.prompts import Position, Prompts
from glassgpt.inspect.taps import check_index

Part = Literal["q", "k", "v"]


@dataclass(frozen=True)
class Head:
    """An attention head, `Head(5, 1)`; as a receiver, one of its inputs: `Head(5, 1, "v")`."""

    layer: int
    head: int
    part: Part | None = None  # None: all of its inputs

    def check(self, config: Config, what: str) -> Head:
        layer = check_index(f"the layer of {what}", self.layer, config.n_layer)
        head = check_index(f"the head of {what}", self.head, config.n_head)
        if self.part not in (None, "q", "k", "v"):
            raise SettingError(f"{what} is {self!r}; its input is 'q', 'k' or 'v'.")
        return Head(layer, head, self.part)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The steps that it receives."""
        return ("attn.q", "attn.k", "attn.v") if self.part is None else (f"attn.{self.part}",)

    def __str__(self) -> str:
        return f"head {self.layer}.{self.head}" + ("" if self.part is None else f" {self.part}")


class PatchKind(NamedTuple):
    """A step of the blocks, and the axis that one patch takes a single index of."""

    step: str
    axis: str | None  # "head" or "neuron"; None: a patch is a whole vector of the stream


KINDS = {
    "resid_pre": PatchKind("resid_pre", None),
    "resid_mid": PatchKind("resid_mid", None),
    "resid_post": PatchKind("resid_post", None),
    "attn": PatchKind("attn.proj", None),
    "mlp": PatchKind("mlp.proj", None),
    "head": PatchKind("attn.z", "head"),
    "q": PatchKind("attn.q", "head"),
    "k": PatchKind("attn.k", "head"),
    "v": PatchKind("attn.v", "head"),
    "pattern": PatchKind("attn.weights", "head"),
    "neuron": PatchKind("mlp.gelu", "neuron"),
}


class Unit(NamedTuple):
    """One patch of one pair: where its value goes in the array, and what it replaces."""

    pair: int
    row: int  # of the layer's axis
    part: int | None  # the head or neuron
    column: int | None  # of the axis of positions
    position: int | None  # None: all


class Sites:
    """The grid of patches of a sweep: layers x positions, layers x heads (x positions), ..."""

    def __init__(
        self, config: Config, patch: str, layers: Any, positions: Any, prompts: Prompts, longest: int
    ) -> None:
        if patch not in KINDS:
            raise SettingError(f"patch is {patch!r}; use one of {', '.join(KINDS)}.")
        self.patch = patch
        self.kind = KINDS[patch]
        self.layers = self._check_layers(config, layers)
        self.n_indices = {None: 0, "head": config.n_head, "neuron": config.d_mlp}[self.kind.axis]
        self.positions, position_labels = self._resolve(positions, prompts, longest)
        dims = ["prompt", "layer"]
        labels = {"prompt": numbered(len(prompts)), "layer": tuple(map(str, self.layers))}
        if self.kind.axis is not None:
            dims.append(self.kind.axis)
            labels[self.kind.axis] = numbered(self.n_indices)
        if self.positions is not None:
            dims.append("position")
            labels["position"] = position_labels
        self.dims, self.labels = tuple(dims), labels

    @staticmethod
    def _check_layers(config: Config, layers: Any) -> list[int]:
        if layers is None:
            return list(range(config.n_layer))
        several = [layers] if isinstance(layers, int) else list(layers)
        if not several:
            raise SettingError(f"layers is empty. Give layers from 0 to {config.n_layer - 1}.")
        return [check_index("layer", layer, config.n_layer) for layer in several]

    def _resolve(
        self, given: Any, prompts: Prompts, longest: int
    ) -> tuple[list[list[int | None]] | None, tuple[str, ...]]:
        """For each prompt its position in each column; None past its end."""
        if given is None and self.kind.axis is not None:
            return None, ()
        if given is None or (isinstance(given, str) and given == "each"):
            columns = [[t if t < len(ids) else None for t in range(longest)] for ids in prompts.ids]
            labels = numbered(longest)
            if len(prompts) == 1:
                labels = tuple(f"{t} {text.strip()}" for t, text in enumerate(prompts.texts(0)))
            return columns, labels
        several: Sequence[Position] = (
            [given] if isinstance(given, int | str) or callable(given) else list(given)
        )
        if not several:
            raise SettingError("positions is empty. Give indices, texts of tokens, or 'each'.")
        found: list[list[int | None]] = [
            [prompts.position(number, each) for each in several] for number in range(len(prompts))
        ]
        names = [getattr(each, "__name__", None) if callable(each) else str(each) for each in several]
        return found, tuple(name if name is not None else str(i) for i, name in enumerate(names))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(self.labels[dim]) for dim in self.dims)

    def units(self, pair: int, row: int) -> list[Unit]:
        """The patches of a pair in one layer."""
        indices: list[int | None] = [None] if self.kind.axis is None else list(range(self.n_indices))
        columns: list[tuple[int | None, int | None]] = [(None, None)]
        if self.positions is not None:
            columns = [(i, t) for i, t in enumerate(self.positions[pair]) if t is not None]
        return [Unit(pair, row, index, column, t) for index in indices for column, t in columns]

    @staticmethod
    def place(unit: Unit) -> tuple[int, ...]:
        """Where a unit's value belongs in the array."""
        return tuple(i for i in (unit.pair, unit.row, unit.part, unit.column) if i is not None)

    def slice_of(self, unit: Unit) -> tuple[Any, ...]:
        """What it replaces in a text's step: (T, C), (H, T, D), (H, T, T) or (T, M)."""
        where = slice(None) if unit.position is None else unit.position
        if self.kind.axis == "head":
            return (unit.part, where)
        return (where,) if self.kind.axis is None else (where, unit.part)
