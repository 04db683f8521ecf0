"""Compiling grammars in threads: neither the event loop nor the engine waits for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio.to_thread

from glassgpt.errors import QueueFullError
from glassgpt.generate.sampling.grammar_checker import MAX_WAITING
from glassgpt.generate.service.service import Job, Service

MAX_COMPILING = 4  # grammars of one client that are compiled or wait for it


class GrammarCompilers:
    """The threads that compile grammars. A client has at most `MAX_COMPILING` at a time."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(MAX_WAITING + 1)
        self._compiling: Counter[str] = Counter()  # by client

    async def compile(self, service: Service, jobs: Sequence[Job], client: str) -> None:
        with self.turn(client):
            await anyio.to_thread.run_sync(
                service.compile, jobs, abandon_on_cancel=True, limiter=self._threads
            )

    @contextmanager
    def turn(self, client: str) -> Iterator[None]:
        """Let a client have a grammar compiled, unless it has enough of them waiting."""
        if self._compiling[client] >= MAX_COMPILING:
            raise QueueFullError(
                f"{MAX_COMPILING} grammars of yours wait to be compiled. Try again in a moment."
            )
        self._compiling[client] += 1
        try:
            yield
        finally:
            self._compiling[client] -= 1
            if not self._compiling[client]:
                del self._compiling[client]
