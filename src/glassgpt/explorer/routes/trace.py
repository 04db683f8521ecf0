"""Read-only endpoints: the models, and the steps of a trace in the order the page asks for them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

import glassgpt
from glassgpt.explorer.dependencies import Explorer, ExplorerDep, Index
from glassgpt.explorer.models import Model
from glassgpt.explorer.salient_heads import opening_head, salient_heads_json
from glassgpt.explorer.schemas import AppendRequest, CompareRequest, TraceRequest
from glassgpt.explorer.site_facts import illustrated_rows
from glassgpt.explorer.traces import LENS_TOP, CachedTrace, lens_json, max_tokens, trace_json
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import encode_array, json_response
from glassgpt.inspect.attribution.attribute import available_methods
from glassgpt.inspect.parameters.neurons import head_weight, neuron_tokens
from glassgpt.inspect.parameters.tally import ILLUSTRATED_TOTAL, tally
from glassgpt.inspect.taps import BLOCK_STEPS, EMBEDDING_STEPS
from glassgpt.inspect.traces.lens_column import lens_column

router = APIRouter()

NEURONS = 8  # of a block, listed at a position
MAX_ROWS = 16  # of the head, in one response
MAX_ALL_PATTERNS = 256  # tokens: of a longer text, the patterns of all blocks together are too large

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
        cached = explorer.traces.get_or_trace(body.model, body.checkpoint, body.text, body.ids)
        return trace_json(cached) | {"salient_head": opening_head(cached)}

    return await explorer.respond(request, work)


@router.post("/trace/{id}/append")
async def append_token(id: str, body: AppendRequest, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: trace_json(explorer.traces.append(id, body.token)))


@router.get("/trace/{id}/patterns")
async def get_patterns(
    id: str, request: Request, explorer: ExplorerDep, layer: Index | None = None
) -> Response:
    return await explorer.respond(request, lambda: patterns_json(explorer.traces[id], layer))


@router.get("/trace/{id}/salient-heads")
async def get_salient_heads(id: str, position: Index, request: Request, explorer: ExplorerDep) -> Response:
    def work() -> Any:
        return salient_heads_json(explorer.traces[id], explorer.traces[id].check_position(position))

    return await explorer.respond(request, work)


@router.get("/trace/{id}/embedding")
async def get_embedding(id: str, position: Index, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: embedding_json(explorer.traces[id], position))


@router.get("/trace/{id}/lens")
async def get_lens_column(
    id: str,
    position: Index,
    request: Request,
    explorer: ExplorerDep,
    token: Index | None = None,
    ranks: bool = False,
) -> Response:
    def work() -> Any:
        return lens_column_json(explorer.traces[id], position, token, ranks)

    return await explorer.respond(request, work)


@router.get("/trace/{id}/scores")
async def get_scores(id: str, layer: Index, head: Index, request: Request, explorer: ExplorerDep) -> Response:
    return await explorer.respond(request, lambda: scores_json(explorer.traces[id], layer, head))


@router.get("/trace/{id}/neurons")
async def get_neurons(
    id: str, layer: Index, position: Index, request: Request, explorer: ExplorerDep
) -> Response:
    return await explorer.respond(request, lambda: neurons_json(explorer.traces[id], layer, position))


@router.get("/trace/{id}/final")
async def get_final(
    id: str,
    position: Index,
    request: Request,
    explorer: ExplorerDep,
    token: Annotated[list[Index] | None, Query(max_length=MAX_ROWS)] = None,
) -> Response:
    return await explorer.respond(request, lambda: final_json(explorer.traces[id], position, token))


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
        "models": explorer.models.describe(),
        "methods": available_methods(),
        "checkpoints": [{"name": f"step {step:,}", "step": step} for step in first.checkpoints],
        "limits": {"tokens": max_tokens(first), "traces": explorer.traces.max_traces},
        "version": glassgpt.__version__,
    }


def patterns_json(cached: CachedTrace, layer: int | None) -> dict[str, Any]:
    """The patterns of a block, (H, T, T), or of a short text's whole model, (L, H, T, T)."""
    trace = cached.trace
    if layer is not None:
        weights = trace.attention[cached.check_layer(layer)]  # (H, T, T)
    elif len(trace) > MAX_ALL_PATTERNS:
        raise ApiError(422, f"layer: name one; this text has more than {MAX_ALL_PATTERNS} tokens.", "layer")
    else:
        weights = np.stack([trace.attention[each] for each in range(trace.config.n_layer)])  # (L, H, T, T)
    return {"attn.weights": encode_array(np.rint(weights * 255), "u8")}


def embedding_json(cached: CachedTrace, position: int) -> dict[str, Any]:
    """The rows of both tables at a position, and their sum, which enters block 0."""
    position = cached.check_position(position)
    steps = [step for step in EMBEDDING_STEPS if step != "wpe" or cached.gpt.config.has_wpe]
    values = cached.trace.read(*steps)
    rows = {step: np.ascontiguousarray(values[step][position]) for step in steps}
    return {"wpe": np.zeros_like(rows["wte"])} | rows


