"""A lock that threads get in the order in which they asked."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

QUEUE_TIMEOUT_S = 10.0  # then a thread stops waiting for the one before it, and the lock alone decides


class FairLock:
    """First come, first served.

    A plain lock goes to whoever is fastest, which is the thread that has just released it: on a busy machine
    another one waited a minute for its first token. In a forked process the lock is free: whoever held it, or
    waited for it, is not there.
    """

    def __init__(self) -> None:
        self._free()

    def _free(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()  # set when a thread has had the lock, or has given up

    @contextmanager
    def hold(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._free()
        before, me = list(self._queue), threading.Event()
        try:
            self._queue.append(me)
            if before and not before[-1].wait(QUEUE_TIMEOUT_S):
                self._leave(before[-1])
            with self._lock:
                self._leave(me)
                yield
        finally:  # also after Ctrl-C while waiting
            self._leave(me)

    def _leave(self, one: threading.Event) -> None:
        with suppress(ValueError):
            self._queue.remove(one)
        one.set()
