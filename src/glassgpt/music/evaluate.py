"""The negative log-likelihood per event that papers report, over all pieces of a split.

Every piece is scored by itself, each event given what came before it in the piece, as far as the context
reaches: windows begin every `stride` events, and count what no earlier window did. A stride as long as the
context is fastest and forgets most; half of it leaves every event at least half a context.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.evaluate.scoring.windows import strided_windows
from glassgpt.model import GPT2
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole
from glassgpt.train.data.shards import Shards

BATCH_SIZE = 8


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


@torch.inference_mode()
def evaluate(
    model: GPT2,
    pieces: Sequence[np.ndarray],
    *,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress = no_progress,
) -> Likelihood:
    """The mean negative log-likelihood of all events but each piece's first id, its end-of-text."""
    context = model.config.n_positions if context is None else context
    stride = context if stride is None else stride
    check_whole("stride", stride, 1, context, "the context")
    windows = [window for piece in pieces for window in strided_windows(piece, context + 1, stride)]  # type: ignore[arg-type]
    windows.sort(key=lambda window: len(window.ids))  # so that little is padded
    total, count = 0.0, 0
    model.eval()
    with progress("scoring", len(windows), unit="windows") as advance:
        for first in range(0, len(windows), batch_size):
            batch = windows[first : first + batch_size]
            total += score(model, batch)
            count += sum(window.n_scored for window in batch)
            advance(len(batch))
    return Likelihood(total / max(1, count), count, len(pieces), stride)


def score(model: GPT2, windows: Sequence[ScoreRequest]) -> float:
    """The sum of the losses of a batch; what pads a shorter window comes after it and counts nothing."""
    device = model.wte.weight.device
    longest = max(len(window.ids) for window in windows)
    ids = np.zeros((len(windows), longest), np.int64)
    targets = np.full((len(windows), longest - 1), -100)
    for row, target, window in zip(ids, targets, windows, strict=True):
        row[: len(window.ids)] = window.ids
        target[window.first - 1 : len(window.ids) - 1] = window.ids[window.first :]
    logits = model(torch.from_numpy(ids[:, :-1]).to(device))  # (B, T, V)
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), torch.from_numpy(targets).to(device).flatten(), reduction="sum"
    )
    return float(loss)
