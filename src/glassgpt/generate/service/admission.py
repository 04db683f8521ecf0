"""How long a new request would wait for its first token: one that would wait too long is refused at once.

A request waits for a row of the cache, for the prompts that were there before it to be read, and for nothing
else. All of that is known when it comes: what runs has so many tokens left, what waits asks for so many, and
the time of a step was measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

RECENT = 15  # steps whose median counts: one that took long, for a graph was captured, changes nothing
WEIGHT = 0.1  # of the latest text in the running mean of how much texts use of their limit


@dataclass(frozen=True)
class Ahead:
    """What waits before a request."""

    samples: int = 0  # that need a row
    tokens: int = 0  # that these may draw
    prompt_tokens: int = 0  # that have to be read


class WaitEstimator:
    """Expects what was measured. Before anything was, it expects no wait."""

    def __init__(self) -> None:
        self.used = 1.0  # of the tokens that a text may have: many end before
        self._decode_s: deque[float] = deque([0.0], RECENT)
        self._read_s: deque[float] = deque([0.0], RECENT)

    @property
    def decode_s(self) -> float:
        """Of a step in which every running sequence gets a token."""
        return sorted(self._decode_s)[len(self._decode_s) // 2]

    @property
    def read_s(self) -> float:
        """Of a token of a prompt."""
        return sorted(self._read_s)[len(self._read_s) // 2]

    def note_decode(self, seconds: float) -> None:
        self._decode_s.append(seconds)

    def note_reading(self, seconds: float, tokens: int) -> None:
        self._read_s.append(seconds / tokens)

    def note_finished(self, tokens: int, limit: int) -> None:
        self.used += WEIGHT * (tokens / max(1, limit) - self.used)

    def wait(self, left: Sequence[int], free: int, unread: int, ahead: Ahead) -> float:
        """Seconds until a request that comes now would be read.

        `left` has the tokens that each running sequence may still draw; `free` rows have no sequence, and
        `unread` tokens of prompts are not read yet.
        """
        steps = 0.0
        if ahead.samples >= free:
            busy = [self.used * tokens for tokens in left]
            steps = time_to_finish([0.0] * free + busy, self.used * ahead.tokens)
        return steps * self.decode_s + (unread + ahead.prompt_tokens) * self.read_s


def time_to_finish(busy: Sequence[float], work: float) -> float:
    """When the next of several workers is free, each busy so long, after so much work was shared by them.

    Each takes from the work as soon as it can: the level to which water poured into a vessel would rise.
    """
    level, poured = 0.0, 0.0
    for workers, until in enumerate(sorted(busy)):
        room = workers * (until - level)
        if poured + room >= work and workers:
            return level + (work - poured) / workers
        poured += room
        level = until
    return level + (work - poured) / len(busy)
