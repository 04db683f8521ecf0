"""The negative log-likelihood per event that papers report, over all pieces of a split.

Every piece is scored by itself, each event given the events before it in the piece, as far as the context
reaches: windows begin every `stride` events, and score the events that no earlier window contained. A stride
as long as the context is fastest and forgets most; half of it leaves every event at least half a context.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassgpt.backends.protocol import Backend
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.scoring.windows import strided_windows
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole
from glassgpt.train.data.shards import Shards


@dataclass(frozen=True)
class Likelihood:
    nll: float  # nats per event
    events: int
    pieces: int
    stride: int


def read_pieces(data: str | Path, split: str) -> Iterator[np.ndarray]:
    """The ids of each piece of a prepared folder, after its end-of-text."""
    shards = Shards.open(data, split)
    bounds = [*shards.document_starts.tolist(), len(shards)]
    for start, stop in itertools.pairwise(bounds):
        yield shards.read(start, stop - start)


def evaluate(
    backend: Backend,
    pieces: Sequence[np.ndarray],
    *,
    stride: int | None = None,
    progress: Progress = no_progress,
) -> Likelihood:
    """The mean negative log-likelihood of all events except each piece's first id, its end-of-text."""
    stride = backend.context if stride is None else stride
    check_whole("stride", stride, 1, backend.context, "the context")
    # A window holds one token more than the context: the last one is only a target.
    windows = [w for piece in pieces for w in strided_windows(piece.tolist(), backend.context + 1, stride)]
    with progress("scoring", sum(len(window.ids) for window in windows), unit="tokens") as advance:
        scores = Scorer(backend).score([[window] for window in windows], advance)
    events = sum(window.n_scored for window in windows)
    total = sum(score.total for (score,) in scores)
    return Likelihood(-total / max(1, events), events, len(pieces), stride)
