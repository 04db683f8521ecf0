"""What the requests of one server have in common."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import anyio
from fastapi import Depends, Request

from glassgpt.errors import QueueFullError
from glassgpt.generate.sampling.grammar_checker import MAX_WAITING
from glassgpt.http.errors import ApiError
from glassgpt.serve.completions import Completion, Delivery
from glassgpt.serve.metrics import Metrics
from glassgpt.serve.models import ModelPool
from glassgpt.serve.recent import RecentRequests
from glassgpt.serve.settings import ServerSettings

MAX_COMPILING = 4  # grammars of one client that are compiled or wait for it
TITLE_TOKENS = 20  # of a prompt, in the list of requests


class ServerState:
    def __init__(self, pool: ModelPool, settings: ServerSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.metrics = Metrics(pool)
        self.recent = RecentRequests(settings.keep_minutes if settings.explorer else 0)
        self.admitted = 0  # requests that will be answered, even if the server shuts down now
        self.draining = False
        self.failed: BaseException | None = None  # why a model could not be loaded
        self.on_failure: Callable[[], None] = lambda: None
        self.compilers = anyio.CapacityLimiter(MAX_WAITING + 1)  # threads that wait for grammars
        self._compiling: Counter[str] = Counter()  # grammars by client
        self._idle = asyncio.Event()
        self._idle.set()
        self._delivery: Delivery | None = None

    @property
    def delivery(self) -> Delivery:
        if self._delivery is None:
            self._delivery = Delivery(asyncio.get_running_loop())
        return self._delivery

    async def load_models(self, load: Callable[[], Awaitable[None]]) -> None:
        try:
            await load()
        except Exception as error:
            self.failed = error
            self.on_failure()

    def check_available(self) -> None:
        if self.draining:
            raise ApiError(
                503, "The server is shutting down.", None, {"retry-after": "1", "connection": "close"},
                code="shutting_down",
            )  # fmt: skip
        if not self.pool.ready:
            raise ApiError(503, "The model is being loaded.", None, {"retry-after": "1"}, code="loading")

    def refuse(self, model: str, full: QueueFullError) -> ApiError:
        """The error for a request that would have to wait too long."""
        self.metrics.requests.labels(model, "rejected").inc()
        return ApiError(429, str(full), None, {"retry-after": str(full.retry_after)}, code="queue_full")

    @contextmanager
    def compiling(self, client: str) -> Iterator[None]:
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

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a request: the server does not end before it is finished."""
        self.check_available()
        self.admitted += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.admitted -= 1
            if not self.admitted:
                self._idle.set()

    def begin(self, completion: Completion) -> None:
        name, prompts = completion.model.name, [ids for _, ids in completion.prompts]
        self.metrics.prompt_tokens.labels(name).inc(sum(map(len, prompts)))
        if self.recent.enabled:
            start = completion.model.texts.decode(prompts[0][:TITLE_TOKENS])
            self.recent.begin(completion.id, name, prompts, start + "…" * (len(prompts[0]) > TITLE_TOKENS))

    def end(self, completion: Completion, outcome: str) -> None:
        name, now = completion.model.name, time.monotonic()
        job = completion.jobs[0]
        self.metrics.requests.labels(name, outcome).inc()
        self.metrics.request_time.labels(name).observe(now - job.submitted)
        if job.started is not None:
            self.metrics.queue_time.labels(name).observe(job.started - job.submitted)
        self.recent.end(completion.id, outcome)
        self._note(completion, outcome)

    def _note(self, completion: Completion, outcome: str) -> None:
        """What the log says of a request beside its path and status; prompts only where asked for."""
        details = completion.log_details
        details |= {
            "completion_id": completion.id,
            "model": completion.model.name,
            "outcome": outcome,
            "prompt_tokens": sum(len(ids) for _, ids in completion.prompts),
            "completion_tokens": completion.generated,
        }
        if self.settings.log == "prompts":
            details["prompts"] = [completion.model.texts.decode(ids) for _, ids in completion.prompts]

    async def wait_until_idle(self) -> None:
        await self._idle.wait()


async def get_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


StateDep = Annotated[ServerState, Depends(get_state)]
