"""Stopping a run on Ctrl-C or SIGTERM: the step is finished and saved first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

StopRequested = Callable[[], bool]
Stopping = Callable[[bool], contextlib.AbstractContextManager[StopRequested]]


def never_stop(alone: bool = True) -> contextlib.AbstractContextManager[StopRequested]:
    return contextlib.nullcontext(lambda: False)


@contextlib.contextmanager
def stop_on_signals(
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    on_request: Callable[[], None] = lambda: None,
    alone: bool = True,
) -> Iterator[StopRequested]:
    """Yields a function that says whether a signal has arrived. A second one raises KeyboardInterrupt.

    It does not in one of several processes (`alone` is False), which gets every Ctrl-C twice, from the
    terminal and from torchrun; torchrun kills processes that take too long.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received and alone:
            raise KeyboardInterrupt
        received.append(number)
        if alone:
            on_request()

    previous = {number: signal.signal(number, handle) for number in signals}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_on_interrupt(alone: bool = True) -> Iterator[StopRequested]:
    """`stop_on_signals` for Ctrl-C in a program that has not set its own handler."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default and threading.current_thread() is threading.main_thread():
        with stop_on_signals((signal.SIGINT,), alone=alone) as requested:
            yield requested
    else:
        yield lambda: False


class StopTracker:
    """A `Stopping` that remembers, after the run has ended, whether a stop was requested."""

    def __init__(self, stopping: Stopping) -> None:
        self.stopping = stopping
        self.requested: StopRequested = lambda: False

    @contextlib.contextmanager
    def __call__(self, alone: bool = True) -> Iterator[StopRequested]:
        with self.stopping(alone) as self.requested:
            yield self.requested
