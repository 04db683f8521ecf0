"""What all routes have in common: the models, the trace cache and the queue of what is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakSet

from fastapi import Depends, Query, Request
from starlette.responses import Response

from glassgpt.explorer.compute_queue import ComputeQueue
from glassgpt.explorer.models import Models
from glassgpt.explorer.traces import TraceCache
from glassgpt.generate.engine.handle import RequestHandle
from glassgpt.http.responses import json_response

if TYPE_CHECKING:
    pass

API = "/api/v1"
PAGE = files("glassgpt.explorer") / "page"

Index = Annotated[int, Query(ge=0, lt=2**31)]


@dataclass
class Explorer:
    """The state of one server."""

    models: Models
    traces: TraceCache
    queue: ComputeQueue
    running: WeakSet[RequestHandle] = field(default_factory=WeakSet)  # now generating

    async def respond(self, request: Request, work: Callable[[], Any]) -> Response:
        """Run `work` when its turn comes, and send its result as JSON."""
        return await self.queue.run(lambda: json_response(work()), request)


async def get_explorer(request: Request) -> Explorer:
    explorer: Explorer = request.app.state.explorer
    return explorer


ExplorerDep = Annotated[Explorer, Depends(get_explorer)]
