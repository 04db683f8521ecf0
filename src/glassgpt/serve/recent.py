"""The requests of the last minutes, for the Explorer: their prompts and tokens stay in memory, bounded.

Kept only where the Explorer is part of the server; otherwise nothing of a request outlives it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_REQUESTS = 200


@dataclass
class RecentRequest:
    id: str
    model: str
    prompts: list[list[int]]
    started: float  # on time.monotonic's clock
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # by prompt and sample
    outcome: str | None = None  # None while it runs

    def ids(self, prompt: int = 0, sample: int = 0) -> list[int]:
        """The prompt and what was generated after it so far."""
        return [*self.prompts[prompt], *self.tokens.get((prompt, sample), [])]


class RecentRequests:
    def __init__(self, keep_minutes: float, max_requests: int = MAX_REQUESTS) -> None:
        self.keep_seconds = 60 * keep_minutes
        self.max_requests = max_requests
        self._requests: OrderedDict[str, RecentRequest] = OrderedDict()

    def begin(self, id: str, model: str, prompts: Sequence[Sequence[int]]) -> None:
        if self.keep_seconds > 0:
            self._requests[id] = RecentRequest(id, model, [list(ids) for ids in prompts], time.monotonic())
            self._forget()

    def append(self, id: str, prompt: int, sample: int, token: int) -> None:
        request = self._requests.get(id)
        if request is not None:
            request.tokens.setdefault((prompt, sample), []).append(token)

    def end(self, id: str, outcome: str) -> None:
        if id in self._requests:
            self._requests[id].outcome = outcome

    def get(self, id: str) -> RecentRequest | None:
        self._forget()
        return self._requests.get(id)

    def latest(self) -> list[RecentRequest]:
        """The newest first."""
        self._forget()
        return list(reversed(self._requests.values()))

    def _forget(self) -> None:
        oldest = time.monotonic() - self.keep_seconds
        while self._requests:
            first = next(iter(self._requests.values()))
            if len(self._requests) <= self.max_requests and first.started >= oldest:
                return
            del self._requests[first.id]
