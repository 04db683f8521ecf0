"""The logit lens at one position, with the rank of any token in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.inspect.arrays import stack, to_numpy
from glassgpt.inspect.forward import make_forward
from glassgpt.inspect.traces.indexing import Array

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel
    from glassgpt.inspect.traces.trace import Trace


@dataclass(frozen=True)
class LensColumn:
    """The logit lens at one position: each layer's top ids, and the ranks of some tokens in all layers."""

    ids: Array  # (n_layer + 1, k), most likely first
    p: Array  # their probabilities
    tokens: list[int]  # all of these ids once, and those asked for
    ranks: Array  # (len(tokens), n_layer + 1): the rank of each of `tokens`, from 1 on


def lens_column(
    gpt: TraceableModel, trace: Trace, position: int, k: int = 5, tokens: Sequence[int] | None = None
) -> LensColumn:
    """The lens at a position, and the ranks of `tokens` in every layer (by default of all tokens in it).
    Only the ranks need the logits of the whole vocabulary."""
    k = min(k, trace.vocabulary.size)
    ids, p = (top[:, 0] for top in trace.lens_top_k(k, position, position))
    listed = list(dict.fromkeys(ids.ravel().tolist() if tokens is None else tokens))
    ranks = ranks_of(lens_logits_at(gpt, trace, position), listed) if listed else np.zeros((0, len(ids)))
    return LensColumn(ids, p, listed, ranks)


def lens_logits_at(gpt: TraceableModel, trace: Trace, position: int) -> Array:
    """The logit lens of every layer at one position, (n_layer + 1, V)."""
    forward = make_forward(gpt.model)
    names = ["embedding", *(f"h.{layer}.resid_post" for layer in range(trace.config.n_layer))]
    streams = stack([stream[position] for stream in trace.tensors(names).values()])  # (n_layer + 1, C)
    return to_numpy(forward.head(forward.final_norm(streams)))[:, : trace.vocabulary.size]


def ranks_of(logits: Array, tokens: Sequence[int]) -> Array:
    """The rank of tokens in each row of logits, (tokens, rows): one plus the number of larger logits."""
    above = [np.searchsorted(np.sort(row), row[list(tokens)], "right") for row in logits]
    ranks: Array = logits.shape[1] - np.stack(above, axis=1) + 1
    return ranks
