"""`trace.attention[5, 3]`: a step of every block behind an index, computed when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import StepIndexError
from glassgpt.inspect.figures.display import Displayable
from glassgpt.inspect.taps import ATTENTION_STEPS, BLOCK_STEPS, RESID_PRE, check_index

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure

Array = np.ndarray
SLICE_BYTES = 2**30  # of several layers in one array
# The dimensions of every step that a block of some model has.
DIMS = BLOCK_STEPS | ATTENTION_STEPS


class Readable(Protocol):
    """What indexing needs of a trace."""

    tokens: list[int]

    @property
    def config(self) -> Config: ...
    def read(self, *names: str) -> dict[str, Array]: ...


class Layers:
    """An array per layer: `trace.ln_1[4]` is (T, C), `trace.ln_1[4, -1]` is its last position and
    `trace.ln_1[:]` is (n_layer, T, C)."""

    what = "layer"

    def __init__(self, trace: Readable, step: str, n_layers: int | None = None) -> None:
        self.trace = trace
        self.step = step
        self.n_layers = trace.config.n_layer if n_layers is None else n_layers

    def __len__(self) -> int:
        return self.n_layers

    def __iter__(self) -> Iterator[Array]:
        return (self[layer] for layer in range(self.n_layers))

    def __getitem__(self, index: Any) -> Array:
        layer, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(layer, slice):
            return self._stack(range(self.n_layers)[layer], rest)
        found = self._read(check_index(self.what, layer, self.n_layers))
        return self._index(found, rest)

    def _stack(self, layers: range, rest: list[Any]) -> Array:
        """Several layers in one array, (layers, ...): within a limit, since each may be (H, T, T)."""
        if not layers:
            raise StepIndexError(f"this slice has no layers. Layers are 0 to {self.n_layers - 1}.")
        first = self._index(self._read(layers[0]), rest)
        if first.nbytes * len(layers) > SLICE_BYTES:
            raise StepIndexError(
                f"{len(layers)} layers of {self.step} take {first.nbytes * len(layers) / 2**30:.1f} GiB. "
                f"Read one at a time, or fewer than {SLICE_BYTES // first.nbytes + 1} together."
            )
        return np.stack([first, *(self._index(self._read(layer), rest) for layer in layers[1:])])

    def _read(self, layer: int) -> Array:
        name = f"h.{layer}.{self.step}"
        return self.trace.read(name)[name]

    def _index(self, values: Array, rest: list[Any]) -> Array:
        try:
            return values[tuple(rest)] if rest else values
        except IndexError as error:
            raise StepIndexError(
                f"[{', '.join(map(repr, rest))}] does not fit {self.step} of shape {values.shape}: {error}."
            ) from None

    def __repr__(self) -> str:
        return f"<{self.step}[layer]: {self.n_layers} layers, {len(self.trace.tokens)} tokens>"


class Heads(Layers, Displayable):
    """An array per head of each layer: `attention[5, 3]` is (T, T), `attention[5]` is (H, T, T)."""

    def _index(self, values: Array, rest: list[Any]) -> Array:
        if rest and not isinstance(rest[0], slice | type(None) | type(...) | list | np.ndarray):
            rest = [check_index("head", rest[0], len(values)), *rest[1:]]
        return super()._index(values, rest)

    def figure(self) -> Figure:
        from glassgpt.inspect.figures.plots import plot_heads

        return plot_heads(self)

    def __repr__(self) -> str:
        size = ", ".join(DIMS[self.step][1:])
        n_head = self.trace.config.n_head
        return f"<{self.step}[layer, head] -> ({size}): {self.n_layers} layers, {n_head} heads>"


class ResidualStream(Layers):
    """The residual stream: 0 is after the embedding, i after i blocks."""

    what = "residual"

    def __init__(self, trace: Readable) -> None:
        super().__init__(trace, "residual", trace.config.n_layer + 1)

    def _read(self, layer: int) -> Array:
        name = "embedding" if layer == 0 else f"h.{layer - 1}.resid_post"
        return self.trace.read(name)[name]


L = TypeVar("L", bound=Layers)


class BlockStep(Generic[L]):
    """A descriptor: an attribute of a trace, or of its `attn` or `mlp`, for one step of the blocks."""

    def __init__(self, index: type[L], step: str) -> None:
        assert step in DIMS or step == RESID_PRE
        self.index = index
        self.step = step

    def __get__(self, owner: Any, cls: type | None = None) -> L:
        if owner is None:
            return self  # type: ignore[return-value]
        return self.index(getattr(owner, "trace", owner), self.step)


class AttentionSteps:
    """`trace.attn`: the steps of attention, `[layer, head]` each, by the names of their taps."""

    def __init__(self, trace: Readable) -> None:
        self.trace = trace

    q = BlockStep(Heads, "attn.q")  # (T, D): queries
    k = BlockStep(Heads, "attn.k")  # (T, D): keys
    v = BlockStep(Heads, "attn.v")  # (T, D): values
    scores = BlockStep(Heads, "attn.scores")  # (T, T): every query times every key
    scaled = BlockStep(Heads, "attn.scaled")  # (T, T): divided by the square root of D
    masked = BlockStep(Heads, "attn.masked")  # (T, T): -inf at later positions
    weights = BlockStep(Heads, "attn.weights")  # (T, T): after the softmax; rows sum to one
    z = BlockStep(Heads, "attn.z")  # (T, D): the values, averaged with these weights
    merged = BlockStep(Layers, "attn.merged")  # [layer] -> (T, C): the heads concatenated
    proj = BlockStep(Layers, "attn.proj")  # [layer] -> (T, C): the output added to the residual stream

    def __getattr__(self, name: str) -> Heads:
        """The steps that only a variant has: `relative`, `k_slots` (config/variants/)."""
        if f"attn.{name}" not in ATTENTION_STEPS:
            raise AttributeError(f"{name!r} is not a step of attention")
        return Heads(self.trace, f"attn.{name}")


class MLPSteps:
    """`trace.mlp`: the steps of the MLP, `[layer]` each, by the names of their taps."""

    def __init__(self, trace: Readable) -> None:
        self.trace = trace

    fc = BlockStep(Layers, "mlp.fc")  # (T, M): before the activation function
    gelu = BlockStep(Layers, "mlp.gelu")  # (T, M): after it, the neurons
    proj = BlockStep(Layers, "mlp.proj")  # (T, C): the output added to the residual stream
