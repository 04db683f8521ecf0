"""Which keys each token may attend to."""

from __future__ import annotations

import torch
from torch import Tensor

from glassgpt.model.attention import AttentionInputs


def visible(positions: Tensor, span: int | None) -> Tensor:
    """The mask (B, 1, T, L): keys no later than the token itself, and never padding.

    With a cache the keys are its first `span` slots, and a slot is a position. Without one the keys are the
    sequence's own tokens. A padding token may look at position 0, so that its (meaningless) values stay
    finite.
    """
    keys = positions if span is None else torch.arange(span, device=positions.device)[None]  # (B or 1, L)
    no_later = keys[:, None, :] <= positions.clamp(min=0)[:, :, None]  # (B, T, L)
    return (no_later & (keys >= 0)[:, None, :])[:, None]  # (B, 1, T, L)


def token_positions(q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """The positions of the queries and of the keys of `Attention.attend`, (B or 1, T) and (B or 1, L)."""
    if inputs.positions is None:
        positions = torch.arange(q.shape[2], device=q.device)[None]
        return positions, positions
    if inputs.past is None:
        return inputs.positions, inputs.positions
    return inputs.positions, torch.arange(k.shape[2], device=k.device)[None]
