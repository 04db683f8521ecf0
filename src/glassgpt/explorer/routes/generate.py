"""Generation as server-sent events, until it is finished or the client disconnects."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from glassgpt.errors import QueueFullError, UserError
from glassgpt.explorer.dependencies import Explorer, ExplorerDep
from glassgpt.explorer.models import Model
from glassgpt.explorer.schemas import GenerateRequest
from glassgpt.explorer.traces import check_ids
from glassgpt.generate.engine.handle import RequestHandle
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import event_stream

router = APIRouter()

MAX_GENERATIONS = 4  # each may have a KV cache of its own

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "seed", "max_new_tokens")


@router.post("/generate")
async def generate(body: GenerateRequest, explorer: ExplorerDep) -> Response:
    model = explorer.models[body.model]
    ids = check_ids(model, body.ids, "ids")
    fields = {name: getattr(body, name) for name in SETTINGS}
    settings = SamplingParams(**fields, logprobs=1)  # with 0 they would be rounded for speed

    def start() -> RequestHandle:
        if len(explorer.running) >= MAX_GENERATIONS:  # checked in the queue, one request after the other
            raise ApiError(
                503, f"{MAX_GENERATIONS} generations are already running.", headers={"retry-after": "1"}
            )
        gpt = model.at(body.checkpoint)
        try:
            edits = explorer.traces.parse_edits(gpt, body.edits_as_dicts())
            source = gpt.open([ids], settings, edits)
        except QueueFullError as full:
            raise ApiError(503, str(full), headers={"retry-after": str(full.retry_after)}) from None
        explorer.running.add(source)
        return source

    # Before the response starts, so that a failure can still be sent as an error.
    return event_stream(stream_tokens(explorer, await explorer.queue.run(start), model))


async def stream_tokens(
    explorer: Explorer, source: RequestHandle, model: Model
) -> AsyncIterator[dict[str, Any]]:
    """One event per token. Other requests run between two tokens."""
    try:
        async for item in read_tokens(explorer, source, model):
            yield item
    except UserError as error:
        yield {"error": {"message": str(error), "field": None}}
    finally:
        source.close()
        explorer.running.discard(source)


async def read_tokens(
    explorer: Explorer, source: RequestHandle, model: Model
) -> AsyncIterator[dict[str, Any]]:
    while True:
        for _, event in await explorer.queue.run(source.read):
            if event.token is not None and event.logprob is not None:
                yield {"token": event.token, "text": model.text(event.token), "p": math.exp(event.logprob)}
            if event.generation is not None:
                done = event.generation
                yield {"done": True, "finish_reason": done.finish_reason, "seed": done.seed}
                return
