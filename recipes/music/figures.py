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
MAJOR_SCALE, MINOR_SCALE = (0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10)
# How well each note of the scale fits a key, found by asking listeners (Krumhansl and Kessler, 1982).
MAJOR_PROFILE = (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88)
MINOR_PROFILE = (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17)
BEAT_LAGS = (0.2, 2.0)  # seconds between onsets that make a rhythm: 30 to 300 beats a minute
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


def estimate_key(performance: Performance) -> tuple[int, ...]:
    """The pitch classes of the scale whose key fits the notes best, by how long each sounds."""
    weight = np.bincount(performance.pitch % 12, performance.end - performance.start, minlength=12)
    candidates = [
        (float(np.corrcoef(weight, np.roll(profile, tonic))[0, 1]), tonic, scale)
        for profile, scale in ((MAJOR_PROFILE, MAJOR_SCALE), (MINOR_PROFILE, MINOR_SCALE))
        for tonic in range(12)
    ]
    _, tonic, scale = max(candidates)
    return tuple(sorted((step + tonic) % 12 for step in scale))


def share_in_key(performance: Performance, scale: Sequence[int]) -> float:
    """The share of the notes that belong to a scale: 7/12 if they were drawn at random."""
    return float(np.isin(performance.pitch % 12, scale).mean()) if len(performance) else 0.0


def beat_spectrum(performance: Performance) -> Histogram:
    """How many pairs of onsets are each lag apart (20 ms wide), at lags that make a rhythm; less its mean."""
    grid = np.zeros(int(performance.seconds * 100) + 2)
    np.add.at(grid, np.round(performance.start * 100).astype(np.int64), 1)
    # A chord is one onset, played not quite at once.
    onsets = np.convolve(np.minimum(grid, 1), np.hanning(7), "same")
    first, last = (int(lag * 100) for lag in BEAT_LAGS)
    found = np.array(
        [onsets[lag:] @ onsets[:-lag] if lag < len(onsets) else 0.0 for lag in range(first, last, 2)]
    )
    spectrum: Histogram = found - found.mean()
    return spectrum


def rhythm_likeness(one: Performance, other: Performance) -> float:
    """The cosine of their beat spectra: 1 for the same beat at the same tempo, about 0 for none in common."""
    a, b = beat_spectrum(one), beat_spectrum(other)
    return float(a @ b / max(1e-9, float(np.linalg.norm(a) * np.linalg.norm(b))))
