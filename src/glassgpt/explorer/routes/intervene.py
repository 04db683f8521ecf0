"""The endpoints that change something inside the model, and those that ask what an answer came from."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from glassgpt.explorer.routes.trace import API, Explorer
from glassgpt.explorer.schemas import AttributeWanted, InterveneWanted
from glassgpt.explorer.traces import Held, Traces, lens_json
from glassgpt.http.errors import Refusal
from glassgpt.http.responses import array

MOST_MOVED = 10
MOST_INTEGRATED = 128  # tokens: integrated gradients of a longer text would hold the worker for minutes


def install(app: FastAPI, explorer: Explorer) -> None:
    held = explorer.traces

    @app.post(f"{API}/intervene")
    async def intervene(wanted: InterveneWanted, request: Request) -> Response:
        return await explorer.answer(request, lambda: intervene_json(held[wanted.id], wanted, held))

    @app.post(f"{API}/attribute")
    async def attribute(wanted: AttributeWanted, request: Request) -> Response:
        return await explorer.answer(request, lambda: attribute_json(held[wanted.id], wanted))


def intervene_json(held: Held, wanted: InterveneWanted, others: Traces) -> dict[str, Any]:
    """The same text with parts switched off, patched or pushed, beside what it was."""
    from glassgpt.inspect import edit_from_dict

    token = held.token(len(held.trace) - 1 if wanted.token is None else wanted.token)
    edits = [edit.model_dump(exclude_none=True) for edit in wanted.edits]
    sources = {edit["source"]: source_of(others, edit["source"], held) for edit in edits if "source" in edit}
    made = [edit_from_dict(edit, sources) for edit in edits]
    found = held.gpt.intervene(held.trace, made, position=token)
    size = held.model.n_tokens
    return {
        "logits": array(found.logits[:size]),
        "before": array(found.logits_before[:size]),
        "kl": found.kl,
        "kl_per_token": found.kl_per_token,
        "moved": [
            {"id": each.id, "text": each.text, "before": each.before, "after": each.after}
            for each in found.moved(MOST_MOVED)
        ],
        "lens": lens_json(held.model, found.lens()),
    }


def source_of(others: Traces, id: str, held: Held) -> Any:
    """The trace that a patch takes its numbers from: one of the same model."""
    source = others[id]
    if source.gpt.config.shapes() != held.gpt.config.shapes():
        raise Refusal(422, "source: a patch needs a trace of a model of the same shape.", "source")
    return source.trace


def attribute_json(held: Held, wanted: AttributeWanted) -> dict[str, Any]:
    """What the score of a next token is owed to: the tokens before it, or the parts of the model."""
    from glassgpt.inspect.attribute import DirectLogit

    token = held.token(wanted.token)
    if wanted.target >= held.model.n_tokens:
        raise Refusal(422, f"target: {wanted.target} is no token id of this model.", "target")
    if wanted.method == "integrated" and token >= MOST_INTEGRATED:
        raise Refusal(
            422, f"token: integrated gradients are for the first {MOST_INTEGRATED} tokens here.", "token"
        )
    found = held.gpt.attribute(held.trace, wanted.target, wanted.method, token)
    if isinstance(found, DirectLogit):
        return {
            "embedding": found.embedding,
            "heads": found.heads,
            "mlps": found.mlps,
            "rest": found.rest,
            "total": found.total,
            "logit": found.logit,
        }
    return {"scores": found.scores, "gap": found.gap, "logit": found.logit}
