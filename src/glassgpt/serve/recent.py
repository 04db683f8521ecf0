"""The requests of the last minutes, for the Explorer: their prompts and tokens stay in memory, bounded.

Kept only if the server has the Explorer; otherwise nothing of a request outlives it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_REQUESTS = 200
MAX_TOKENS = 1_000_000  # of all their prompts and texts


@dataclass
class RecentRequest:
    id: str
    model: str
    prompts: list[list[int]]
    started: float  # on time.monotonic's clock
    title: str = ""  # how its first prompt begins
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # by prompt and sample
    outcome: str | None = None  # None while it runs

    def choices(self) -> list[tuple[int, int]]:
        """The texts so far, by prompt and sample. A prompt's first is there before it has a token."""
        return sorted({(prompt, 0) for prompt in range(len(self.prompts))} | self.tokens.keys())

    def ids(self, prompt: int = 0, sample: int = 0) -> list[int]:
        """The prompt and what was generated after it so far."""
        return [*self.prompts[prompt], *self.tokens.get((prompt, sample), [])]

    @property
    def length(self) -> int:
        return sum(map(len, self.prompts)) + sum(map(len, self.tokens.values()))


class RecentRequests:
    def __init__(
        self, keep_minutes: float, max_requests: int = MAX_REQUESTS, max_tokens: int = MAX_TOKENS
    ) -> None:
        self.keep_seconds = 60 * keep_minutes
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._requests: OrderedDict[str, RecentRequest] = OrderedDict()
        self._tokens = 0

    @property
    def enabled(self) -> bool:
        return self.keep_seconds > 0

    def begin(self, id: str, model: str, prompts: Sequence[Sequence[int]], title: str = "") -> None:
        if self.enabled:
            request = RecentRequest(id, model, [list(ids) for ids in prompts], time.monotonic(), title)
            self._requests[id] = request
            self._tokens += request.length
            self._forget()

    def append(self, id: str, prompt: int, sample: int, token: int) -> None:
        request = self._requests.get(id)
        if request is not None:
            request.tokens.setdefault((prompt, sample), []).append(token)
            self._tokens += 1

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
            fits = len(self._requests) <= self.max_requests and self._tokens <= self.max_tokens
            if fits and first.started >= oldest:
                return
            self._tokens -= first.length
            del self._requests[first.id]
