"""The endpoint that writes: tokens as server-sent events, until enough were made or the reader left."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

from fastapi import FastAPI
from starlette.responses import Response

from glassgpt.explorer import traces
from glassgpt.explorer.models import Model
from glassgpt.explorer.routes.trace import API, Explorer
from glassgpt.explorer.schemas import GenerateWanted
from glassgpt.generate.engine import Engine
from glassgpt.generate.settings import Settings
from glassgpt.http.errors import Refusal
from glassgpt.http.responses import events

MOST_WRITERS = 4  # each has a cache of its own

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "seed", "max_new_tokens")


def install(app: FastAPI, explorer: Explorer) -> None:
    writers: WeakSet[Engine] = WeakSet()  # an answer that is dropped takes its engine along

    @app.post(f"{API}/generate")
    async def generate(wanted: GenerateWanted) -> Response:
        model = explorer.models[wanted.model]
        ids = traces.checked_ids(model, wanted.ids, "ids")
        settings = Settings(**{name: getattr(wanted, name) for name in SETTINGS})

        def begin() -> Engine:
            if len(writers) >= MOST_WRITERS:  # here, where one request follows the other
                raise Refusal(
                    503, f"{MOST_WRITERS} texts are being written already.", headers={"retry-after": "1"}
                )
            gpt = model.at(wanted.checkpoint)
            engine = Engine(gpt.backend.with_rows(1), model.tokenizer)
            engine.add(ids, settings)
            writers.add(engine)
            return engine

        # Before the answer begins, so that what cannot be done is still told as an error.
        return events(tokens(explorer, await explorer.worker.run(begin), model))


async def tokens(explorer: Explorer, engine: Engine, model: Model) -> AsyncIterator[dict[str, Any]]:
    """One event for each token. Other requests get their turn between two of them."""
    while engine.busy:
        for event in await explorer.worker.run(engine.step):
            if event.error is not None:
                yield {"error": {"message": str(event.error), "field": None}}
                return
            if event.token is not None and event.logprob is not None:
                yield {"token": event.token, "text": model.text(event.token), "p": math.exp(event.logprob)}
            if event.generation is not None:
                yield {"done": True, "why": event.generation.finish_reason, "seed": event.generation.seed}
                return
