"""Relative positions: a key's score also depends on how far back it is (Music Transformer, Huang et al.,
2018, after Shaw et al., 2018).

    weights = softmax((q k^T + S) / sqrt(D)),    S[i, j] = q_i . E[min(i - j, R - 1)]

E has a learned vector for each head and distance. Written out, S needs the vectors of every pair, (T, T, D).
"Skewing" multiplies q by each distance's vector once, (T, T), and shifts row i into place.
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.config.variants.relative import n_distances
from glassgpt.model.attention import KERNEL_DTYPES, AttentionInputs, register_attention
from glassgpt.model.cache import LayerCache
from glassgpt.model.gpt2 import Attention
from glassgpt.model.mask import token_positions
from glassgpt.model.tap import show

KERNEL = "glassgpt.model.variants.relative_kernel"


def skew(by_distance: Tensor) -> Tensor:
    """Scores (..., T, L) with distances L - 1, ..., 1, 0 in the columns -> with keys in the columns.

    The T queries are the last of the L positions. A column of zeros in front makes every row one longer than
    the rows it is read as, which moves row i by i: no value is copied more than once, none is multiplied.
    What lands after a query's own position belongs to other rows and has to be masked.
    """
    *batch, T, L = by_distance.shape
    padded = F.pad(by_distance, (1, 0))  # (..., T, L + 1)
    return padded.reshape(*batch, L + 1, T)[..., 1:, :].reshape(*batch, T, L)


def scores_by_skewing(q: Tensor, table: Tensor, n_keys: int) -> Tensor:
    """S (B, H, T, L) for queries (B, H, T, D) at the end of L positions; table (H, R, D)."""
    distances = torch.arange(n_keys - 1, -1, -1, device=q.device).clamp(max=table.shape[1] - 1)
    return skew(q @ table[:, distances].transpose(1, 2))


def gather_distances(by_distance: Tensor, distance: Tensor) -> Tensor:
    """Scores (B, H, T, R) with distances 0, 1, ... in the columns -> (B, H, T, L) for keys at any distances
    (B or 1, T, L), for the cache, where every row is at another position. Later keys are masked anyway."""
    index = distance.clamp(0, by_distance.shape[3] - 1)[:, None]
    return by_distance.gather(3, index.expand(*by_distance.shape[:3], -1))


def scores_by_gathering(q: Tensor, table: Tensor, distance: Tensor) -> Tensor:
    """S for any distances (B or 1, T, L)."""
    return gather_distances(q @ table.transpose(1, 2), distance)


def causal_mask(q: Tensor, k: Tensor) -> Tensor:
    """(T, L): the queries are the last T of the keys' L positions."""
    T, L = q.shape[2], k.shape[2]
    return torch.ones(T, L, dtype=torch.bool, device=q.device).tril(L - T)


def is_step_on_cpu(q: Tensor) -> bool:
    """Whether these are the queries of one new token per sequence, where only the result counts."""
    return q.shape[2] == 1 and q.device.type == "cpu" and not torch.is_grad_enabled()


@register_attention("relative")
class RelativeAttention(Attention):
    """Causal attention with a learned vector for each distance, up to `n_distances`."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.wre = nn.Embedding(n_distances(config), config.n_embd)  # one row for each distance

    def attend(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        mask, positions, past, tap = inputs
        table = self.split_heads(self.wre.weight[None])[0]  # (H, R, D)
        dropout = self.attn_pdrop if self.training else 0.0
        if tap is None and mask is None and dropout == 0 and self.can_use_kernel(q):
            out: Tensor = import_module(KERNEL).relative_attention(q, k, v, table)
            return out
        if tap is None and isinstance(past, LayerCache) and positions is not None and is_step_on_cpu(q):
            return self.attend_own_slots(q, k, v, table, positions)
        if positions is None:
            relative = scores_by_skewing(q, table, k.shape[2])  # (B, H, T, L)
        else:
            own, theirs = token_positions(q, k, inputs)
            distance = own[:, :, None] - theirs[:, None, :]  # (B or 1, T, L)
            relative = scores_by_gathering(q, table, distance)
        mask = causal_mask(q, k) if mask is None else mask
        if tap is not None:
            relative = show(tap, "relative", relative.float())
            return self.step_by_step(q, k, v, mask, dropout, tap, relative)
        bias = (relative * self.scale).masked_fill(~mask, -math.inf)
        return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=self.scale)

    def attend_own_slots(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, positions: Tensor) -> Tensor:
        """One new token for each row of the cache, as `decode.attend_each_row` with a bias: it attends to the
        row's own slots only, so a short row pays neither for the whole context nor for a longer neighbor."""
        by_distance = torch.einsum("bhtd,hrd->bhtr", q, table) * self.scale  # @ would copy the table B times
        rows = []
        for i, last in enumerate(positions[:, 0].clamp(min=0).tolist()):
            own, seen = slice(i, i + 1), slice(last + 1)
            distance = torch.arange(last, -1, -1).clamp(max=table.shape[1] - 1)  # (L,)
            bias = by_distance[own, :, :, distance]  # (1, H, 1, L)
            keys, values = k[own, :, seen], v[own, :, seen]
            rows.append(F.scaled_dot_product_attention(q[own], keys, values, bias, scale=self.scale))
        return torch.cat(rows)

    def can_use_kernel(self, q: Tensor) -> bool:
        """`relative_kernel` is faster, for CUDA, three dtypes, some widths of a head and the usual scale."""
        if not q.is_cuda or q.dtype not in KERNEL_DTYPES or find_spec("triton") is None:
            return False
        D = q.shape[3]
        return D in import_module(KERNEL).WIDTHS and self.scale == 1 / math.sqrt(D)
