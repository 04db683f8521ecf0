"""The KV cache: the keys and values of tokens already read, so that a new token costs one column, not all.

One preallocated tensor; a token's slot is its position. Rows may have any lengths: how long each is, is the
caller's knowledge and comes in with the positions. One slot more than the context lies at the end: padding,
whose position is -1, is written there (index -1) and never looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import Config

AttendOne = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]  # attend_each_row, or one of kernels.py


@dataclass(frozen=True)
class Cache:
    kv: Tensor  # (n_layer, 2, rows, H, context + 1, D): keys at [:, 0], values at [:, 1]
    span: int  # how many slots, from position 0 on, attention looks at
    attend_one: AttendOne | None = None  # a quicker way for one new token per row, where there is one

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
        return LayerCache(self.kv[i], self.span, self.attend_one)


class LayerCache(NamedTuple):
    """One layer's share of the cache, which is all that a block's attention needs to know."""

    kv: Tensor  # (2, rows, H, context + 1, D)
    span: int
    attend_one: AttendOne | None = None

    def update(self, k: Tensor, v: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keep k and v, (B, H, T, D) each, and return all that may be looked at, (B, H, L, D) each.

        Without positions the rows start afresh at 0: what is new is all there is.
        """
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


def attend_each_row(qkv: Tensor, kv: Tensor, positions: Tensor, H: int, scale: float) -> Tensor:
    """Attention of one new token per row, (B, 1, 3 C) -> (B, H, 1, D), each row by itself over what it holds.

    No row's numbers depend on how long its neighbours are, and short rows do not pay for long ones.
    """
    B, D, context = len(qkv), kv.shape[4], kv.shape[3] - 1
    q, k, v = qkv.view(B, 3, H, 1, D).unbind(dim=1)  # (B, H, 1, D) each
    z = torch.zeros(B, H, 1, D, dtype=qkv.dtype, device=qkv.device)
    for row, position in enumerate(positions[:, 0].tolist()):
        if position < 0:  # an idle row
            continue
        keys, values = kv[:, row : row + 1]  # (1, H, context + 1, D) each
        keys[:, :, position] = k[row : row + 1, :, 0]
        values[:, :, position] = v[row : row + 1, :, 0]
        seen = min(position + 1, context)
        z[row] = F.scaled_dot_product_attention(
            q[row : row + 1], keys[:, :, :seen], values[:, :, :seen], scale=scale
        )[0]
    return z
