"""The model computes for one request at a time, in a thread: others are answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio.to_thread
from starlette.requests import Request

from glassgpt.http.errors import Refusal

T = TypeVar("T")


class Worker:
    """At most `waiting` requests stand in line; a further one is told to come again (503)."""

    def __init__(self, waiting: int = 64) -> None:
        self.most = waiting
        self.inside = 0  # in line or at work
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[], T], request: Request | None = None) -> T:
        """The result of `work`, when its turn has come. Nothing is done for a client that left before."""
        async with self._line(), self._turn:
            if request is not None and await request.is_disconnected():
                raise Refusal(499, "The client has left.")
            return await anyio.to_thread.run_sync(work)

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[None]:
        if self.inside > self.most:
            raise Refusal(
                503,
                f"{self.most} requests are waiting already. Try again in a moment.",
                headers={"retry-after": "1"},
            )
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
