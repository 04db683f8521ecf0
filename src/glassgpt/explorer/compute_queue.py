"""The model computes for one request at a time, in a thread, while others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio.to_thread
from starlette.requests import Request

from glassgpt.http.errors import ApiError

T = TypeVar("T")


class ComputeQueue:
    """At most `max_queue` requests wait; further ones fail with 503."""

    def __init__(self, max_queue: int = 64) -> None:
        self.max_queue = max_queue
        self.active = 0  # waiting or running
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], T], request: Request | None = None) -> T:
        """Run `work` when its turn comes, unless the client has disconnected by then."""
        async with self._enqueue(), self._lock:
            if request is not None and await request.is_disconnected():
                raise ApiError(499, "The client has disconnected.")
            return await anyio.to_thread.run_sync(work)

    @asynccontextmanager
    async def _enqueue(self) -> AsyncIterator[None]:
        if self.active > self.max_queue:
            raise ApiError(
                503,
                f"{self.max_queue} requests are already waiting. Try again in a moment.",
                headers={"retry-after": "1"},
            )
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
