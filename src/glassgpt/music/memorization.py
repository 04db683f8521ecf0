"""How much of a performance was copied from others, in seconds.

The sequences of intervals from note to note are compared: a passage that is transposed, faster or
louder is still recognized. Short runs (a scale, a repeated chord) are common to much music by chance, so
compare the figure with that of a held-out piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glassgpt.music.performance import Performance

Hashes = npt.NDArray[np.uint64]
BASE = np.uint64(0x9E3779B97F4A7C15)
INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))


@dataclass(frozen=True)
class Copy:
    """The longest run of notes that also occurs in one of the others."""

    notes: int
    seconds: float  # until the next note, which is not copied: how long notes are held is not compared
    start: float  # in the performance


def intervals(performance: Performance) -> npt.NDArray[np.int64]:
    return np.diff(performance.pitch) + 128


def hash_windows(values: npt.NDArray[np.int64], length: int) -> Hashes:
    """A hash of every `length` values in a row: sums of v[k] BASE^k, brought to the same power.

    All modulo 2^64, where an odd number has an inverse.
    """
    if len(values) < length:
        return np.zeros(0, np.uint64)
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        powers = np.cumprod(np.full(len(values), BASE))
        inverses = np.cumprod(np.full(len(values), INVERSE))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed * powers, dtype=np.uint64)])
        hashed: Hashes = (sums[length:] - sums[:-length]) * inverses[: len(values) - length + 1]
    return hashed


def join(others: Iterable[Performance]) -> npt.NDArray[np.int64]:
    """The intervals of all of them in one row; a number that occurs nowhere else separates them."""
    parts = [np.append(intervals(other), 1000 + number) for number, other in enumerate(others)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def longest_copy(performance: Performance, others: Iterable[Performance] | npt.NDArray[np.int64]) -> Copy:
    """The longest run of the performance's notes that also occurs in one of `others`.

    To compare many performances with the same others, `join` these once.
    """
    mine = intervals(performance)
    theirs = others if isinstance(others, np.ndarray) else join(others)
    low, high, place = 0, len(mine), 0  # a run of `low` intervals is shared, one of `high` + 1 is not
    while low < high:
        # Shared runs are seldom long: double the length until no run is shared.
        length = min(2 * low + 1, (low + high + 1) // 2)
        match = shared(mine, theirs, length)
        if match is None:
            high = length - 1
        else:
            low, place = length, match
    if low == 0:
        return Copy(0, 0.0, 0.0)
    start, after = float(performance.start[place]), place + low + 1
    end = performance.start[after] if after < len(performance) else performance.end[after - 1]
    return Copy(low + 1, float(end) - start, start)


def shared(mine: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64], length: int) -> int | None:
    """Where a run of `length` intervals begins that the others also have; equal hashes are checked."""
    wanted, hashed = hash_windows(mine, length), hash_windows(theirs, length)
    for place in np.flatnonzero(np.isin(wanted, hashed)):
        there = np.flatnonzero(hashed == wanted[place])
        if any((theirs[t : t + length] == mine[place : place + length]).all() for t in there[:3]):
            return int(place)
    return None
