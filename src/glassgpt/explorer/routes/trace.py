"""Read-only endpoints: the models, and the steps of a trace in the order the page asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

import glassgpt
from glassgpt.explorer.dependencies import Explorer, ExplorerDep, Index
from glassgpt.explorer.models import Model
from glassgpt.explorer.schemas import AppendRequest, CompareRequest, TraceRequest
from glassgpt.explorer.traces import CachedTrace, max_tokens, trace_json
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import encode_array, json_response
from glassgpt.inspect.tally import ILLUSTRATED_TOTAL, illustrated_count, tally
from glassgpt.inspect.taps import BLOCK_STEPS

router = APIRouter()

# The steps of a block that each endpoint sends, by their names in inspect/taps.py.
HEAD_STEPS = [step for step, dims in BLOCK_STEPS.items() if dims.startswith("H")]
ATTENTION_STEPS = ["ln_1", "attn.merged", "attn.proj", "resid_mid"]
MLP_STEPS = ["resid_mid", "ln_2", "mlp.fc", "mlp.gelu", "mlp.proj", "resid_post"]


@router.get("/model")
def get_model(explorer: ExplorerDep) -> Response:
    return json_response(model_json(explorer))


@router.get("/vocabulary")
def get_vocabulary(explorer: ExplorerDep, model: Index = 0) -> Response:
    return json_response({"texts": explorer.models[model].texts})


@router.get("/tally")
def get_tally(explorer: ExplorerDep, model: Index = 0) -> Response:
    return json_response(tally_json(explorer.models[model]))


@router.post("/trace")
async def trace_text(body: TraceRequest, request: Request, explorer: ExplorerDep) -> Response:
    def work() -> Any:
        return trace_json(explorer.traces.get_or_trace(body.model, body.checkpoint, body.text, body.ids))

    return await explorer.respond(request, work)


@router.post("/trace/{id}/append")
async def append_token(id: str, body: AppendRequest, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: trace_json(explorer.traces.append(id, body.token)))


@router.get("/trace/{id}/patterns")
async def get_patterns(id: str, layer: Index, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: patterns_json(explorer.traces[id], layer))


@router.get("/trace/{id}/head")
async def get_head(
    id: str, layer: Index, head: Index, position: Index, request: Request, explorer: ExplorerDep
) -> Response:
    return await explorer.respond(request, lambda: head_json(explorer.traces[id], layer, head, position))


@router.get("/trace/{id}/mlp")
async def get_mlp(
    id: str, layer: Index, position: Index, request: Request, explorer: ExplorerDep
) -> Response:
    return await explorer.respond(request, lambda: mlp_json(explorer.traces[id], layer, position))


@router.get("/trace/{id}/next")
async def get_next(id: str, position: Index, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: next_json(explorer.traces[id], position))


@router.post("/compare")
async def compare_models(body: CompareRequest, request: Request, explorer: ExplorerDep) -> Response:
    def work() -> Any:
        a, b = (
            explorer.traces.get_or_trace(choice.model, choice.checkpoint, body.text, body.ids)
            for choice in (body.a, body.b)
        )
        return compare_json(a, b)

    return await explorer.respond(request, work)


def model_json(explorer: Explorer) -> dict[str, Any]:
    first = explorer.models[0]
    return {
        "models": [model.describe() for model in explorer.models.all],
        "checkpoints": [{"name": f"step {step:,}", "step": step} for step in first.checkpoints],
        "limits": {"tokens": max_tokens(first), "traces": explorer.traces.max_traces},
        "version": glassgpt.__version__,
    }


def patterns_json(cached: CachedTrace, layer: int) -> dict[str, Any]:
    weights = cached.trace.attention[cached.check_layer(layer)]  # (H, T, T)
    return {"attn.weights": encode_array(np.rint(weights * 255), "u8")}


def head_json(cached: CachedTrace, layer: int, head: int, position: int) -> dict[str, Any]:
    """One head at one position, from the block's input (`resid_pre`) to `resid_mid`.

    Keys and values are those of the whole text; `unmasked` is what the softmax would be without the mask.
    """
    layer, head = cached.check_layer(layer), cached.check_head(head)
    position = cached.check_position(position)
    found = cached.trace.read(*(f"h.{layer}.{step}" for step in [*HEAD_STEPS, *ATTENTION_STEPS]))
    steps: dict[str, Any] = {"resid_pre": cached.trace.residual[layer][position]}
    for step in ATTENTION_STEPS:
        steps[step] = found[f"h.{layer}.{step}"][position]  # (C,)
    for step in HEAD_STEPS:
        values = found[f"h.{layer}.{step}"][head]  # (T, D) or (T, T)
        steps[step] = values if step in ("attn.k", "attn.v") else values[position]
    steps["unmasked"] = softmax(steps["attn.scaled"])
    return {step: np.ascontiguousarray(values) for step, values in steps.items()}


def mlp_json(cached: CachedTrace, layer: int, position: int) -> dict[str, Any]:
    layer, position = cached.check_layer(layer), cached.check_position(position)
    found = cached.trace.read(*(f"h.{layer}.{step}" for step in MLP_STEPS))
    return {step: np.ascontiguousarray(found[f"h.{layer}.{step}"][position]) for step in MLP_STEPS}


def next_json(cached: CachedTrace, position: int) -> dict[str, Any]:
    """The next-token logits at a position, of the ids that stand for text."""
    logits = cached.trace.logits_at(cached.check_position(position))
    return {"logits": encode_array(logits[: cached.model.n_tokens])}


def compare_json(a: CachedTrace, b: CachedTrace) -> dict[str, Any]:
    """Two models on one text, with KL(a || b) of the next-token distributions at each position, in nats."""
    from glassgpt.inspect.intervene import kl_per_token

    if vocabulary_key(a.model) != vocabulary_key(b.model):
        raise ApiError(
            422,
            f"{a.gpt.name} and {b.gpt.name} have different vocabularies, so their tokens cannot be compared. "
            "Compare two models with the same vocabulary, or two checkpoints of a run.",
            "b",
        )
    return {
        "a": trace_json(a),
        "b": trace_json(b),
        "kl": kl_per_token(a.trace, b.trace),
        "p_difference": np.ascontiguousarray(b.trace.token_loss.p - a.trace.token_loss.p),
    }


def vocabulary_key(model: Model) -> str | int:
    return model.n_tokens if model.tokenizer is None else model.tokenizer.hash


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return np.asarray(weights / weights.sum())


def tally_json(model: Model) -> dict[str, Any]:
    """Every tensor of the model, and the table of GPT-2 small from The Illustrated GPT-2."""
    counted, small = tally(model.gpt.config), tally("gpt2")
    return {
        "rows": [
            {
                "name": line.name,
                "short": line.short,
                "block": line.block,
                "meaning": line.meaning,
                "shape": list(line.shape),
                "count": line.count,
            }
            for line in counted.lines
        ],
        "total": counted.total,
        "per_block": counted.per_block,
        "cache_bytes_per_token": counted.cache_per_token(),
        "illustrated": [
            {
                "name": line.name,
                "shape": list(line.shape),
                "count": illustrated_count(line),
                "published": line.count,
            }
            for line in small.lines
        ],
        "illustrated_total": ILLUSTRATED_TOTAL,
        "published_total": small.total,
    }
