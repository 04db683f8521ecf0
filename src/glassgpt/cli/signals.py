"""Ctrl-C and SIGTERM while a command runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

MAX_SIGNALS = 3  # the last of them ends the program wherever it is


class Signals:
    """Raises KeyboardInterrupt for both, so that half-written files are removed; a command may override it.

    Only the first signal raises: a second one would cut the cleanup short. The third ends the program, which
    seems to hang.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # the first signal's number
        self._count = 0
        self._armed = True
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._excepthook, sys.excepthook = sys.excepthook, self._uncaught
        if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # under nohup or &, it stays ignored
                self._previous[number] = handler
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        sys.unraisablehook = self._hook
        sys.excepthook = self._excepthook
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def disarm(self) -> None:
        """There is nothing left to clean up: from now on a signal ends the program."""
        self._armed = False

    def exit_code(self) -> int:
        """Disarm, and return the exit code of an interrupted command."""
        self.disarm()
        return 128 + (signal.SIGINT if self.received is None else self.received)

    @property
    def is_terminated(self) -> bool:
        return self.received == signal.SIGTERM

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child process that a library forked
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._count += 1
        if not self._armed or self._count >= MAX_SIGNALS:
            os._exit(128 + number)
        if self.received is None:
            self.received = number
            raise KeyboardInterrupt

    def _unraisable(self, info: Any) -> None:
        """A Ctrl-C during a destructor, where nothing can be raised, would be lost."""
        if self.received is not None and issubclass(info.exc_type, KeyboardInterrupt):
            os._exit(128 + self.received)
        self._hook(info)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """What C code prints when Ctrl-C interrupts an import inside it, before it raises an ImportError, as
        ml_dtypes does while it imports numpy."""
        if self.received is None:
            self._excepthook(kind, error, trace)
