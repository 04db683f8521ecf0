"""Rows into the model, and out of it the final vectors of those tokens that are looked at, and of no others.

Rows of like length lie in one batch, padded at their ends. Rows of a document that begin alike (a question
and its answers) become a tree: the beginning once, then every ending behind it, each of which sees the
beginning and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.evaluate.windows import Group, Ids, Row
from glassgpt.model import GPT2
from glassgpt.model.fast_path import can_skip_unscored
from glassgpt.model.gpt2 import Block

FEW = 0.7  # up to this share of the tokens it pays to leave the others out of the last block


@dataclass(frozen=True)
class Sheet:
    """A batch as the model reads it. `wanted` are the places, row * T + column, in the order of scoring."""

    ids: Ids  # (B, T)
    wanted: Ids  # (N,)
    positions: Ids | None = None  # (B, T), of trees
    branches: Ids | None = None  # (B, T): 0 the beginning, then the endings from 1 on; -1 padding


def plain_sheet(rows: Sequence[Row]) -> Sheet:
    longest = max(len(row.ids) for row in rows) - 1
    ids = np.zeros((len(rows), longest), np.int64)  # what follows a row cannot reach back into it
    wanted = []
    for i, row in enumerate(rows):
        ids[i, : len(row.ids) - 1] = row.ids[:-1]
        wanted.append(np.arange(row.first - 1, len(row.ids) - 1) + i * longest)
    return Sheet(ids, np.concatenate(wanted))


def tree_length(group: Group, shared: int) -> int:
    return shared + sum(len(row.ids) - 1 - shared for row in group)


def tree_sheet(groups: Sequence[Group], shared: Sequence[int]) -> Sheet:
    """One tree for each group, whose rows have their first `shared` tokens in common."""
    longest = max(tree_length(*one) for one in zip(groups, shared, strict=True))
    ids = np.zeros((len(groups), longest), np.int64)
    positions, branches = ids.copy(), ids - 1
    wanted = []
    for i, (group, common) in enumerate(zip(groups, shared, strict=True)):
        ids[i, :common] = group[0].ids[:common]
        positions[i, :common] = np.arange(common)
        branches[i, :common] = 0
        begin = common
        for number, row in enumerate(group, start=1):
            end = begin + len(row.ids) - 1 - common
            ids[i, begin:end] = row.ids[common:-1]
            positions[i, begin:end] = np.arange(common, len(row.ids) - 1)
            branches[i, begin:end] = number
            places = np.arange(row.first - 1, len(row.ids) - 1)
            wanted.append(np.where(places < common, places, places - common + begin) + i * longest)
            begin = end
    return Sheet(ids, np.concatenate(wanted), positions, branches)


def read(model: GPT2, sheet: Sheet) -> Tensor:
    """The final vectors of the wanted tokens, (N, C)."""
    device = model.wte.weight.device
    needed, back = np.unique(sheet.wanted, return_inverse=True)  # endings may want the same token
    few = len(needed) <= FEW * sheet.ids.size and can_skip_unscored(model.h[-1])
    mask = tree_mask(sheet, device) if sheet.branches is not None else None  # (B, 1, T, T)

    ids = torch.from_numpy(sheet.ids).to(device)
    positions = None if sheet.positions is None else torch.from_numpy(sheet.positions).to(device)
    x = model.embed(ids, positions)  # (B, T, C)
    for block in model.h[:-1] if few else model.h:
        x = block(x, mask, positions, None, None)
    if few:
        x = last_block(model.h[-1], x, mask, needed)  # type: ignore[arg-type]  # (len(needed), C)
    x: Tensor = model.ln_f(x)
    if few:
        return x[torch.from_numpy(back).to(device)]
    return x.flatten(0, 1)[torch.from_numpy(sheet.wanted).to(device)]  # (N, C)


def tree_mask(sheet: Sheet, device: torch.device) -> Tensor:
    """Who sees whom, (B, 1, T, T): what stands no later, in the beginning or in one's own ending. Padding
    stands at position 0 and sees the first token, so that its (meaningless) numbers stay finite."""
    branches, positions = (torch.from_numpy(x).to(device) for x in (sheet.branches, sheet.positions))
    theirs, own = branches[:, None, :], branches[:, :, None]  # (B, 1, T) and (B, T, 1)
    no_later = positions[:, None, :] <= positions[:, :, None]  # (B, T, T)
    return (no_later & ((theirs == 0) | (theirs == own)))[:, None]


def last_block(block: Block, x: Tensor, mask: Tensor | None, needed: Ids) -> Tensor:
    """`block(x, mask)` at the places `needed` only, (N, C): all tokens are seen, few look or think.

    Above the last block nobody asks for the others. For LAMBADA, where one token in fifty is scored, this
    spares five sixths of the block.
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
    k, v = (block.attn.split_heads(one) for one in kv.view(B, T, 2 * C).chunk(2, dim=2))  # (B, H, T, D)
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
