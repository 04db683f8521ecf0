"""A lock that threads acquire in the order in which they asked."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

QUEUE_TIMEOUT_S = 10.0  # then a thread stops waiting for its predecessor and competes for the lock


class FairLock:
    """First come, first served.

    A plain lock goes to the fastest thread, which is the one that has just released it: on a busy machine
    another thread waited a minute for its first token. In a forked process the lock is free: the threads that
    held it or waited for it do not exist there.
    """

    def __init__(self) -> None:
        self._free()

    def _free(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()  # set when a thread has acquired the lock or given up

    @contextmanager
    def hold(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._free()
        before, ticket = list(self._queue), threading.Event()
        try:
            self._queue.append(ticket)
            if before and not before[-1].wait(QUEUE_TIMEOUT_S):
                self._leave(before[-1])
            with self._lock:
                self._leave(ticket)
                yield
        finally:  # also after Ctrl-C while waiting
            self._leave(ticket)

    def _leave(self, ticket: threading.Event) -> None:
        with suppress(ValueError):
            self._queue.remove(ticket)
        ticket.set()
