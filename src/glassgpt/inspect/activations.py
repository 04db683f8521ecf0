"""The activations behind a trace: one forward pass over the text, and single blocks recomputed on demand.

The first pass keeps the residual stream only, (n_layer + 1, T, C). Activations inside a block are recomputed
from the stream that enters it when they are read, and cached within a memory limit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.inspect.taps import dims_of, split_name
from glassgpt.model.cache import Cache
from glassgpt.model.fast_path import can_run_blocks_alone
from glassgpt.model.gpt2 import GPT2, Block, Tap, within

CACHE_BYTES = 256 * 2**20
# Vectors that are multiplied by the head together. Fixed, so that a position's logits have the same bits
# whether they were computed alone or with all others; large enough for the matrix product, small enough for
# 128 x 50,257 floats.
CHUNK = 128

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
class PrefixCache:
    """A KV cache and the tokens that are in it, passed from a text to its continuations."""

    cache: Cache
    ids: list[int]


class Activations:
    """The activations of one text in one model. `tap` may replace any of them during the pass."""

    def __init__(self, model: GPT2, ids: Sequence[int], tap: Tap | None = None) -> None:
        self.model = model
        self.ids = list(ids)
        self.tap = tap
        self.lock = threading.RLock()
        self.prefix: PrefixCache | None = None
        self.first_residuals: Tensor | None = None  # (some, T, C): of another pass, before the first edit
        self.incremental = False  # computed token by token: equal up to rounding, not bit by bit
        self._cached: OrderedDict[str, Tensor] = OrderedDict()  # least recently used first
        self._residuals: Tensor | None = None

    @property
    def config(self) -> Config:
        return self.model.config

    @cached_property
    def _input(self) -> Tensor:
        return torch.tensor([self.ids], device=self.model.wte.weight.device)  # (1, T)

    @synchronized
    @torch.no_grad()
    def residuals(self) -> Tensor:
        """The residual stream after the embedding and after each block, (n_layer + 1, T, C)."""
        if self._residuals is None:
            names = ["embedding", *(f"h.{i}.resid_post" for i in range(self.config.n_layer))]
            captured: dict[str, Tensor] = {}
            tap = self._capture(names, captured)
            if self.first_residuals is None or not can_run_blocks_alone(self.model):
                self.model.hidden(self._input, tap=tap)
                self._residuals = torch.stack([captured[name] for name in names])
            else:
                found = list(self.first_residuals)
                for i in range(len(found) - 1, self.config.n_layer):
                    found.append(self._run_block(i, found[i], tap))
                self._residuals = torch.stack(found)
        return self._residuals

    def _run_block(self, layer: int, x: Tensor, tap: Tap) -> Tensor:
        """One block by itself: from the stream that enters it, (T, C), to the one that leaves it."""
        block = self.model.h[layer]
        assert isinstance(block, Block)
        out: Tensor = block(x[None], None, None, None, within(tap, f"h.{layer}"))
        return out[0]

    @synchronized
    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Steps by name, without the batch dimension. A block is run once for all of its steps."""
        for name in names:
            dims_of(self.config, name)  # raises if there is no such step
        found = {name: self._cached[name] for name in names if name in self._cached}
        for name in found:
            self._cached.move_to_end(name)
        missing = [name for name in names if name not in found]
        outside = [name for name in missing if split_name(name)[0] is None]
        layers = sorted({layer for name in missing if (layer := split_name(name)[0]) is not None})
        found |= self._read_outside_blocks(outside)
        for layer in layers:
            found |= self._read_block(layer, [name for name in missing if split_name(name)[0] == layer])
        self._store({name: found[name] for name in missing})
        return {name: found[name] for name in names}

    @torch.no_grad()
    def _read_outside_blocks(self, names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        tables = [name for name in names if name in ("wte", "wpe")]
        if tables:  # the same pass without its blocks
            self.model.embed(self._input, tap=self._capture(tables, found))
        if "embedding" in names:
            found["embedding"] = self.residuals()[0]
        if "ln_f" in names:
            found["ln_f"] = self._final_norm()
        if "logits" in names:
            found["logits"] = torch.cat(list(self.final_logits()))
        return found

    @torch.no_grad()
    def _read_block(self, layer: int, names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if f"h.{layer}.resid_post" in names:
            found[f"h.{layer}.resid_post"] = self.residuals()[layer + 1]
        rest = [name for name in names if name not in found]
        if rest and can_run_blocks_alone(self.model):
            self._run_block(layer, self.residuals()[layer], self._capture(rest, found))
        elif rest:  # a block of another kind may depend on more than the stream that enters it
            self.model.hidden(self._input, tap=self._capture(rest, found))
        return found

    def _final_norm(self) -> Tensor:
        """`ln_f` of the last residual stream, (T, C)."""
        return self._apply_tap("ln_f", self.model.ln_f(self.residuals()[-1])[None])[0]

    @torch.no_grad()
    def final_logits(self, chunks: slice = slice(None), start: int = 0) -> Iterator[Tensor]:
        """The logits from position `start` on, (at most CHUNK, V) at a time; `chunks` selects some."""
        yield from (
            self.model.head(chunk) for chunk in torch.split(self._final_norm()[start:], CHUNK)[chunks]
        )

    @torch.no_grad()
    def lens_logits(self, first: int = 0) -> Iterator[Tensor]:
        """The logit lens of each stream from `first` on, except the last: (T, V) each, in chunks."""
        for residual in self.residuals()[first:-1]:
            yield from (self.model.head(self.model.ln_f(chunk)) for chunk in torch.split(residual, CHUNK))

    @torch.no_grad()
    def lens_logits_from(self, start: int) -> Iterator[Tensor]:
        """The logit lens of all streams from a position on: ((n_layer + 1) * positions, V) in chunks."""
        vectors = self.residuals()[:, start:].flatten(0, 1)
        yield from (self.model.head(self.model.ln_f(chunk)) for chunk in torch.split(vectors, CHUNK))

    @synchronized
    @torch.no_grad()
    def append(self, token: int) -> Activations:
        """The same text with one more token: one new column, computed with a KV cache."""
        longer = Activations(self.model, [*self.ids, token])
        longer.lock = self.lock
        prefix = self.prefix = longer.prefix = self._fill_prefix_cache()
        T = len(self.ids)
        device = self.model.wte.weight.device
        names = ["embedding", *(f"h.{i}.resid_post" for i in range(self.config.n_layer))]
        captured: dict[str, Tensor] = {}
        self.model.hidden(
            torch.tensor([[token]], device=device),
            torch.tensor([[T]], device=device),
            prefix.cache.view(slice(0, 1), T + 1),
            tap=self._capture(names, captured),
        )
        prefix.ids = longer.ids
        column = torch.stack([captured[name] for name in names])  # (n_layer + 1, 1, C)
        longer.incremental = True
        longer._residuals = torch.cat([self.residuals(), column], dim=1)
        return longer

    def _fill_prefix_cache(self) -> PrefixCache:
        """A cache of this text's keys and values. Continuations use the same one while their texts agree."""
        prefix = self.prefix
        weight = self.model.wte.weight
        if prefix is None:
            cache = Cache.empty(self.config, 1, self.config.n_positions, weight.device, weight.dtype)
            prefix = PrefixCache(cache, [])
        if prefix.ids[: len(self.ids)] != self.ids:
            self.model.hidden(self._input, cache=prefix.cache.view(slice(0, 1), len(self.ids)))
        return prefix

    def _capture(self, names: Sequence[str], into: dict[str, Tensor]) -> Tap:
        selected = set(names)

        def tap(name: str, x: Tensor) -> Tensor:
            x = self._apply_tap(name, x)
            if name in selected:
                into[name] = x[0]
            return x

        return tap

    def _apply_tap(self, name: str, x: Tensor) -> Tensor:
        return x if self.tap is None else self.tap(name, x)

    def _store(self, found: dict[str, Tensor]) -> None:
        """Cache what was read, within the limit; views of the residual stream cost no memory of their own."""
        for name, values in found.items():
            if name not in ("embedding",) and not name.endswith("resid_post"):
                # Its own memory: q, k and v are slices of one tensor three times as large.
                self._cached[name] = values.contiguous()
        while self._cached and self.cached_bytes > CACHE_BYTES:
            self._cached.popitem(last=False)

    @synchronized
    def clear_cache(self) -> None:
        self._cached.clear()

    @property
    def cached_bytes(self) -> int:
        return sum(values.nbytes for values in self._cached.values())
