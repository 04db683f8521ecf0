"""Every request has an id, is counted by its path and status, and is a line of JSON in the log if asked for.

The id is the client's own `x-request-id` if that is short and plain, otherwise a new one. The response has
the same header.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassgpt.serve.metrics import Metrics

log = logging.getLogger("glassgpt.serve")

HEADER = "x-request-id"
SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
DETAILS = "glassgpt.log"  # the scope's entry for what an endpoint adds to the log line
PROBES = ("/health", "/ready", "/metrics")  # counted, but not logged: they come every few seconds
ABANDONED = 499  # nginx's status for a client that left before it got one


class RequestLogMiddleware:
    """ASGI middleware, the first that a request meets, so that refused requests are counted and logged as
    well.

    `paths` are those of the endpoints; any other is counted as "other": otherwise anyone could fill the
    memory with names.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str], write: bool) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths
        self.write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), ABANDONED
        sent_id = Headers(scope=scope).get(HEADER, "")
        number = sent_id if SANE_ID.fullmatch(sent_id) else f"req-{uuid.uuid4().hex}"
        scope[DETAILS] = {}

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(raw=message.setdefault("headers", []))[HEADER] = number
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.responses.labels(path, str(status)).inc()
            if self.write and path not in PROBES:
                self._write(scope, number, status, time.monotonic() - begun)

    def _write(self, scope: Scope, number: str, status: int, seconds: float) -> None:
        client = scope.get("client")
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "request_id": number,
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            **scope[DETAILS],
        }
        log.info(json.dumps(line))  # ASCII: no path or prompt can end the line or steer a terminal
