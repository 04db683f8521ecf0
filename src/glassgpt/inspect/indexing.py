"""`trace.attention[5, 3]`: a step of every block behind an index, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import PlaceError
from glassgpt.inspect.display import Shown
from glassgpt.inspect.taps import BLOCK_STEPS, checked_index

if TYPE_CHECKING:
    from glassgpt.inspect.svg import Picture

Array = np.ndarray
T_co = TypeVar("T_co", covariant=True)


class Readable(Protocol):
    """What a view needs of a trace."""

    tokens: list[int]

    @property
    def config(self) -> Config: ...
    def read(self, *names: str) -> dict[str, Array]: ...


class ByLayer(Generic[T_co]):
    """Something that every layer has. Indexing, len() and loops work; nothing is kept here."""

    what = "layer"

    def __init__(self, trace: Readable, step: str, layers: int | None = None) -> None:
        self.trace = trace
        self.step = step
        self.layers = trace.config.n_layer if layers is None else layers

    def __len__(self) -> int:
        return self.layers

    def __iter__(self) -> Iterator[T_co]:
        return (self[layer] for layer in range(self.layers))

    def __getitem__(self, layer: int) -> T_co:
        return self._one(checked_index(self.what, layer, self.layers))

    def _one(self, layer: int) -> T_co:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.step} of {self.layers} layers and {len(self.trace.tokens)} tokens>"


class Layers(ByLayer[Array]):
    """An array for each layer: `trace.ln_1[4]` is (T, C), and `trace.ln_1[4, -1]` its last row."""

    def __getitem__(self, index: Any) -> Array:
        layer, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(layer, slice):
            raise PlaceError(
                f"layers {layer!r}: one layer at a time, so that memory stays small. "
                f"Use a layer from 0 to {self.layers - 1}."
            )
        found = self._one(checked_index(self.what, layer, self.layers))
        return self._inside(found, rest)

    def _one(self, layer: int) -> Array:
        name = f"h.{layer}.{self.step}"
        return self.trace.read(name)[name]

    def _inside(self, found: Array, rest: list[Any]) -> Array:
        try:
            return found[tuple(rest)] if rest else found
        except IndexError as error:
            raise PlaceError(
                f"[{', '.join(map(repr, rest))}] does not fit {self.step} of shape {found.shape}: {error}."
            ) from None


class Heads(Layers, Shown):
    """An array for each head of each layer: `attention[5, 3]` is (T, T), `attention[5]` is (H, T, T)."""

    def _inside(self, found: Array, rest: list[Any]) -> Array:
        if rest and not isinstance(rest[0], slice | type(None) | type(...) | list | np.ndarray):
            rest = [checked_index("head", rest[0], len(found)), *rest[1:]]
        return super()._inside(found, rest)

    def picture(self) -> Picture:
        from glassgpt.inspect.plots import of_heads

        return of_heads(self)

    def __repr__(self) -> str:
        size = "T, T" if BLOCK_STEPS[self.step].endswith("TT") else "T, D"
        return (
            f"<{self.step}[layer, head] -> ({size}): {self.layers} layers, {self.trace.config.n_head} heads>"
        )


class Streams(Layers):
    """The residual stream: 0 is after the embedding, i after i blocks."""

    what = "residual"

    def __init__(self, trace: Readable) -> None:
        super().__init__(trace, "residual", trace.config.n_layer + 1)

    def _one(self, layer: int) -> Array:
        name = "embedding" if layer == 0 else f"h.{layer - 1}.resid_post"
        return self.trace.read(name)[name]


class MLPSteps(NamedTuple):
    """Inside an MLP: before and after the bend, (T, M) each, and what it adds to the stream, (T, C)."""

    pre: Array
    post: Array
    out: Array


class MLPs(ByLayer[MLPSteps]):
    """`trace.mlp[4].post` is (T, M)."""

    def __init__(self, trace: Readable) -> None:
        super().__init__(trace, "mlp")

    def _one(self, layer: int) -> MLPSteps:
        names = [f"h.{layer}.mlp.{step}" for step in ("fc", "gelu", "proj")]
        found = self.trace.read(*names)
        return MLPSteps(*(found[name] for name in names))
