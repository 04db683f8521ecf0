"""Under overload, most requests are refused. That has to be cheap, because the others wait meanwhile.

So a request for completions is refused before it is parsed if no such request could be admitted now, which
takes a third of the time of refusing it afterwards.
"""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from glassgpt.errors import QueueFullError
from glassgpt.http.errors import ApiError, error_response, openai_error
from glassgpt.serve.state import ServerState

PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/api/generate", "/api/chat"})
REMEMBER = 0.01  # seconds that a refusal holds: checking takes a lock that the engine's thread needs


def refuse(state: ServerState, model: str, full: QueueFullError) -> ApiError:
    """The error for a request that would have to wait too long."""
    state.metrics.requests.labels(model, "rejected").inc()
    return ApiError(429, str(full), None, {"retry-after": str(full.retry_after)}, code="queue_full")


class OverloadMiddleware:
    """ASGI middleware that answers 429 while every model has too much to do."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self.state = state
        self._refused: dict[str, QueueFullError] = {}  # by client, in the last moment
        self._forget_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        full = self._check_again(scope["client"][0] if scope.get("client") else "")
        if full is None:
            await self.app(scope, receive, send)
            return
        while (await receive()).get("more_body"):  # a connection is kept only if the body was read
            pass
        error = refuse(self.state, next(iter(self.state.pool.specs)), full)
        response = error_response(
            error.status_code, error.message, None, error.headers, code=error.code, format=openai_error
        )
        await response(scope, receive, send)

    def _check_again(self, client: str) -> QueueFullError | None:
        now = time.monotonic()
        if now >= self._forget_at:
            self._refused.clear()
            self._forget_at = now + REMEMBER
        full = self._refused.get(client)
        if full is None:
            full = self._check(client)
            if full is not None:
                self._refused[client] = full
        return full

    def _check(self, client: str) -> QueueFullError | None:
        """Why no model takes another request; None if one might."""
        pool = self.state.pool
        if self.state.draining or not all(map(pool.is_loaded, pool.specs)):
            return None
        full = None
        for model in pool.loaded.values():
            try:
                model.service.check_wait(client)
            except QueueFullError as error:
                full = error
            else:
                return None
        return full
