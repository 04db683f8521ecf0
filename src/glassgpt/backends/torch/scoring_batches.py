"""Batches of texts to score: how they are laid out, and the final vectors of the tokens that are scored.

Texts of similar length share a batch, padded at the end. Texts that begin alike (a question and its answers)
become a tree: the common prefix once, then every ending behind it, each of which sees the prefix and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.backends.torch.fast_path import can_skip_unscored
from glassgpt.model.gpt2 import GPT2, Block

Ids = np.ndarray  # of int64
Texts = Sequence[ScoreRequest]

FEW = 0.7  # up to this fraction of the tokens it pays to leave the others out of the last block


@dataclass(frozen=True)
class PackedBatch:
    """A batch as the model reads it. `scored` are places, row * T + column, in the order of the requests."""

    ids: Ids  # (B, T)
    scored: Ids  # (N,)
    positions: Ids | None = None  # (B, T), of trees
    branches: Ids | None = None  # (B, T), of trees: 0 the prefix, then the endings from 1 on; -1 padding


def pack_texts(texts: Texts) -> PackedBatch:
    """One text in each row."""
    longest = max(len(text.ids) for text in texts) - 1
    ids = np.zeros((len(texts), longest), np.int64)  # padding at the end cannot affect what precedes it
    scored = []
    for i, text in enumerate(texts):
        ids[i, : len(text.ids) - 1] = text.ids[:-1]
        scored.append(np.arange(text.first - 1, len(text.ids) - 1) + i * longest)
    return PackedBatch(ids, np.concatenate(scored))


def tree_length(texts: Texts, shared: int) -> int:
    return shared + sum(len(text.ids) - 1 - shared for text in texts)


def pack_trees(groups: Sequence[Texts], shared: Sequence[int]) -> PackedBatch:
    """One tree in each row: a group whose texts have their first `shared` tokens in common."""
    longest = max(tree_length(*tree) for tree in zip(groups, shared, strict=True))
    ids = np.zeros((len(groups), longest), np.int64)
    positions, branches = ids.copy(), ids - 1
    scored = []
    for i, (texts, common) in enumerate(zip(groups, shared, strict=True)):
        ids[i, :common] = texts[0].ids[:common]
        positions[i, :common] = np.arange(common)
        branches[i, :common] = 0
        begin = common
        for number, text in enumerate(texts, start=1):
            end = begin + len(text.ids) - 1 - common
            ids[i, begin:end] = text.ids[common:-1]
            positions[i, begin:end] = np.arange(common, len(text.ids) - 1)
            branches[i, begin:end] = number
            slots = np.arange(text.first - 1, len(text.ids) - 1)
            scored.append(np.where(slots < common, slots, slots - common + begin) + i * longest)
            begin = end
    return PackedBatch(ids, np.concatenate(scored), positions, branches)


def scored_hidden(model: GPT2, batch: PackedBatch) -> Tensor:
    """The final vectors of the scored tokens, (N, C)."""
    device = model.wte.weight.device
    needed, back = np.unique(batch.scored, return_inverse=True)  # endings may score the same token
    few = len(needed) <= FEW * batch.ids.size and can_skip_unscored(model.h[-1])
    mask = tree_mask(batch, device) if batch.branches is not None else None  # (B, 1, T, T)
    ids = torch.from_numpy(batch.ids).to(device)
    positions = None if batch.positions is None else torch.from_numpy(batch.positions).to(device)
    x = model.embed(ids, positions)  # (B, T, C)
    for block in model.h[:-1] if few else model.h:
        x = block(x, mask, positions, None, None)
    if few:
        x = last_block(model.h[-1], x, mask, needed)  # type: ignore[arg-type]  # (len(needed), C)
    final: Tensor = model.ln_f(x)
    if few:
        return final[torch.from_numpy(back).to(device)]
    return final.flatten(0, 1)[torch.from_numpy(batch.scored).to(device)]  # (N, C)


def tree_mask(batch: PackedBatch, device: torch.device) -> Tensor:
    """Who sees whom, (B, 1, T, T): tokens no later than oneself, in the prefix or in one's own ending.

    Padding is at position 0 and sees the first token, so that its (meaningless) values stay finite.
    """
    branches, positions = (torch.from_numpy(x).to(device) for x in (batch.branches, batch.positions))
    theirs, own = branches[:, None, :], branches[:, :, None]  # (B, 1, T) and (B, T, 1)
    no_later = positions[:, None, :] <= positions[:, :, None]  # (B, T, T)
    return (no_later & ((theirs == 0) | (theirs == own)))[:, None]


def last_block(block: Block, x: Tensor, mask: Tensor | None, needed: Ids) -> Tensor:
    """`block(x, mask)` at the places `needed` only, (N, C): keys and values of all tokens, queries of few.

    Above the last block nothing needs the others. For LAMBADA, where one token in fifty is scored, this
    saves five sixths of the block.
    """
    B, T, C = x.shape
    H, device = block.attn.n_head, x.device
    row, column = needed // T, needed % T
    slot = np.arange(len(needed)) - np.searchsorted(row, row)  # its number among those of its row
    looking = np.zeros((B, int(slot.max()) + 1), np.int64)  # (B, W): their columns, padded with the first
    looking[row, slot] = column
    rows, slots, where, columns = (torch.from_numpy(i).to(device) for i in (row, slot, needed, looking))

    normed = block.ln_1(x).flatten(0, 1)  # (B * T, C)
    weight, bias = block.attn.c_attn.weight, block.attn.c_attn.bias  # for q, k and v side by side
    kv = torch.addmm(bias[C:], normed, weight[:, C:])  # (B * T, 2 C)
    k, v = (block.attn.split_heads(half) for half in kv.view(B, T, 2 * C).chunk(2, dim=2))  # (B, H, T, D)
    q = x.new_zeros(B, looking.shape[1], C)  # (B, W, C)
    q[rows, slots] = torch.addmm(bias[:C], normed[where], weight[:, :C])
    if mask is None:
        seen = torch.arange(T, device=device) <= columns[:, None, :, None]  # (B, 1, W, T)
    else:
        seen = mask.gather(2, columns[:, None, :, None].expand(-1, 1, -1, T))
    z = F.scaled_dot_product_attention(
        block.attn.split_heads(q), k, v, seen, scale=block.attn.scale
    )  # (B, H, W, D)
    mixed = z.transpose(1, 2)[rows, slots].reshape(len(needed), H * z.shape[3])  # (N, C)
    mid: Tensor = x.flatten(0, 1)[where] + block.attn.c_proj(mixed)
    out: Tensor = mid + block.mlp(block.ln_2(mid), None)
    return out
