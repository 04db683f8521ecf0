"""The state that all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

import anyio
from fastapi import Depends, Request

from glassgpt.http.errors import ApiError
from glassgpt.serve.delivery import Delivery
from glassgpt.serve.grammars import GrammarCompilers
from glassgpt.serve.metrics import Metrics
from glassgpt.serve.models import LoadedModel, ModelPool
from glassgpt.serve.observer import RequestObserver
from glassgpt.serve.recent import RecentRequests
from glassgpt.serve.request_log import DETAILS
from glassgpt.serve.settings import ServerSettings

MAX_EMBEDDING_REQUESTS = 32  # that may wait


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
        self.compilers = GrammarCompilers()
        self._idle = asyncio.Event()
        self._idle.set()
        self._delivery: Delivery | None = None
        self._embedding = anyio.CapacityLimiter(1)

    @property
    def delivery(self) -> Delivery:
        if self._delivery is None:
            self._delivery = Delivery(asyncio.get_running_loop())
        return self._delivery

    @asynccontextmanager
    async def embedding(self) -> AsyncIterator[None]:
        """Embeddings are computed for one request at a time; few may wait."""
        if self._embedding.statistics().tasks_waiting >= MAX_EMBEDDING_REQUESTS:
            raise ApiError(
                429, "Too many requests for embeddings are waiting.", None, {"retry-after": "1"},
                code="queue_full",
            )  # fmt: skip
        async with self._embedding:
            yield

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

    def observe(self, request: Request, model: LoadedModel) -> RequestObserver:
        log_line = request.scope.get(DETAILS, {})
        return RequestObserver(self.metrics, self.recent, model, log_line, self.settings.log == "prompts")

    async def wait_until_idle(self) -> None:
        await self._idle.wait()


async def get_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


StateDep = Annotated[ServerState, Depends(get_state)]
