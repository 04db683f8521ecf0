"""Endpoints that edit the forward pass, and those that attribute its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from glassgpt.explorer.dependencies import ExplorerDep
from glassgpt.explorer.schemas import AttributeRequest, InterveneRequest
from glassgpt.explorer.traces import CachedTrace, TraceCache, lens_json
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import encode_array

if TYPE_CHECKING:
    from glassgpt.inspect import Intervention

router = APIRouter()

TOP_CHANGES = 10
MAX_INTEGRATED = 128  # tokens: integrated gradients of a longer text would block the queue for minutes


@router.post("/intervene")
async def intervene(body: InterveneRequest, request: Request, explorer: ExplorerDep) -> Response:
    traces = explorer.traces
    return await explorer.respond(request, lambda: intervene_json(traces[body.id], body, traces))


@router.post("/attribute")
async def attribute(body: AttributeRequest, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: attribute_json(explorer.traces[body.id], body))


def intervene_json(cached: CachedTrace, body: InterveneRequest, traces: TraceCache) -> dict[str, Any]:
    """The text with edits, compared with the text without: at one position, and all over the tower."""
    position = cached.check_position(len(cached.trace) - 1 if body.position is None else body.position)
    result = traces.intervene(cached, body.edits_as_dicts()).at(position)
    if body.only == "next":
        return next_token_json(cached, result)
    columns = {
        "first": cached.check_position(0 if body.first is None else body.first),
        "last": cached.check_position(len(cached.trace) - 1 if body.last is None else body.last),
    }
    if body.only == "lens":
        return columns | {"lens": columns_json(cached, result, **columns)}
    return (
        next_token_json(cached, result)
        | columns
        | {
            "logits_before": encode_array(result.logits_before[: cached.model.n_tokens]),
            "kl_per_token": result.kl_per_token,
            "lens": columns_json(cached, result, **columns),
        }
    )


def next_token_json(cached: CachedTrace, found: Intervention) -> dict[str, Any]:
    size = cached.model.n_tokens
    return {
        "logits": encode_array(found.logits[:size]),
        "kl": found.kl,
        "changes": [
            {"id": each.id, "text": cached.model.text(each.id), "before": each.before, "after": each.after}
            for each in found.top_changes(TOP_CHANGES)
        ],
    }


def columns_json(cached: CachedTrace, found: Intervention, first: int, last: int) -> dict[str, Any]:
    """The lens of some columns of the tower: those that can be seen."""
    if first > last:
        raise ApiError(422, f"last: {last} is before the first position, {first}.", "last")
    ids, p = found.after.lens_top_k(1, first, last)
    return lens_json(cached.model, ids[..., 0], p[..., 0])


def attribute_json(cached: CachedTrace, body: AttributeRequest) -> dict[str, Any]:
    """The attribution of a next token's logit, to tokens or to parts of the model."""
    from glassgpt.inspect.attribution.attribute import DirectLogitAttribution

    position = cached.check_position(body.position)
    if body.target >= cached.model.n_tokens:
        raise ApiError(422, f"target: {body.target} is not a token id of this model.", "target")
    if body.method == "integrated_gradients" and position >= MAX_INTEGRATED:
        raise ApiError(
            422,
            f"position: integrated gradients are limited to the first {MAX_INTEGRATED} tokens here.",
            "position",
        )
    scored = cached.gpt.attribute(cached.trace, body.target, body.method, position)
    if isinstance(scored, DirectLogitAttribution):
        return {
            "embedding": scored.embedding,
            "heads": scored.heads,
            "mlps": scored.mlps,
            "biases": scored.biases,
            "total": scored.total,
            "logit": scored.logit,
        }
    return {"scores": scored.scores, "convergence_delta": scored.convergence_delta, "logit": scored.logit}