def lens_column_json(
    cached: CachedTrace, position: int, token: int | None, all_ranks: bool
) -> dict[str, Any]:
    """The five most likely tokens of every cell of a column, and the rank of one of them, or of all."""
    position = cached.check_position(position)
    tokens = [] if token is None else [cached.check_token(token)]
    lens = lens_column(cached.gpt, cached.trace, position, LENS_TOP, None if all_ranks else tokens)
    return {
        **lens_json(cached.model, lens.ids, lens.p),
        "ranks": {str(each): ranks for each, ranks in zip(lens.tokens, lens.ranks.tolist(), strict=True)},
    }


def scores_json(cached: CachedTrace, layer: int, head: int) -> dict[str, Any]:
    """The scores of one head for all pairs of tokens, and the queries and keys they are products of."""
    layer, head = cached.check_layer(layer), cached.check_head(head)
    steps = ["attn.q", "attn.k", "attn.scores", "attn.scaled"]
    values = cached.trace.read(*(f"h.{layer}.{step}" for step in steps))
    return {step: encode_array(values[f"h.{layer}.{step}"][head]) for step in steps}


def neurons_json(cached: CachedTrace, layer: int, position: int) -> dict[str, Any]:
    """The most active neurons of a block at a position: what they read and write, and where they fire."""
    layer, position = cached.check_layer(layer), cached.check_position(position)
    active = cached.trace[f"h.{layer}.mlp.gelu"]  # (T, M)
    neurons = np.argsort(-np.abs(active[position]), kind="stable")[:NEURONS].tolist()
    known = known_neurons(cached, layer, neurons)
    text = cached.model.text
    return {
        "neurons": [
            {
                "neuron": neuron,
                "reads": [text(token) for token in known[neuron][0]],
                "writes": [text(token) for token in known[neuron][1]],
                "activations": np.ascontiguousarray(active[:, neuron]),
            }
            for neuron in neurons
        ]
    }


def known_neurons(
    cached: CachedTrace, layer: int, neurons: list[int]
) -> dict[int, tuple[list[int], list[int]]]:
    """What neurons read and write: the same in every text, so that each is computed once."""
    known = cached.model.neurons.setdefault((cached.checkpoint, layer), {})
    missing = [neuron for neuron in neurons if neuron not in known]
    if missing:
        words = neuron_tokens(cached.gpt, layer, missing, cached.model.n_tokens)
        known.update(zip(missing, zip(words.reads.tolist(), words.writes.tolist(), strict=True), strict=True))
    return known


def final_json(cached: CachedTrace, position: int, tokens: list[int] | None) -> dict[str, Any]:
    """The vector that leaves the last LayerNorm, and rows of the head, by default those of the most likely
    tokens: their products are the logits."""
    position = cached.check_position(position)
    tokens = cached.most_likely(position) if tokens is None else tokens
    rows = head_weight(cached.gpt)[[cached.check_token(token) for token in tokens]]
    return {
        "ln_f": np.ascontiguousarray(cached.trace["ln_f"][position]),
        "tokens": tokens,
        "rows": np.ascontiguousarray(rows),
    }


def head_json(cached: CachedTrace, layer: int, head: int, position: int) -> dict[str, Any]:
    """One head at one position, from the block's input (`resid_pre`) to `resid_mid`.

    Keys and values are those of the whole text; `unmasked` is what the softmax would be without the mask.
    """
    layer, head = cached.check_layer(layer), cached.check_head(head)
    position = cached.check_position(position)
    activations = cached.trace.read(*(f"h.{layer}.{step}" for step in [*HEAD_STEPS, *ATTENTION_STEPS]))
    steps: dict[str, Any] = {"resid_pre": cached.trace.residual[layer][position]}
    for step in ATTENTION_STEPS:
        steps[step] = activations[f"h.{layer}.{step}"][position]  # (C,)
    for step in HEAD_STEPS:
        values = activations[f"h.{layer}.{step}"][head]  # (T, D) or (T, T)
        steps[step] = values if step in ("attn.k", "attn.v") else values[position]
    steps["unmasked"] = softmax(steps["attn.scaled"])
    return {step: np.ascontiguousarray(values) for step, values in steps.items()}


def mlp_json(cached: CachedTrace, layer: int, position: int) -> dict[str, Any]:
    layer, position = cached.check_layer(layer), cached.check_position(position)
    values = cached.trace.read(*(f"h.{layer}.{step}" for step in MLP_STEPS))
    return {step: np.ascontiguousarray(values[f"h.{layer}.{step}"][position]) for step in MLP_STEPS}


def next_json(cached: CachedTrace, position: int) -> dict[str, Any]:
    """The next-token logits at a position, of the ids that have a text."""
    logits = cached.trace.logits_at(cached.check_position(position))
    return {"logits": encode_array(logits[: cached.model.n_tokens])}


def compare_json(a: CachedTrace, b: CachedTrace) -> dict[str, Any]:
    """Two models on one text, with KL(a || b) of the next-token distributions at each position, in nats."""
    from glassgpt.inspect.edits.intervene import kl_per_token

    if vocabulary_key(a.model) != vocabulary_key(b.model):
        raise ApiError(
            422,
            f"{a.model.name} and {b.model.name} have different vocabularies, so their tokens cannot be "
            "compared. Compare two models with the same vocabulary, or two checkpoints of a run.",
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
    counted = tally(model.gpt.config)
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
        "illustrated": illustrated_rows(),
        "illustrated_total": ILLUSTRATED_TOTAL,
        "published_total": tally("gpt2").total,
    }
