"""uvicorn in a command: signals end it without a traceback, however many come and whenever."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def is_not_a_cancellation(record: logging.LogRecord) -> bool:
    """Whether uvicorn reports anything but a request that the end of the server cut off: a traceback each."""
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and not str(record.msg).startswith("Cancel %s running task")


class QuietServer(uvicorn.Server):
    """uvicorn, with a callable that runs when it accepts connections; what that raises, `run` raises.

    By itself, uvicorn raises the signals that it got once more inside of its event loop, where they break off
    the shutdown with a traceback.
    """

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_start = on_start
        self.failure: Exception | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        try:
            self.on_start()
        except Exception as error:  # the terminal's disk is full
            self.failure = error
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would leave the app in the middle
            await self.lifespan.shutdown()
        elif self.server_state.tasks:  # it cancelled them: each responds with an error
            await asyncio.wait(self.server_state.tasks, timeout=1)
            await asyncio.sleep(0)  # the event loop sends at the end of an iteration

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `run_until_signal` does

    def run_until_signal(self, listener: socket.socket) -> None:
        """Serve until a signal, then raise it again for the command that runs this."""
        received: list[int] = []

        def handle(number: int, frame: FrameType | None) -> None:
            received.append(number)
            if len(received) > 1:  # requests are cut off now, as asked for
                uvicorn_log.setLevel(logging.CRITICAL)
            self.handle_exit(number, frame)

        uvicorn_log = logging.getLogger("uvicorn.error")
        uvicorn_log.addFilter(is_not_a_cancellation)
        is_main = threading.current_thread() is threading.main_thread()
        previous = {number: signal.signal(number, handle) for number in SIGNALS} if is_main else {}
        try:
            self.run(sockets=[listener])
        finally:
            uvicorn_log.removeFilter(is_not_a_cancellation)
            for number, handler in previous.items():
                signal.signal(number, handler)
            listener.close()
        if self.failure is not None:
            raise self.failure
        if received:
            signal.raise_signal(received[0])
