"""Memory of the previous segment (Transformer-XL, Dai et al., 2019): "just add memory".

A text is read in segments. The keys and values of the last M tokens before a segment are kept, without their
gradient, and its tokens attend to them as if they were its own: the context grows by M tokens, and through
the blocks by up to n_layer * M, at the price of a segment. A kept token has no position in the new segment,
so positions are relative: no wpe, but a score for the distance, from sinusoids.

    score[i, j] = (q_i + u) . k_j + (q_i + v) . (W r[i - j]),    r[d] = sin and cos of d at C / 2 frequencies

u and v (`r_w_bias`, `r_r_bias`) and W (`r_net`) have the names of the authors' code. They keep hidden states
and compute keys and values from them anew; here keys and values are kept, as in a KV cache. In training these
were computed with the weights of a step earlier, and cost no second product.

A text that is read in one piece, as in generation, needs no `Memory`: it has its KV cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model.attention import AttentionInputs, register_attention
from glassgpt.model.gpt2 import Attention
from glassgpt.model.mask import token_positions
from glassgpt.model.tap import show
from glassgpt.model.variants.relative import causal_mask, gather_distances, skew


@dataclass(frozen=True)
class Memory:
    """Keys and values of the tokens before a segment; `GPT2.hidden` takes it in place of a cache.

    While a segment is read, the memory of the next one is written to `following`: the backward pass of this
    one still needs `kv`. `advance` then exchanges the two.
    """

    kv: Tensor  # (n_layer, 2, B, H, M, D): the latest token last
    following: Tensor  # the same, for the next segment
    filled: Tensor  # (): how many of the M there are; the others come first and are masked

    span = None  # a slot is not a position: the latest token is last

    @classmethod
    def empty(
        cls, config: Config, rows: int, device: torch.device, dtype: torch.dtype, length: int | None = None
    ) -> Memory:
        length = config.memory_length if length is None else length
        shape = (config.n_layer, 2, rows, config.n_head, length, config.d_head)
        both = torch.zeros(2, *shape, device=device, dtype=dtype)
        return cls(both[0], both[1], torch.zeros((), device=device, dtype=torch.int64))

    @property
    def length(self) -> int:
        return self.kv.shape[4]

    def rows(self, rows: slice) -> Memory:
        """The memory of some sequences: the same storage."""
        return replace(self, kv=self.kv[:, :, rows], following=self.following[:, :, rows])

    def advance(self, tokens: int) -> Memory:
        """The memory after a segment of this length."""
        filled = (self.filled + tokens).clamp(max=self.length)
        return Memory(self.following, self.kv, filled)

    def cleared(self) -> Memory:
        """For sequences that begin anew."""
        return replace(self, filled=torch.zeros_like(self.filled))

    def layer(self, i: int) -> LayerMemory:
        return LayerMemory(self.kv[i], self.following[i], self.filled)


class LayerMemory(NamedTuple):
    """One layer's share, in the place of a `LayerCache`."""

    kv: Tensor  # (2, B, H, M, D)
    following: Tensor
    filled: Tensor  # ()

    def update(self, k: Tensor, v: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys and values (B, H, M + T, D) of the memory and the segment; keeps the last M."""
        both = torch.stack([k, v]).detach()  # (2, B, H, T, D)
        length = self.kv.shape[3]
        new = both[:, :, :, max(0, both.shape[3] - length) :]
        kept = length - new.shape[3]
        self.following[:, :, :, :kept] = self.kv[:, :, :, length - kept :]
        self.following[:, :, :, kept:] = new
        return torch.cat([self.kv[0], k], dim=2), torch.cat([self.kv[1], v], dim=2)


def sinusoids(distances: int, width: int, like: Tensor) -> Tensor:
    """r (distances, width), as the positions of Vaswani et al., 2017."""
    frequencies = 10000 ** (-torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width)
    angles = torch.arange(distances, device=like.device, dtype=torch.float32)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width].to(like.dtype)


class DistanceProjection(nn.Module):
    """W: the sinusoids of a distance as a key. A bias would add the same to every key of a query."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))  # (in, out)


@register_attention("memory")
class MemoryAttention(Attention):
    """Causal attention to the segment and to the memory before it, by distance."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.r_net = DistanceProjection(config.n_embd)
        self.r_w_bias = nn.Parameter(torch.empty(config.n_embd))  # u, of all heads side by side
        self.r_r_bias = nn.Parameter(torch.empty(config.n_embd))  # v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        mask, positions, past, tap = inputs
        dropout = self.attn_pdrop if self.training else 0.0
        H, _, D = q.shape[1:]
        content = q + self.r_w_bias.view(H, 1, D)  # (B, H, T, D)
        by_distance = self.score_distances(q + self.r_r_bias.view(H, 1, D), k.shape[2])  # (B, H, T, L)
        if positions is None:
            relative = skew(by_distance.flip(3))
        else:
            assert not isinstance(past, LayerMemory)  # a memory is of segments that follow each other
            own, theirs = token_positions(q, k, inputs)
            relative = gather_distances(by_distance, own[:, :, None] - theirs[:, None, :])
        if mask is None:
            mask = causal_mask(q, k)  # (T, L)
        if isinstance(past, LayerMemory):
            unfilled = past.kv.shape[3] - past.filled
            mask = mask & (torch.arange(k.shape[2], device=q.device) >= unfilled)
        if tap is not None:
            relative = show(tap, "relative", relative.float())
            return self.step_by_step(content, k, v, mask, dropout, tap, relative)
        bias = (relative * self.scale).masked_fill(~mask, -math.inf)
        return F.scaled_dot_product_attention(content, k, v, bias, dropout, scale=self.scale)

    def score_distances(self, q: Tensor, distances: int) -> Tensor:
        """(B, H, T, distances) of queries (B, H, T, D)."""
        H, T, D = q.shape[1:]
        weight = self.r_net.weight.view(-1, H, D)  # (C, H, D)
        r = sinusoids(distances, len(weight), q)  # (distances, C)
        if len(weight) > H * T:  # a few queries: it is cheaper to send them through W than all distances
            return torch.einsum("bhtd,chd->bhtc", q, weight) @ r.t()
        return q @ torch.einsum("lc,chd->hdl", r, weight)
