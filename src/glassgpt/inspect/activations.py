"""Where a trace's numbers come from: one pass over the text, and blocks run again when one looks inside them.

Kept from the first pass is only the residual stream, (n_layer + 1, T, C). What lies inside a block is
computed from the stream that enters it when somebody asks, and kept within a bound of memory.
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
from glassgpt.inspect.taps import letters, split_name
from glassgpt.model.cache import Cache
from glassgpt.model.fast_path import can_run_blocks_alone
from glassgpt.model.gpt2 import GPT2, Block, Tap, within

KEPT_BYTES = 256 * 2**20
# Vectors that meet the vocabulary together. Fixed, so that a position's logits have the same bits whether one
# asked for them alone or for all; large enough for the matrix product, small enough for 128 x 50,257 floats.
ROWS = 128

P = ParamSpec("P")
R = TypeVar("R")


def in_turn(method: Callable[Concatenate[Live, P], R]) -> Callable[Concatenate[Live, P], R]:
    """One thread at a time, of all who ask this text or its continuations: they share a cache."""

    @wraps(method)
    def alone(live: Live, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with live.lock:
            return method(live, *args, **kwargs)

    return alone


@dataclass
class Memory:
    """A cache and the tokens whose keys and values it holds, handed from a trace to its continuations."""

    cache: Cache
    ids: list[int]


class Live:
    """The activations of one text, from a model. `change` may replace any of them on the way."""

    def __init__(self, model: GPT2, ids: Sequence[int], change: Tap | None = None) -> None:
        self.model = model
        self.ids = list(ids)
        self.change = change
        self.lock = threading.RLock()
        self.memory: Memory | None = None
        self.start: Tensor | None = None  # streams known already, (some, T, C): those before the first change
        self.grown = False  # token by token: the same numbers up to rounding, but not bit for bit
        self._kept: OrderedDict[str, Tensor] = OrderedDict()
        self._streams: Tensor | None = None

    @property
    def config(self) -> Config:
        return self.model.config

    @cached_property
    def _input(self) -> Tensor:
        return torch.tensor([self.ids], device=self.model.wte.weight.device)  # (1, T)

    @in_turn
    @torch.no_grad()
    def streams(self) -> Tensor:
        """The residual stream after the embedding and after each block, (n_layer + 1, T, C)."""
        if self._streams is None:
            wanted = ["embedding", *(f"h.{i}.resid_post" for i in range(self.config.n_layer))]
            seen: dict[str, Tensor] = {}
            tap = self._catching(wanted, seen)
            if self.start is None or not can_run_blocks_alone(self.model):
                self.model.hidden(self._input, tap=tap)
                self._streams = torch.stack([seen[name] for name in wanted])
            else:
                found = list(self.start)
                for i in range(len(found) - 1, self.config.n_layer):
                    found.append(self._block(i, found[i], tap))
                self._streams = torch.stack(found)
        return self._streams

    def _block(self, layer: int, stream: Tensor, tap: Tap) -> Tensor:
        """One block by itself: from the stream that enters it, (T, C), to the one that leaves it."""
        block = self.model.h[layer]
        assert isinstance(block, Block)
        left: Tensor = block(stream[None], None, None, None, within(tap, f"h.{layer}"))
        return left[0]

    @in_turn
    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """What the steps hold for this text, without the batch axis. One run of a block serves all of its."""
        for name in names:
            letters(self.config, name)  # refuses a step that is not there
        found = {name: self._kept[name] for name in names if name in self._kept}
        for name in found:
            self._kept.move_to_end(name)
        missing = [name for name in names if name not in found]
        outside = [name for name in missing if split_name(name)[0] is None]
        inside = sorted({layer for name in missing if (layer := split_name(name)[0]) is not None})
        found |= self._outside(outside)
        for layer in inside:
            found |= self._inside(layer, [name for name in missing if split_name(name)[0] == layer])
        self._keep({name: found[name] for name in missing})
        return {name: found[name] for name in names}

    @torch.no_grad()
    def _outside(self, names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        begin = [name for name in names if name in ("wte", "wpe")]
        if begin:  # the same pass without its blocks
            self.model.embed(self._input, tap=self._catching(begin, found))
        if "embedding" in names:
            found["embedding"] = self.streams()[0]
        if "ln_f" in names:
            found["ln_f"] = self._normed()
        if "logits" in names:
            found["logits"] = torch.cat(list(self.final_logits()))
        return found

    @torch.no_grad()
    def _inside(self, layer: int, names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if f"h.{layer}.resid_post" in names:
            found[f"h.{layer}.resid_post"] = self.streams()[layer + 1]
        rest = [name for name in names if name not in found]
        if rest and can_run_blocks_alone(self.model):
            self._block(layer, self.streams()[layer], self._catching(rest, found))
        elif rest:  # a block of another kind may look at more than the stream that enters it
            self.model.hidden(self._input, tap=self._catching(rest, found))
        return found

    def _normed(self) -> Tensor:
        """What the last norm makes of the last stream, (T, C)."""
        normed = self.model.ln_f(self.streams()[-1])[None]
        return self._changed("ln_f", normed)[0]

    @torch.no_grad()
    def final_logits(self, pieces: slice = slice(None), since: int = 0) -> Iterator[Tensor]:
        """The answer from position `since` on, (at most ROWS, V) at a time; `pieces` picks some by number."""
        yield from (self.model.head(piece) for piece in torch.split(self._normed()[since:], ROWS)[pieces])

    @torch.no_grad()
    def lens_logits(self, first: int = 0) -> Iterator[Tensor]:
        """As if each stream but the last were the last one: (T, V) for each from `first` on, in pieces."""
        for stream in self.streams()[first:-1]:
            yield from (self.model.head(self.model.ln_f(piece)) for piece in torch.split(stream, ROWS))

    @torch.no_grad()
    def late_logits(self, since: int) -> Iterator[Tensor]:
        """The same for all streams, but only from a position on: ((n_layer + 1) * positions, V) in pieces."""
        vectors = self.streams()[:, since:].flatten(0, 1)
        yield from (self.model.head(self.model.ln_f(piece)) for piece in torch.split(vectors, ROWS))

    @in_turn
    @torch.no_grad()
    def extended(self, token: int) -> Live:
        """The same text with one more token: one new column, by looking back through a cache."""
        longer = Live(self.model, [*self.ids, token])
        longer.lock = self.lock
        memory = self.memory = longer.memory = self._remembered()
        T = len(self.ids)
        device = self.model.wte.weight.device
        wanted = ["embedding", *(f"h.{i}.resid_post" for i in range(self.config.n_layer))]
        seen: dict[str, Tensor] = {}
        self.model.hidden(
            torch.tensor([[token]], device=device),
            torch.tensor([[T]], device=device),
            memory.cache.view(slice(0, 1), T + 1),
            tap=self._catching(wanted, seen),
        )
        memory.ids = longer.ids
        column = torch.stack([seen[name] for name in wanted])  # (n_layer + 1, 1, C)
        longer.grown = True
        longer._streams = torch.cat([self.streams(), column], dim=1)
        return longer

    def _remembered(self) -> Memory:
        """A cache with this text's keys and values. Continuations share one as long as their texts agree."""
        memory = self.memory
        weight = self.model.wte.weight
        if memory is None:
            cache = Cache.empty(self.config, 1, self.config.n_positions, weight.device, weight.dtype)
            memory = Memory(cache, [])
        if memory.ids[: len(self.ids)] != self.ids:
            self.model.hidden(self._input, cache=memory.cache.view(slice(0, 1), len(self.ids)))
        return memory

    def _catching(self, names: Sequence[str], into: dict[str, Tensor]) -> Tap:
        wanted = set(names)

        def tap(name: str, x: Tensor) -> Tensor:
            x = self._changed(name, x)
            if name in wanted:
                into[name] = x[0]
            return x

        return tap

    def _changed(self, name: str, x: Tensor) -> Tensor:
        return x if self.change is None else self.change(name, x)

    def _keep(self, found: dict[str, Tensor]) -> None:
        """Remember what was read last, within the bound; views of the streams cost nothing more."""
        for name, values in found.items():
            if name not in ("embedding",) and not name.endswith("resid_post"):
                # Its own memory: q, k and v are slices of one tensor three times as large.
                self._kept[name] = values.contiguous()
        while self._kept and self.kept_bytes > KEPT_BYTES:
            self._kept.popitem(last=False)

    @in_turn
    def forget(self) -> None:
        self._kept.clear()

    @property
    def kept_bytes(self) -> int:
        return sum(values.nbytes for values in self._kept.values())
