"""Does it sound like a person played it? Figures of performances, and how far two sets of them are apart.

Each figure is a histogram; the distance of two is half the sum of their differences (total variation: 0
equal, 1 nothing in common). Compare a model's samples with held-out pieces, and see what held-out pieces are
from each other: no sample can be expected to be nearer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glassgpt.music.performance import Performance

Histogram = npt.NDArray[np.float64]

STEPS = 20  # a second: the grid on which polyphony and repetition are counted
BAR_SECONDS = 2.0  # of music that is compared with what came before; a bar of 4/4 at 120 beats a minute


def histograms(performance: Performance) -> dict[str, Histogram]:
    """Each sums to one (to zero if there is no note)."""
    seconds = max(performance.seconds, 1e-9)
    onsets, _ = np.histogram(performance.start, np.arange(0, np.ceil(seconds) + 1))
    gaps = np.diff(performance.start)
    return {
        "density": counts(onsets.clip(max=31), 32),  # notes that begin in a second
        "polyphony": counts(sounding(performance).sum(axis=1).clip(max=15), 16),
        "pitch": counts(performance.pitch, 128),
        "pitch class": counts(performance.pitch % 12, 12),
        "interval": counts((np.diff(performance.pitch) + 24).clip(0, 48), 49),
        "duration": counts(log_bins(performance.end - performance.start), 24),
        "gap": counts(log_bins(gaps), 24),
        "velocity": counts((performance.velocity - 1) // 4, 32),
        "repetition": counts((repetition(performance) * 10).astype(np.int64).clip(max=9), 10),
    }


def counts(values: npt.NDArray[np.int64], bins: int) -> Histogram:
    found = np.bincount(values, minlength=bins).astype(np.float64)
    shares: Histogram = found / max(1.0, found.sum())
    return shares


def log_bins(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Three bins for every doubling, from 10 ms on."""
    bins: npt.NDArray[np.int64] = np.floor(3 * np.log2(seconds.clip(min=0.01) / 0.01)).astype(np.int64)
    return bins.clip(max=23)


def sounding(performance: Performance) -> npt.NDArray[np.bool_]:
    """Which pitches sound at each point of the grid: (time, 128)."""
    length = int(np.ceil(performance.seconds * STEPS)) + 1
    grid = np.zeros((length, 128), bool)
    first = np.floor(performance.start * STEPS).astype(np.int64)
    last = np.maximum(np.ceil(performance.end * STEPS).astype(np.int64), first + 1)
    for a, b, pitch in zip(first, last, performance.pitch, strict=True):
        grid[a:b, pitch] = True
    return grid


def repetition(performance: Performance) -> Histogram:
    """For each bar the likeness (intersection over union of what sounds) to the most alike bar before it."""
    grid = sounding(performance)
    bar = int(BAR_SECONDS * STEPS)
    bars = grid[: len(grid) // bar * bar].reshape(-1, bar * 128).astype(np.float32)  # (bars, bar * 128)
    if len(bars) < 2:
        return np.zeros(0)
    both = bars @ bars.T
    either = bars.sum(axis=1)[:, None] + bars.sum(axis=1)[None] - both
    likeness = np.tril(both / np.maximum(either, 1), k=-1)
    best: Histogram = likeness[1:].max(axis=1).astype(np.float64)
    return best


def mean_histograms(performances: Sequence[Performance]) -> dict[str, Histogram]:
    each = [histograms(performance) for performance in performances]
    return {name: np.mean([found[name] for found in each], axis=0) for name in each[0]}


def distances(these: Sequence[Performance], those: Sequence[Performance]) -> dict[str, float]:
    """How far two sets of performances are apart, figure by figure: 0 to 1."""
    a, b = mean_histograms(these), mean_histograms(those)
    return {name: float(abs(a[name] - b[name]).sum() / 2) for name in a}
