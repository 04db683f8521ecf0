"""The endpoints. Each is thin: `completions`, `models` and `metrics` do the work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import glassgpt
from glassgpt.errors import QueueFullError, UserError
from glassgpt.http.errors import ApiError, openai_error, user_error_status
from glassgpt.http.responses import dump_json, json_response
from glassgpt.serve.completions import ClientDisconnected, Completion
from glassgpt.serve.edited import find_service
from glassgpt.serve.metrics import CONTENT_TYPE
from glassgpt.serve.overload import refuse
from glassgpt.serve.request import check_fields, read_request
from glassgpt.serve.schemas import (
    CompletionRequest,
    CompletionResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    ErrorResponse,
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

# Any route may answer with these: the middleware checks Host, Origin, the API key and the size of the body.
COMMON_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "What was sent is not valid; `param` names the field."},
    401: {"model": ErrorResponse, "description": "The API key is missing or wrong."},
    403: {"model": ErrorResponse, "description": "The Host or the Origin is not allowed."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    431: {"model": ErrorResponse, "description": "The headers are too large."},
    503: {"model": ErrorResponse, "description": "A model is being loaded, or the server is shutting down."},
}
MODEL_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorResponse, "description": "There is no model by that name."},
    **COMMON_ERRORS,
}
COMPLETION_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completions; with `stream`, chunks of them as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    408: {"model": ErrorResponse, "description": "The request took too long."},
    429: {"model": ErrorResponse, "description": "Too many requests are waiting; see Retry-After."},
    **MODEL_ERRORS,
}


@router.post("/v1/completions", response_model=CompletionResponse, responses=COMPLETION_RESPONSES)
async def create_completion(body: CompletionRequest, request: Request, state: StateDep) -> Response:
    """Continue prompts, score them, or both."""
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        check_fields(body)
        model = await stack.enter_async_context(state.pool.use(body.model))
        inputs = await read_request(body, model)
        completion = Completion(
            inputs,
            model,
            request,
            service=await find_service(model, inputs.edits, [ids for _, ids in inputs.prompts]),
            observer=state.observe(request, model),
            delivery=state.delivery,
            compilers=state.compilers,
            timeout=state.settings.timeout,
        )
        try:
            await stack.enter_async_context(completion)
            if not body.stream:
                return json_response(await completion.respond())
            chunks = completion.chunks()
            # An error before the first chunk still gets its own status.
            first = await anext(chunks)
            return EventStream(chunks, first, stack.pop_all())
        except ClientDisconnected:
            return Response(status_code=499)
        except QueueFullError as full:
            raise refuse(state, model.name, full) from None
        except UserError as error:
            raise ApiError(user_error_status(error), str(error)) from None


class EventStream(Response):
    """Chunks as server-sent events, then `[DONE]`. The request's resources are released at the end."""

    def __init__(
        self, chunks: AsyncIterator[dict[str, Any]], first: dict[str, Any], held: AsyncExitStack
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.chunks = chunks
        self.first = first
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async with self.held:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await write(event(self.first))
                async for chunk in self.chunks:
                    await write(event(chunk))
                await write(b"data: [DONE]\n\n", more=False)
            except ClientDisconnected:
                return
            except (UserError, ApiError) as error:
                status = error.status_code if isinstance(error, ApiError) else user_error_status(error)
                code = error.code if isinstance(error, ApiError) else None
                await write(event(openai_error(status, str(error), None, code)), more=False)


def event(content: Any) -> bytes:
    return b"data: " + dump_json(content) + b"\n\n"


@router.post("/v1/chat/completions", include_in_schema=False)
async def refuse_chat() -> Response:
    raise ApiError(
        404, "GPT-2 is a base model, and has no chat: it continues a text. Use /v1/completions with a prompt."
    )


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
