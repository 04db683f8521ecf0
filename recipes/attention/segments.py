"""Read texts in segments, with a memory of any length (docs/attention.md)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.model import GPT2
from glassgpt.model.variants.memory import Memory


def read_segments(
    model: GPT2, ids: Tensor, segment: int, memory_length: int
) -> Iterator[tuple[slice, Tensor]]:
    """Read texts (B, N) segment by segment, with a memory of any length: the places of each segment and its
    final vectors, (B, T, C). Without gradients."""
    weight = model.wte.weight
    memory = Memory.empty(model.config, len(ids), weight.device, weight.dtype, memory_length)
    for start in range(0, ids.shape[1], segment):
        places = slice(start, min(start + segment, ids.shape[1]))
        with torch.no_grad():
            x = model.hidden(ids[:, places], cache=memory)  # (B, T, C)
        memory = memory.advance(x.shape[1])
        yield places, x


@torch.no_grad()
def segment_losses(model: GPT2, ids: Tensor, segment: int, memory_length: int) -> Tensor:
    """The loss of each token of texts (B, N + 1) but the first, (B, N), read in segments with a memory."""
    losses = []
    for places, x in read_segments(model, ids[:, :-1], segment, memory_length):
        logits = model.head(x).float()  # (B, T, V)
        targets = ids[:, 1:][:, places]
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none"))
        losses[-1] = losses[-1].view(targets.shape)
    return torch.cat(losses, dim=1)
