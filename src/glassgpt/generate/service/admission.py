"""Estimate how long a new request waits for its first token. One that would wait too long is refused.

A request waits for a row of the cache and for the prompts before it to be read. When it arrives, we know how
many tokens running and queued requests may still need, and how long a step takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

RECENT = 15  # steps whose median counts: a single slow step (a graph was captured) changes nothing
WEIGHT = 0.1  # of the latest text in the running mean of the share of its limit that a text uses


@dataclass(frozen=True)
class Ahead:
    """The work queued before a request."""

    samples: int = 0  # samples that need a row
    tokens: int = 0  # tokens that these may draw
    prompt_tokens: int = 0  # prompt tokens to read


class WaitEstimator:
    """Expects the measured times. Before the first measurement it expects no wait."""

    def __init__(self) -> None:
        self.used = 1.0  # mean share of its limit that a text uses: many end before it
        self._decode_s: deque[float] = deque([0.0], RECENT)
        self._read_s: deque[float] = deque([0.0], RECENT)

    @property
    def decode_s(self) -> float:
        """Seconds of a decoding step."""
        return sorted(self._decode_s)[len(self._decode_s) // 2]

    @property
    def read_s(self) -> float:
        """Seconds per prompt token."""
        return sorted(self._read_s)[len(self._read_s) // 2]

    def note_decode(self, seconds: float) -> None:
        self._decode_s.append(seconds)

    def note_reading(self, seconds: float, tokens: int) -> None:
        self._read_s.append(seconds / tokens)

    def note_finished(self, tokens: int, limit: int) -> None:
        self.used += WEIGHT * (tokens / max(1, limit) - self.used)

    def wait(self, tokens_left: Sequence[int], free: int, unread: int, ahead: Ahead) -> float:
        """Seconds until a request that arrives now would have been read.

        `tokens_left` has the tokens that each running sequence may still draw; `free` rows have no sequence,
        and `unread` prompt tokens are not read yet.
        """
        steps = 0.0
        if ahead.samples >= free:
            busy = [self.used * tokens for tokens in tokens_left]
            steps = time_to_finish([0.0] * free + busy, self.used * ahead.tokens)
        return steps * self.decode_s + (unread + ahead.prompt_tokens) * self.read_s


def time_to_finish(busy: Sequence[float], work: float) -> float:
    """When the first worker is free again, if worker i is busy until busy[i] and then all share `work`.

    Each takes work as soon as it is free: the level to which water poured into a vessel would rise.
    """
    level, poured = 0.0, 0.0
    for workers, until in enumerate(sorted(busy)):
        room = workers * (until - level)
        if poured + room >= work and workers:
            return level + (work - poured) / workers
        poured += room
        level = until
    return level + (work - poured) / len(busy)
