"""Long texts: local and memory-compressed attention, alternating (Liu et al., 2018, "Generating Wikipedia by
summarizing long sequences").

Compressed: three consecutive keys become one slot, and so do the values, by a convolution of kernel 3 and
stride 3: a third of the scores. A slot holds three tokens, so only a token at or after the last of them may
see it. Slot 0 is empty (a key and a value of zeros), because the first two tokens have no other.

    token   0  1 | 2  3  4 | 5  6  7 | 8
    sees    empty| slot 1  | slot 2  | ...       slot s holds tokens 3 s - 3, 3 s - 2, 3 s - 1

Three tokens in a row see the same slots, and that is how it is computed: as plain causal attention over
slots, for each of the three at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.config.variants.compressed import COMPRESSION, is_compressed
from glassgpt.model.attention import AttentionInputs, register_attention
from glassgpt.model.gpt2 import Projection
from glassgpt.model.mask import token_positions
from glassgpt.model.tap import Tap
from glassgpt.model.variants.local import LocalAttention


def compress(x: Tensor, conv: Projection) -> Tensor:
    """Keys or values (B, H, L, D) -> slots (B, H, 1 + L // 3, D), the first of them empty.

    Each head has its own convolution, (3 D, D): that head's columns of `conv.weight` (3 D, C).
    """
    B, H, L, D = x.shape
    groups = L // COMPRESSION
    triples = x[:, :, : groups * COMPRESSION].reshape(B, H, groups, COMPRESSION * D)
    weight = conv.weight.view(-1, H, D).transpose(0, 1)  # (H, 3 D, D)
    slots = triples @ weight + conv.bias.view(H, 1, D)  # (B, H, groups, D)
    return F.pad(slots, (0, 0, 1, 0))


def attend_to_slots(q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: float) -> Tensor:
    """Attention of all tokens (B, H, T, D) of a text to its slots (B, H, 1 + T // 3, D).

    The tokens 3 g - 1, 3 g and 3 g + 1 see the slots 0 to g: with one token of padding in front they are
    groups of three, and each of the three is a batch of plain causal attention.
    """
    B, H, T, D = q.shape
    groups = k.shape[2]
    q = F.pad(q, (0, 0, 1, groups * COMPRESSION - T - 1))  # (B, H, 3 G, D)
    q = q.view(B, H, groups, COMPRESSION, D).permute(3, 0, 1, 2, 4).reshape(-1, H, groups, D)
    k, v = (x.expand(COMPRESSION, *x.shape).reshape(-1, H, groups, D) for x in (k, v))
    z = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scale)
    z = z.view(COMPRESSION, B, H, groups, D).permute(1, 2, 3, 0, 4).reshape(B, H, -1, D)
    return z[:, :, 1 : T + 1]


def by_position(x: Tensor, positions: Tensor) -> Tensor:
    """Keys or values (B, H, T, D) of a padded batch as a cache has them: (B, H, L, D), a slot a position."""
    L = int(positions.max()) + 1
    laid = x.new_zeros(len(x), L + 1, *x.shape[1::2])  # (B, L + 1, H, D); the last place is for padding
    laid[torch.arange(len(x), device=x.device)[:, None], positions] = x.transpose(1, 2)
    return laid[:, :L].transpose(1, 2)


def present(positions: Tensor, L: int) -> Tensor:
    """(B, L): at which positions a row of a padded batch has a token."""
    has_token = torch.zeros(len(positions), L + 1, dtype=torch.bool, device=positions.device)
    has_token[torch.arange(len(positions), device=positions.device)[:, None], positions] = True
    return has_token[:, :L]


def visible_slots(own: Tensor, there: Tensor) -> Tensor:
    """(B or 1, 1, T, 1 + L // 3): the slots that queries at `own` (B or 1, T) may see, of whose three tokens
    none is later and all are there (B or 1, L)."""
    groups = there.shape[1] // COMPRESSION
    whole = there[:, : groups * COMPRESSION].reshape(len(there), groups, COMPRESSION).all(dim=2)
    whole = F.pad(whole, (1, 0), value=True)  # the empty slot
    last = torch.arange(groups + 1, device=own.device) * COMPRESSION - 1
    return (whole[:, None, :] & (last <= own.clamp(min=0)[:, :, None]))[:, None]


class SlotTap:
    """Shows scores of slots (B, H, T, 1 + G) as scores of their tokens (B, H, T, L), and takes them back.

    A slot's score is that of each of its tokens, and a weight is divided among them. What the empty slot has
    is not shown: rows of weights sum to one less that.
    """

    def __init__(self, tap: Tap, n_tokens: int) -> None:
        self.tap, self.n_tokens = tap, n_tokens

    def __call__(self, name: str, slots: Tensor, left_over: float = 0.0, share: float = 1.0) -> Tensor:
        tokens = (slots[..., 1:] * share).repeat_interleave(COMPRESSION, dim=-1)
        shown = self.tap(name, F.pad(tokens, (0, self.n_tokens - tokens.shape[-1]), value=left_over))
        whole = shown[..., : tokens.shape[-1]]
        back = whole.reshape(*whole.shape[:-1], slots.shape[-1] - 1, COMPRESSION).mean(dim=-1) / share
        return torch.cat([slots[..., :1], back], dim=-1)


@register_attention("compressed")
class CompressedAttention(LocalAttention):
    """Local in the blocks 0, 2, 4, ...; in the others every token sees all slots that are not later."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.is_local = not is_compressed(layer)
        if not self.is_local:
            self.k_conv = Projection(COMPRESSION * config.d_head, config.n_embd)
            self.v_conv = Projection(COMPRESSION * config.d_head, config.n_embd)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        if self.is_local:
            return super().attend(q, k, v, inputs)
        mask, positions, past, tap = inputs
        dropout = self.attn_pdrop if self.training else 0.0
        if tap is None and mask is None:
            slots = compress(k, self.k_conv), compress(v, self.v_conv)
            return attend_to_slots(q, *slots, dropout, self.scale)
        own, theirs = token_positions(q, k, inputs)
        there = torch.ones_like(theirs, dtype=torch.bool)  # (1, L): a cache has all that a query may see
        if positions is not None and past is None:
            k, v = by_position(k, positions), by_position(v, positions)
            there = present(positions, k.shape[2])
        seen = visible_slots(own, there)  # (B or 1, 1, T, 1 + G)
        if tap is not None:
            return self.slots_step_by_step(q, k, v, seen, dropout, tap)
        return self.attend_through_conv(q, k, v, seen, dropout)

    def attend_through_conv(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, dropout: float) -> Tensor:
        """For the few queries of a cached step: they are sent through the convolution, which is linear,
        instead of all keys; and the mixture of values instead of all values."""
        B, H, L, D = k.shape
        groups = L // COMPRESSION
        keys, values = (
            x[:, :, : groups * COMPRESSION].reshape(B, H, groups, COMPRESSION * D) for x in (k, v)
        )
        k_weight, v_weight = (
            conv.weight.view(-1, H, D).transpose(0, 1) for conv in (self.k_conv, self.v_conv)
        )  # (H, 3 D, D)
        k_bias, v_bias = (conv.bias.view(H, 1, D) for conv in (self.k_conv, self.v_conv))
        scores = (q @ k_weight.mT) @ keys.mT + (q * k_bias).sum(-1, keepdim=True)  # (B, H, T, G)
        scores = F.pad(scores, (1, 0)).float() * self.scale  # (B, H, T, 1 + G)
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        weights = F.dropout(weights, dropout, training=dropout > 0)[..., 1:].to(v.dtype)
        return (weights @ values) @ v_weight + weights.sum(-1, keepdim=True) * v_bias

    def slots_step_by_step(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, dropout: float, tap: Tap
    ) -> Tensor:
        k_slots = tap("k_slots", compress(k, self.k_conv))  # (B, H, 1 + G, D)
        v_slots = tap("v_slots", compress(v, self.v_conv))  # (B, H, 1 + G, D)
        show = SlotTap(tap, k.shape[2])
        scores = show("scores", q.float() @ k_slots.float().mT)  # (B, H, T, 1 + G)
        scaled = show("scaled", scores * self.scale)
        masked = show("masked", scaled.masked_fill(~seen, -math.inf), left_over=-math.inf)
        weights = show("weights", masked.softmax(dim=-1), share=1 / COMPRESSION)
        weights = F.dropout(weights, dropout, training=dropout > 0).to(v.dtype)
        return tap("z", weights @ v_slots)  # (B, H, T, D)
