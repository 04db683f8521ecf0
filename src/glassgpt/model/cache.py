"""The KV cache: the keys and values of tokens already read, so that a new token costs one column, not all.

One preallocated tensor; a token's slot is its position. Rows may have any lengths: the caller knows them and
passes them in as positions. After the context there is one more slot: padding, whose position is -1, is
written there (index -1) and never looked at.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from glassgpt.config import Config


class PastKeyValues(Protocol):
    """One layer's keys and values of earlier tokens: a `LayerCache`, or a variant's own kind."""

    def update(self, k: Tensor, v: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keep k and v, (B, H, T, D) each, and return all that may be looked at, (B, H, L, D) each."""
        ...


class Past(Protocol):
    """Those of every layer, which `GPT2.hidden` takes: a `Cache`, or a variant's own kind."""

    @property
    def span(self) -> int | None:
        """How many slots attention looks at, where a slot is a position; None if it is not."""
        ...

    def layer(self, i: int) -> PastKeyValues: ...


@dataclass(frozen=True)
class Cache:
    kv: Tensor  # (n_layer, 2, rows, H, context + 1, D): keys at [:, 0], values at [:, 1]
    span: int  # how many slots, from position 0 on, attention looks at

    @classmethod
    def empty(
        cls, config: Config, rows: int, context: int, device: torch.device, dtype: torch.dtype
    ) -> Cache:
        shape = (config.n_layer, 2, rows, config.n_head, context + 1, config.d_head)
        return cls(torch.zeros(shape, device=device, dtype=dtype), context)

    @property
    def context(self) -> int:
        return self.kv.shape[4] - 1

    def view(self, rows: slice, span: int) -> Cache:
        """The same memory, seen through some rows and as far back as `span`."""
        return dataclasses.replace(self, kv=self.kv[:, :, rows], span=span)

    def layer(self, i: int) -> LayerCache:
        return LayerCache(self.kv[i], self.span)


class LayerCache(NamedTuple):
    """One layer's share of the cache, which is all that a block's attention needs to know."""

    kv: Tensor  # (2, rows, H, context + 1, D)
    span: int

    def update(self, k: Tensor, v: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Without positions the rows start afresh at 0, and the new keys and values are all there are."""
        keys, values = self.kv  # (rows, H, context + 1, D) each
        if positions is None:
            T = k.shape[2]
            keys[:, :, :T] = k
            values[:, :, :T] = v
            return k, v
        row = torch.arange(k.shape[0], device=k.device)[:, None]  # (B, 1)
        keys[row, :, positions] = k.transpose(1, 2)  # one (T, H, D) slab for each row
        values[row, :, positions] = v.transpose(1, 2)
        return keys[:, :, : self.span], values[:, :, : self.span]
