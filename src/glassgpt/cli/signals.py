"""Ctrl-C and SIGTERM while a command runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

PATIENCE = 3  # signals after which the program ends wherever it is


class Signals:
    """Both unwind the program as KeyboardInterrupt, so that half-written files go; a verb may do otherwise.

    Only the first one raises it: a second would cut the unwinding short. With the third the program just
    ends, as something seems to hang.
    """

    def __init__(self) -> None:
        self.seen: int | None = None  # the first signal's number
        self._times = 0
        self._armed = True
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # whoever ignores it (nohup, &) goes on doing so
                self._before[number] = handler
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def disarm(self) -> None:
        """From now on there is nothing to unwind: a signal ends the program."""
        self._armed = False

    def stopped(self) -> int:
        """The exit code of a command that was stopped."""
        self.disarm()
        return 128 + (signal.SIGINT if self.seen is None else self.seen)

    @property
    def is_terminated(self) -> bool:
        return self.seen == signal.SIGTERM

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a library's own child, which was forked off
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._times += 1
        if not self._armed or self._times >= PATIENCE:
            os._exit(128 + number)
        if self.seen is None:
            self.seen = number
            raise KeyboardInterrupt

    def _unraisable(self, what: Any) -> None:
        """A Ctrl-C that falls into a destructor, where nothing can be raised, would be lost."""
        if self.seen is not None and issubclass(what.exc_type, KeyboardInterrupt):
            os._exit(128 + self.seen)
        self._hook(what)
