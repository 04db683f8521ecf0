"""Generation as server-sent events, until it is finished or the client disconnects."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from glassgpt.explorer.dependencies import Explorer, ExplorerDep
from glassgpt.explorer.models import Model
from glassgpt.explorer.schemas import GenerateRequest
from glassgpt.explorer.traces import check_ids
from glassgpt.generate.engine import Engine
from glassgpt.generate.settings import Settings
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import event_stream

router = APIRouter()

MAX_GENERATIONS = 4  # each has a KV cache of its own

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "seed", "max_new_tokens")


@router.post("/generate")
async def generate(body: GenerateRequest, explorer: ExplorerDep) -> Response:
    model = explorer.models[body.model]
    ids = check_ids(model, body.ids, "ids")
    settings = Settings(**{name: getattr(body, name) for name in SETTINGS})

    def start() -> Engine:
        if len(explorer.engines) >= MAX_GENERATIONS:  # checked in the worker, one request after the other
            raise ApiError(
                503, f"{MAX_GENERATIONS} generations are already running.", headers={"retry-after": "1"}
            )
        gpt = model.at(body.checkpoint)
        engine = Engine(gpt.backend.with_rows(1), model.tokenizer)
        engine.add(ids, settings)
        explorer.engines.add(engine)
        return engine

    # Before the response starts, so that a failure can still be sent as an error.
    return event_stream(stream_tokens(explorer, await explorer.worker.run(start), model))


async def stream_tokens(explorer: Explorer, engine: Engine, model: Model) -> AsyncIterator[dict[str, Any]]:
    """One event per token. Other requests run between two tokens."""
    while engine.busy:
        for event in await explorer.worker.run(engine.step):
            if event.error is not None:
                yield {"error": {"message": str(event.error), "field": None}}
                return
            if event.token is not None and event.logprob is not None:
                yield {"token": event.token, "text": model.text(event.token), "p": math.exp(event.logprob)}
            if event.generation is not None:
                done = event.generation
                yield {"done": True, "finish_reason": done.finish_reason, "seed": done.seed}
                return
