"""Threads that compute the masks of grammars, so that a slow grammar delays only its own text.

A mask usually needs less than a millisecond and is ready when the model has computed the logits. If it is
not, the engine keeps the logits and continues with the other sequences. Grammars whose masks were fast so far
go first, so that a slow one hardly delays the others; a request whose mask takes too long fails.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

THREADS = 2


class MaskJob(Protocol):
    @property
    def seconds(self) -> float:
        """Time spent on its masks so far."""
        ...

    @property
    def ready(self) -> bool: ...

    def compute(self) -> None: ...


class MaskWorkers:
    """The threads start with the first mask and end when this object is deleted."""

    def __init__(self, threads: int = THREADS) -> None:
        self._queue = _Queue()
        self._threads = threads
        self._started = False
        weakref.finalize(self, self._queue.close)

    def begin(self, job: MaskJob) -> None:
        """Queue a mask to be computed."""
        if not self._started:
            self._started = True
            for _ in range(self._threads):
                threading.Thread(
                    target=_work, args=(self._queue,), name="glassgpt-masks", daemon=True
                ).start()
        self._queue.push(job)

    def wait(self, jobs: Sequence[MaskJob], timeout: float | None, count: int | None = None) -> None:
        """Wait until these are ready, or `count` of them, but not longer than `timeout`."""
        least = len(jobs) if count is None else count
        with self._queue.changed:
            self._queue.changed.wait_for(lambda: sum(job.ready for job in jobs) >= least, timeout)


class _Queue:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._heap: list[tuple[float, int, MaskJob | None]] = []
        self._numbers = itertools.count()

    def push(self, job: MaskJob | None, seconds: float = 0.0) -> None:
        with self.changed:
            seconds = seconds if job is None else job.seconds
            heapq.heappush(self._heap, (seconds, next(self._numbers), job))
            self.changed.notify_all()

    def pop(self) -> MaskJob | None:
        with self.changed:
            while not self._heap:
                self.changed.wait()
            if self._heap[0][2] is None:
                return None
            return heapq.heappop(self._heap)[2]

    def close(self) -> None:
        self.push(None, seconds=-1.0)  # stays first, for all threads


def _work(queue: _Queue) -> None:
    while (job := queue.pop()) is not None:
        job.compute()
        with queue.changed:
            queue.changed.notify_all()
        del job
