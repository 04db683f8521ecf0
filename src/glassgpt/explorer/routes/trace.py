"""The endpoints that look, in the order the page asks. Each is a few lines over `gpt.trace` and its kin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from starlette.responses import Response

import glassgpt
from glassgpt.explorer import traces
from glassgpt.explorer.models import Model, Models
from glassgpt.explorer.schemas import AppendWanted, CompareWanted, TraceWanted
from glassgpt.explorer.traces import Held, Traces
from glassgpt.http.errors import Refusal
from glassgpt.http.responses import array, json_response
from glassgpt.http.worker import Worker
from glassgpt.inspect.tally import ILLUSTRATED_TOTAL, illustrated_count, tally

API = "/api/v1"

Number = Annotated[int, Query(ge=0, lt=2**31)]

# What the page calls each step, and what the model calls it.
HEAD_STEPS = {
    "q": "attn.q",
    "k": "attn.k",
    "v": "attn.v",
    "scores": "attn.scores",
    "scaled": "attn.scaled",
    "masked": "attn.masked",
    "weights": "attn.weights",
    "z": "attn.z",
}
ATTENTION_STEPS = {"ln_1": "ln_1", "merged": "attn.merged", "projected": "attn.proj", "x_mid": "resid_mid"}
MLP_STEPS = {
    "x_mid": "resid_mid",
    "ln_2": "ln_2",
    "pre": "mlp.fc",
    "post": "mlp.gelu",
    "out": "mlp.proj",
    "x_out": "resid_post",
}


@dataclass
class Explorer:
    """What all endpoints share."""

    models: Models
    traces: Traces
    worker: Worker

    async def answer(self, request: Request, work: Callable[[], Any]) -> Response:
        """The JSON that `work` gives, computed when its turn has come."""
        return await self.worker.run(lambda: json_response(work()), request)


def install(app: FastAPI, explorer: Explorer) -> None:
    models, held = explorer.models, explorer.traces

    @app.get(f"{API}/model")
    def model() -> Response:
        return json_response(model_json(explorer))

    @app.get(f"{API}/vocabulary")
    def vocabulary(model: Number = 0) -> Response:
        return json_response({"texts": models[model].texts})

    @app.get(f"{API}/tally")
    def tallied(model: Number = 0) -> Response:
        return json_response(tally_json(models[model]))

    @app.post(f"{API}/trace")
    async def trace(wanted: TraceWanted, request: Request) -> Response:
        def work() -> Any:
            return traces.as_json(held.of(wanted.model, wanted.checkpoint, wanted.text, wanted.ids))

        return await explorer.answer(request, work)

    @app.post(f"{API}/trace/{{id}}/append")
    async def append(id: str, wanted: AppendWanted, request: Request) -> Response:
        return await explorer.answer(request, lambda: traces.as_json(held.longer(id, wanted.token)))

    @app.get(f"{API}/trace/{{id}}/patterns")
    async def patterns(id: str, layer: Number, request: Request) -> Response:
        return await explorer.answer(request, lambda: patterns_json(held[id], layer))

    @app.get(f"{API}/trace/{{id}}/head")
    async def head(id: str, layer: Number, head: Number, token: Number, request: Request) -> Response:
        return await explorer.answer(request, lambda: head_json(held[id], layer, head, token))

    @app.get(f"{API}/trace/{{id}}/mlp")
    async def mlp(id: str, layer: Number, token: Number, request: Request) -> Response:
        return await explorer.answer(request, lambda: mlp_json(held[id], layer, token))

    @app.get(f"{API}/trace/{{id}}/next")
    async def next(id: str, token: Number, request: Request) -> Response:
        return await explorer.answer(request, lambda: next_json(held[id], token))

    @app.post(f"{API}/compare")
    async def compare(wanted: CompareWanted, request: Request) -> Response:
        def work() -> Any:
            a = held.of(wanted.a.model, wanted.a.checkpoint, wanted.text, wanted.ids)
            b = held.of(wanted.b.model, wanted.b.checkpoint, wanted.text, wanted.ids)
            return compare_json(a, b)

        return await explorer.answer(request, work)


def model_json(explorer: Explorer) -> dict[str, Any]:
    first = explorer.models[0]
    return {
        "models": [each.describe() for each in explorer.models.all],
        "checkpoints": [{"name": f"step {step:,}", "step": step} for step in first.folders],
        "limits": {"tokens": traces.most_tokens(first), "traces": explorer.traces.most},
        "version": glassgpt.__version__,
    }


def patterns_json(held: Held, layer: int) -> dict[str, Any]:
    weights = held.trace[f"h.{held.layer(layer)}.attn.weights"]  # (H, T, T)
    return {"weights": array(np.rint(weights * 255), "u8")}


def head_json(held: Held, layer: int, head: int, token: int) -> dict[str, Any]:
    """One head at one token, from the stream that enters the block to the one between its two halves."""
    layer, head, token = held.layer(layer), held.head(head), held.token(token)
    steps = {name: f"h.{layer}.{step}" for name, step in (HEAD_STEPS | ATTENTION_STEPS).items()}
    found = held.trace.read(*steps.values())
    made: dict[str, Any] = {"x": held.trace.residual[layer][token]}
    for name in ATTENTION_STEPS:
        made[name] = found[steps[name]][token]  # (C,)
    for name in HEAD_STEPS:
        whole = found[steps[name]][head]  # (T, D) or (T, T)
        made[name] = whole if name in ("k", "v") else whole[token]  # keys and values of the whole text
    made["unmasked"] = softmax(made["scaled"])
    return {name: np.ascontiguousarray(values) for name, values in made.items()}


def mlp_json(held: Held, layer: int, token: int) -> dict[str, Any]:
    layer, token = held.layer(layer), held.token(token)
    steps = {name: f"h.{layer}.{step}" for name, step in MLP_STEPS.items()}
    found = held.trace.read(*steps.values())
    return {name: np.ascontiguousarray(found[step][token]) for name, step in steps.items()}


def next_json(held: Held, token: int) -> dict[str, Any]:
    """The scores of every next token after a place; rows that stand for no token are left out."""
    return {"logits": array(held.trace.logits_at(held.token(token))[: held.model.n_tokens])}


def compare_json(a: Held, b: Held) -> dict[str, Any]:
    """Two models on one text. `kl` is how far b's next tokens are from a's after each place, in nats."""
    if vocabulary_of(a.model) != vocabulary_of(b.model):
        raise Refusal(
            422,
            f"{a.gpt.name} and {b.gpt.name} have different vocabularies, so their tokens cannot be compared. "
            "Compare two models with the same one, or two checkpoints of a run.",
            "b",
        )
    size = a.model.n_tokens
    kl = [
        divergence(before[:size], after[:size])
        for before, after in zip(a.trace.logits, b.trace.logits, strict=True)
    ]
    return {
        "a": traces.as_json(a),
        "b": traces.as_json(b),
        "kl": kl,
        "p_difference": np.ascontiguousarray(b.trace.surprise.p - a.trace.surprise.p),
    }


def vocabulary_of(model: Model) -> str | int:
    return model.n_tokens if model.tokenizer is None else model.tokenizer.hash


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return np.asarray(weights / weights.sum())


def divergence(a: np.ndarray, b: np.ndarray) -> float:
    """KL(a || b) of two rows of logits."""
    log_a, log_b = (
        x - (x.max() + np.log(np.exp(x - x.max()).sum())) for x in (a.astype(float), b.astype(float))
    )
    return max(0.0, float((np.exp(log_a) * (log_a - log_b)).sum()))


def tally_json(model: Model) -> dict[str, Any]:
    """Every tensor of the model, and beside it the table of GPT-2 small that The Illustrated GPT-2 prints."""
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
