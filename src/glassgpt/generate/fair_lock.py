"""A lock for which threads stand in line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LEFT = 10.0  # seconds after which nobody waits any longer for the one before: the lock alone decides


class Turns:
    """A plain lock goes to whoever is quickest, which is the thread that has just let go of it: on a busy
    machine another was seen to wait a minute for its first token. Here who comes later goes later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()  # set when one has had its turn, or has left

    @contextmanager
    def turn(self) -> Iterator[None]:
        before, me = list(self._line), threading.Event()
        try:
            self._line.append(me)
            if before and not before[-1].wait(LEFT):
                self._leave(before[-1])
            with self._lock:
                self._leave(me)
                yield
        finally:  # also after Ctrl-C while waiting
            self._leave(me)

    def _leave(self, one: threading.Event) -> None:
        with suppress(ValueError):
            self._line.remove(one)
        one.set()
