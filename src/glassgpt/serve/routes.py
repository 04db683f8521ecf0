"""The endpoints. Each is thin: `completions`, `models` and `metrics` do the work."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

import glassgpt
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import json_response
from glassgpt.serve.answer import answer
from glassgpt.serve.metrics import CONTENT_TYPE
from glassgpt.serve.request import check_fields
from glassgpt.serve.schemas import (
    COMMON_ERRORS,
    COMPLETION_RESPONSES,
    MODEL_ERRORS,
    CompletionRequest,
    CompletionResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    Health,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    Version,
)
from glassgpt.serve.state import ServerState, StateDep

router = APIRouter()


@router.post("/v1/completions", response_model=CompletionResponse, responses=COMPLETION_RESPONSES)
async def create_completion(body: CompletionRequest, request: Request, state: StateDep) -> Response:
    """Continue prompts, score them, or both."""
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        check_fields(body)
        model = await stack.enter_async_context(state.pool.use(body.model))
        return await answer(body, model, request, state, stack)


@router.get("/v1/models", response_model=ModelList, responses=COMMON_ERRORS)
async def list_models(state: StateDep) -> Response:
    """The models that `model` may name."""
    return json_response({"object": "list", "data": [model_card(state, name) for name in state.pool.specs]})


@router.get("/v1/models/{name:path}", response_model=ModelCard, responses=MODEL_ERRORS)
async def get_model(name: str, state: StateDep) -> Response:
    if name not in state.pool.specs:
        raise ApiError(404, f"The model {name[:100]!r} does not exist.", "model", code="model_not_found")
    return json_response(model_card(state, name))


def model_card(state: ServerState, name: str) -> dict[str, Any]:
    pool = state.pool
    return {
        "id": name,
        "object": "model",
        "created": pool.created,
        "owned_by": "glassgpt",
        "max_model_len": pool.contexts.get(name),
        "loaded": pool.is_loaded(name),
    }


@router.get("/health", response_model=Health, responses=COMMON_ERRORS)
async def get_health(state: StateDep) -> Response:
    """200 once all models were loaded, until the process ends."""
    if not state.pool.ready:
        raise ApiError(503, "The model is being loaded.", None, {"retry-after": "1"}, code="loading")
    return json_response({"status": "ok"})


@router.get("/ready", response_model=Health, responses=COMMON_ERRORS)
async def get_ready(state: StateDep) -> Response:
    """200 while new requests are accepted: not during loading or shutdown."""
    state.check_available()
    state.pool.check_files()
    return json_response({"status": "ok"})


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **COMMON_ERRORS},
    response_class=Response,
)
async def get_metrics(state: StateDep) -> Response:
    """For Prometheus."""
    return Response(state.metrics.render(), media_type=CONTENT_TYPE)


@router.get("/version", response_model=Version, responses=COMMON_ERRORS)
async def get_version() -> Response:
    return json_response({"version": glassgpt.__version__})


@router.post("/tokenize", response_model=TokenizeResponse, responses=MODEL_ERRORS)
async def tokenize(body: TokenizeRequest, state: StateDep) -> Response:
    """The ids of a text. A text that is only the name of the end-of-text token is that token."""
    state.check_available()
    async with state.pool.use(body.model) as model:
        ids = await anyio.to_thread.run_sync(model.encode, body.prompt)
        strings = [model.texts[token] for token in ids] if body.return_token_strs else None
        return json_response(
            {"count": len(ids), "max_model_len": model.context, "tokens": ids, "token_strs": strings}
        )


@router.post("/detokenize", response_model=DetokenizeResponse, responses=MODEL_ERRORS)
async def detokenize(body: DetokenizeRequest, state: StateDep) -> Response:
    state.check_available()
    async with state.pool.use(body.model) as model:
        size = model.service.engine.vocab_size
        wrong = next((token for token in body.tokens if token >= size), None)
        if wrong is not None:
            raise ApiError(400, f"tokens: {wrong} is not in the vocabulary, 0 to {size - 1}.", "tokens")
        text = await anyio.to_thread.run_sync(model.texts.decode, body.tokens)
        return json_response({"prompt": text})


@router.get("/tokenizer_info", response_model=TokenizerInfo, responses=MODEL_ERRORS)
async def get_tokenizer_info(state: StateDep, model: str | None = None) -> Response:
    state.check_available()
    async with state.pool.use(model) as loaded:
        tokenizer: Any = loaded.gpt.tokenizer
        return json_response(
            {
                "tokenizer_class": None if tokenizer is None else type(tokenizer).__name__,
                "model_max_length": loaded.context,
                "vocab_size": loaded.service.engine.vocab_size,
                "bos_token": loaded.eos_text,  # GPT-2 has one token for the beginning and the end
                "eos_token": loaded.eos_text,
                "pad_token": None,
                "chat_template": None,
                "hash": None if tokenizer is None else tokenizer.hash,
            }
        )
