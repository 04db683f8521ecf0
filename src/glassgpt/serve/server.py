"""The process: it listens while models are loaded, drains at the first signal, and ends at the second."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from types import FrameType

from fastapi import FastAPI

from glassgpt.http.connection_limits import ConnectionLimits, make_uvicorn_config
from glassgpt.http.errors import openai_error
from glassgpt.http.server import QuietServer
from glassgpt.serve.state import ServerState

LIMITS = ConnectionLimits(max_connections=1000, max_per_client=600)
# Seconds after which a thread that runs Python lets another: after each step of the model its thread waits so
# long for the one that answers requests. `benchmarks/serve.py overload`, 99th percentile of first tokens: 48,
# 67 and 137 ms, with Python's 5 ms 128 and 202. These vary as widely as that; tokens/s do not change.
SWITCH_INTERVAL = 0.0005


class Server(QuietServer):
    """A server with a first signal that lets admitted requests finish while new ones get 503."""

    def __init__(
        self,
        app: FastAPI,
        drain_timeout: float = 30,
        limits: ConnectionLimits = LIMITS,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        config = make_uvicorn_config(app, limits, openai_error)
        config.timeout_graceful_shutdown = 5  # for responses that are computed, but not read yet
        super().__init__(config, on_start)
        self.state: ServerState = app.state.server
        self.drain_timeout = drain_timeout
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.state.on_failure = self._exit
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for SIGINT and SIGTERM."""
        self._signals += 1
        if self._signals > 1 or self._loop is None:
            self.force_exit = True
            self._exit()
        else:
            self._loop.call_soon_threadsafe(self._start_draining)

    def _start_draining(self) -> None:
        self.state.draining = True
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await asyncio.wait_for(self.state.wait_until_idle(), self.drain_timeout)
        except TimeoutError:
            self.force_exit = True
        self._exit()

    def _exit(self) -> None:
        self.should_exit = True


def run(
    app: FastAPI,
    listener: socket.socket,
    *,
    drain_timeout: float = 30,
    limits: ConnectionLimits = LIMITS,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal. Raises the error of a model that could not be loaded."""

    server = Server(app, drain_timeout, limits, on_start)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        server.run_until_signal(listener)
    except KeyboardInterrupt:  # the signal that ended it
        pass
    finally:
        sys.setswitchinterval(before)
        server.state.pool.close()  # a thread that computes while Python ends would crash it
    if server.state.failed is not None:
        raise server.state.failed
