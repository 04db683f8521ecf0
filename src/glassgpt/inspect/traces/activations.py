"""The activations behind a trace: one forward pass over the text, and single blocks recomputed on demand.

The first pass keeps the residual stream only, (n_layer + 1, T, C), unless it is told to keep more.
Activations inside a block are recomputed from the stream that enters it when they are read, and cached within
a memory limit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from glassgpt.config import Config
from glassgpt.inspect.arrays import AnyArray, append_row, concat, contiguous, copy, split, stack
from glassgpt.inspect.forward import Forward, Tap
from glassgpt.inspect.taps import dims_of, list_steps, shape_of, split_name

CACHE_BYTES = 256 * 2**20
MIDDLES_BYTES = 64 * 2**20  # of the stream between attention and MLP; the first pass keeps it up to this size
LOGITS_BYTES = 32 * 2**20  # of logits: token loss, lens and the next token read the same ones
# Vectors that are multiplied by the head together. Fixed, so that a position's logits have the same bits
# whether they were computed alone or with all others; large enough for the matrix product, small enough for
# 128 x 50,257 floats.
CHUNK = 128
LENS_CHUNK = 512  # vectors of the lens, whose bits nobody compares: larger products are faster

P = ParamSpec("P")
R = TypeVar("R")


def synchronized(
    method: Callable[Concatenate[Activations, P], R],
) -> Callable[Concatenate[Activations, P], R]:
    """Run under the lock, which a text and its continuations have in common: they use one KV cache."""

    @wraps(method)
    def locked(self: Activations, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


@dataclass
class ContinuationCache:
    """A KV cache and the tokens that are in it, passed from a text to its continuations."""

    cache: Any
    ids: list[int]


class Activations:
    """The activations of one text in one model. `tap` may replace any of them during the pass."""

    def __init__(self, forward: Forward, ids: Sequence[int], tap: Tap | None = None) -> None:
        self.forward = forward
        self.ids = list(ids)
        self.tap = tap
        self.lock = threading.RLock()
        self.prefix: ContinuationCache | None = None
        self.first_residuals: AnyArray | None = None  # (some, T, C): of another pass, before the first edit
        self.keep_bytes = 0  # of the steps inside blocks that the first pass may keep
        self.incremental = False  # computed token by token: equal up to rounding, not bit by bit
        self._cached: OrderedDict[str, AnyArray] = OrderedDict()  # least recently used first
        self._residuals: AnyArray | None = None
        self._middles: dict[str, AnyArray] = {}
        self._logits: list[tuple[int, AnyArray]] = []  # from a position on, (n, V) each; the oldest first

    @property
    def config(self) -> Config:
        return self.forward.config

    @synchronized
    def residuals(self) -> AnyArray:
        """The residual stream after the embedding and after each block, (n_layer + 1, T, C)."""
        if self._residuals is None:
            names = ["embedding", *(f"h.{i}.resid_post" for i in range(self.config.n_layer))]
            captured: dict[str, AnyArray] = {}
            if self.first_residuals is None or not self.forward.runs_blocks_alone:
                kept = self._steps_to_keep()
                middles = [name for name in self._middles_to_keep() if name not in kept]
                self.forward.hidden(self.ids, self._capture([*names, *kept, *middles], captured))
                self._residuals = stack([captured[name] for name in names])
                self._middles = {name: captured[name] for name in middles}
                self._store({name: captured[name] for name in kept})
            else:
                tap = self._capture(names, captured)
                streams = list(self.first_residuals)
                for i in range(len(streams) - 1, self.config.n_layer):
                    streams.append(self.forward.block(i, streams[i], tap))
                self._residuals = stack(streams)
        return self._residuals

    def _steps_to_keep(self) -> list[str]:
        """The steps inside blocks that the first pass keeps, if small: all, or the attention weights."""
        if self.tap is not None:
            return []  # of an edited pass, only the outcome is read
        steps = [name for name in list_steps(self.config) if split_name(name)[0] is not None]
        for kept in (steps, [name for name in steps if name.endswith("attn.weights")]):
            if self._bytes_of(kept) <= self.keep_bytes:
                return kept
        return []

    def _middles_to_keep(self) -> list[str]:
        """For a short text, the stream between attention and MLP, which is as large as the stream itself."""
        steps = [f"h.{i}.resid_mid" for i in range(self.config.n_layer)]
        return steps if self.tap is None and self._bytes_of(steps) <= MIDDLES_BYTES else []

    def _bytes_of(self, steps: Sequence[str]) -> int:
        return sum(4 * prod(shape_of(self.config, name, len(self.ids))) for name in steps)

    @synchronized
    def read(self, names: Sequence[str]) -> dict[str, AnyArray]:
        """Steps by name, without the batch dimension. A block is run once for all of its steps."""
        for name in names:
            dims_of(self.config, name)  # raises if the step does not exist
        values = {name: self._cached[name] for name in names if name in self._cached}
        for name in values:
            self._cached.move_to_end(name)
        missing = [name for name in names if name not in values]
        outside = [name for name in missing if split_name(name)[0] is None]
        layers = sorted({layer for name in missing if (layer := split_name(name)[0]) is not None})
        values |= self._read_outside_blocks(outside)
        for layer in layers:
            values |= self._read_block(layer, [name for name in missing if split_name(name)[0] == layer])
        self._store({name: values[name] for name in missing})
        return {name: values[name] for name in names}

    def _read_outside_blocks(self, names: Sequence[str]) -> dict[str, AnyArray]:
        values: dict[str, AnyArray] = {}
        tables = [name for name in names if name in ("wte", "wpe")]
        if tables:  # the same pass without its blocks
            self.forward.embed(self.ids, self._capture(tables, values))
        if "embedding" in names:
            values["embedding"] = self.residuals()[0]
        if "ln_f" in names:
            values["ln_f"] = self._final_norm()
        if "logits" in names:
            values["logits"] = concat(list(self.final_logits()))
        return values

    def _read_block(self, layer: int, names: Sequence[str]) -> dict[str, AnyArray]:
        values: dict[str, AnyArray] = {}
        if f"h.{layer}.resid_post" in names:
            values[f"h.{layer}.resid_post"] = self.residuals()[layer + 1]
        self.residuals()  # keeps the middles, perhaps
        values |= {name: self._middles[name] for name in names if name in self._middles}
        rest = [name for name in names if name not in values]
        if rest and self.forward.runs_blocks_alone:
            self.forward.block(layer, self.residuals()[layer], self._capture(rest, values))
        elif rest:  # a block of another kind may depend on more than the stream that enters it
            self.forward.hidden(self.ids, self._capture(rest, values))
        return values

    def _final_norm(self) -> AnyArray:
        """`ln_f` of the last residual stream, (T, C)."""
        return self._apply_tap("ln_f", self.forward.final_norm(self.residuals()[-1])[None])[0]

    def final_logits(self, start: int = 0, stop: int | None = None) -> Iterator[AnyArray]:
        """The logits from position `start` on, (at most CHUNK, V) at a time."""
        stop = len(self.ids) if stop is None else stop
        while start < stop:
            first, rows = self._logits_around(start)
            yield rows[start - first : stop - first]
            start = first + len(rows)

    def logits_at(self, position: int) -> AnyArray:
        """The logits at one position, (V,)."""
        first, rows = self._logits_around(position)
        return rows[position - first]

    @synchronized
    def _logits_around(self, position: int) -> tuple[int, AnyArray]:
        """Logits (n, V) of a range of positions with this one in it, and where the range begins."""
        for first, rows in self._logits:
            if first <= position < first + len(rows):
                return first, rows
        # Logits computed column by column need no exact bits, so only this one is computed.
        first = position if self.incremental else position // CHUNK * CHUNK
        later = [known for known, _ in self._logits if known > position]
        rows = self.forward.head(self._final_norm()[first : min([first + CHUNK, *later])])
        self._keep_logits(first, rows)
        return first, rows

    def _keep_logits(self, first: int, rows: AnyArray) -> None:
        self._logits.append((first, rows))
        while len(self._logits) > 1 and sum(rows.nbytes for _, rows in self._logits) > LOGITS_BYTES:
            self._logits.pop(0)

    def lens_logits(self, layers: slice, positions: slice) -> Iterator[AnyArray]:
        """The lens of some streams except the last, at some positions: (layers * positions, V) in chunks."""
        vectors = self.residuals()[:-1][layers, positions].reshape(-1, self.config.n_embd)
        yield from map(self._lens_of, split(vectors, LENS_CHUNK))

    @synchronized
    def lens_logits_from(self, start: int) -> Iterator[AnyArray]:
        """The logit lens of all streams from a position on: ((n_layer + 1) * positions, V) in chunks."""
        vectors = self.residuals()[:, start:].reshape(-1, self.config.n_embd)
        chunks = list(map(self._lens_of, split(vectors, LENS_CHUNK)))
        count = len(self.ids) - start
        if self.tap is None and count <= len(chunks[-1]):  # the last stream's are the logits
            self._keep_logits(start, copy(chunks[-1][-count:]))
        return iter(chunks)

    def _lens_of(self, x: AnyArray) -> AnyArray:
        return self.forward.head(self.forward.final_norm(x))

    @synchronized
    def append(self, token: int) -> Activations:
        """The same text with one more token: one new column, computed with a KV cache."""
        longer = Activations(self.forward, [*self.ids, token])
        longer.lock = self.lock
        prefix = self.prefix = longer.prefix = self._fill_prefix_cache()
        T = len(self.ids)
        layers = range(self.config.n_layer)
        names = ["embedding", *(f"h.{i}.resid_post" for i in layers)]
        patterns = [name for i in layers if (name := f"h.{i}.attn.weights") in self._cached]
        captured: dict[str, AnyArray] = {}
        self.forward.hidden([token], self._capture([*names, *patterns], captured), T, prefix.cache)
        prefix.ids = longer.ids
        column = stack([captured[name] for name in names])  # (n_layer + 1, 1, C)
        longer.incremental = True
        longer._logits = list(self._logits)
        longer._residuals = concat([self.residuals(), column], axis=1)
        longer._store({name: append_row(self._cached[name], captured[name]) for name in patterns})
        return longer

    def _fill_prefix_cache(self) -> ContinuationCache:
        """A cache of this text's keys and values. Continuations use the same one while their texts agree."""
        prefix = self.prefix
        if prefix is None:
            prefix = ContinuationCache(self.forward.empty_cache(), [])
        if prefix.ids[: len(self.ids)] != self.ids:
            self.forward.hidden(self.ids, cache=prefix.cache)
        return prefix

    def _capture(self, names: Sequence[str], into: dict[str, AnyArray]) -> Tap:
        selected = set(names)

        def tap(name: str, x: AnyArray) -> AnyArray:
            x = self._apply_tap(name, x)
            if name in selected:
                into[name] = x[0]
            return x

        return tap

    def _apply_tap(self, name: str, x: AnyArray) -> AnyArray:
        return x if self.tap is None else self.tap(name, x)

    def _store(self, found: dict[str, AnyArray]) -> None:
        """Cache steps within the limit. Views of the residual stream need no memory, and are not counted."""
        for name, values in found.items():
            if name != "embedding" and not name.endswith("resid_post"):
                # Its own memory: q, k and v are slices of one tensor three times as large.
                self._cached[name] = contiguous(values)
        while self._cached and self.cached_bytes > CACHE_BYTES:
            self._cached.popitem(last=False)

    @synchronized
    def clear_cache(self) -> None:
        self._cached.clear()
        self._middles.clear()
        self._logits.clear()

    @property
    def cached_bytes(self) -> int:
        return sum(values.nbytes for values in self._cached.values())

    @property
    def held_bytes(self) -> int:
        """All that is kept: the stream, steps inside blocks, logits."""
        stream = 0 if self._residuals is None else self._residuals.nbytes
        middles = sum(values.nbytes for values in self._middles.values())
        return int(stream + middles + self.cached_bytes + sum(rows.nbytes for _, rows in self._logits))
