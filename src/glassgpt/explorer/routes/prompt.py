"""How a prompt comes about: examples, text mixed with special tokens, a MIDI file."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from glassgpt.explorer.dependencies import ExplorerDep, Index
from glassgpt.explorer.examples import examples_json
from glassgpt.explorer.models import Model
from glassgpt.explorer.schemas import TokenizePartsRequest
from glassgpt.explorer.traces import check_ids
from glassgpt.http.errors import ApiError
from glassgpt.tokenizer import EventTokenizer

router = APIRouter()

# Of a MIDI file: enough for a phrase, few enough for the page to show all heads, with room to go on.
MAX_EVENTS = 160


@router.get("/examples")
async def get_examples(request: Request, explorer: ExplorerDep, model: Index = 0) -> Response:
    return await explorer.respond(request, lambda: examples_json(explorer.models[model]))


@router.post("/tokenize")
async def tokenize(body: TokenizePartsRequest, request: Request, explorer: ExplorerDep) -> Response:
    """The ids of a text in parts: what was typed, and tokens that were picked."""

    def work() -> Any:
        model = explorer.models[body.model]
        parts = [model.encode(part) if isinstance(part, str) else part for part in body.parts]
        return {"ids": check_ids(model, [id for ids in parts for id in ids], "parts")}

    return await explorer.respond(request, work)


@router.post("/midi")
async def read_midi(request: Request, explorer: ExplorerDep, model: Index = 0) -> Response:
    """A MIDI file, the body, as the events of a model of music."""
    data = await request.body()
    return await explorer.respond(request, lambda: midi_json(explorer.models[model], data))


def midi_json(model: Model, data: bytes) -> dict[str, Any]:
    from glassgpt.music.event_codec import PerformanceTokenizer
    from glassgpt.music.midi import parse_midi

    tokenizer = model.tokenizer
    if not isinstance(tokenizer, EventTokenizer):
        raise ApiError(
            422,
            f"{model.gpt.name} is not a model of music. Pick one, such as music, for a MIDI file.",
            "model",
        )
    performance = parse_midi(data, "The file")
    if len(performance) == 0:
        raise ApiError(422, "The file has no notes (drums are left out). Choose another.", "body")
    first = float(performance.start.min())  # the rest before the first note
    events = PerformanceTokenizer(tokenizer.events.name).encode(performance.crop(first, performance.seconds))
    ids = [tokenizer.eot_id, *events[:MAX_EVENTS].tolist()]
    return {
        "ids": check_ids(model, ids, "body"),
        "events": len(events),
        "seconds": performance.seconds - first,
    }
