"""Which keys each token may attend to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glassgpt.model.cache import LayerCache

if TYPE_CHECKING:
    from glassgpt.model.variants.memory import LayerMemory


def visible(positions: Tensor, span: int | None) -> Tensor:
    """The mask (B, 1, T, L): keys that stand no later than the token itself, and never padding.

    With a cache the keys are its first `span` slots, and a slot is a position. Without one the keys are the
    sequence's own tokens. A padding token may look at position 0, so that its (meaningless) values stay
    finite.
    """
    keys = positions if span is None else torch.arange(span, device=positions.device)[None]  # (B or 1, L)
    no_later = keys[:, None, :] <= positions.clamp(min=0)[:, :, None]  # (B, T, L)
    return (no_later & (keys >= 0)[:, None, :])[:, None]  # (B, 1, T, L)


def token_positions(
    q: Tensor, k: Tensor, positions: Tensor | None, past: LayerCache | LayerMemory | None
) -> tuple[Tensor, Tensor]:
    """Where the queries and the keys of `Attention.attend` stand, (B or 1, T) and (B or 1, L)."""
    if positions is None:
        here = torch.arange(q.shape[2], device=q.device)[None]
        return here, here
    return positions, positions if past is None else torch.arange(k.shape[2], device=k.device)[None]
