"""The way of a job's updates from the service's thread to the request that waits for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from glassgpt.generate.service.service import Job, Update


class Ended(Enum):
    """Why nobody waits for a request anymore."""

    DISCONNECTED = "disconnected"
    TIMED_OUT = "timeout"


Inbox = asyncio.Queue[Update | Ended]


@dataclass(eq=False)
class CompletionJob(Job):
    """A job that knows its place in a request for completions, and where its updates are awaited."""

    inbox: Inbox = field(default_factory=asyncio.Queue)
    index: int = 0
    rates: bool = False  # it only says how likely the suffix is after a guess


class Delivery:
    """Brings updates from the threads of services to the event loop, once for all requests of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, updates: list[Update]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_out, updates)

    def _hand_out(self, updates: list[Update]) -> None:
        for update in updates:
            assert isinstance(update.job, CompletionJob)
            update.job.inbox.put_nowait(update)
