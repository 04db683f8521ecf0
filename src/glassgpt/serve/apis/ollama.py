"""Ollama's API, so that its clients work: /api/generate, /api/chat, /api/embed, /api/tags, /api/show.

Errors are Ollama's there, `{"error": "what to change"}`. A stream is a line of JSON for each piece, which is
the default. `options` that choose a machine's resources are accepted and change nothing; others that are
unknown are refused, as everywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import glassgpt
from glassgpt.generate.fill import FOLLOWING
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import dump_json, json_response
from glassgpt.serve.answer import Chunks, answer
from glassgpt.serve.apis.chat import Message as ChatMessage
from glassgpt.serve.apis.chat import as_completion, chat_task
from glassgpt.serve.apis.embeddings import embed, read_texts
from glassgpt.serve.event_stream import StreamFormat, json_line
from glassgpt.serve.models import LoadedModel, ModelPool
from glassgpt.serve.request import check_fields
from glassgpt.serve.schemas import (
    MAX_PROMPT_CHARACTERS,
    MAX_TOKEN_ID,
    CompletionRequest,
    Ids,
    JsonObjectFormat,
    Name,
    Stop,
    StrictModel,
    Text,
)
from glassgpt.serve.state import StateDep

router = APIRouter(include_in_schema=False)

PREFIX = "/api/"
LATEST = ":latest"  # what clients append to a name without a tag
DEFAULT_TOKENS = 128
# Ollama's own defaults, where a model's definition says nothing else.
USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}

Number = Annotated[float, Field(ge=-2, le=1000)]
Ignored = Any


class Options(StrictModel):
    num_predict: Annotated[int, Field(ge=-2, le=MAX_TOKEN_ID)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | None = None
    repeat_penalty: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    # Of a machine, or of llama.cpp: they change nothing here.
    num_ctx: Ignored = None
    num_keep: Ignored = None
    num_batch: Ignored = None
    num_gpu: Ignored = None
    main_gpu: Ignored = None
    num_thread: Ignored = None
    numa: Ignored = None
    low_vram: Ignored = None
    use_mmap: Ignored = None
    use_mlock: Ignored = None
    f16_kv: Ignored = None
    vocab_only: Ignored = None
    repeat_last_n: Ignored = None
    penalize_newline: Ignored = None


class OllamaRequest(StrictModel):
    model: Name
    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: float | Name | None = None
    think: Literal[False] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None


class GenerateRequest(OllamaRequest):
    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    template: Literal[""] | None = None
    context: Ids | Annotated[list[int], Field(max_length=0)] | None = None
    raw: bool | None = None
    images: Annotated[list[Any], Field(max_length=0)] | None = None


class OllamaMessage(ChatMessage):
    images: Annotated[list[Any], Field(max_length=0)] | None = None
    thinking: Text | None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None


class OllamaChatRequest(OllamaRequest):
    messages: Annotated[list[OllamaMessage], Field(max_length=1000)]
    tools: Annotated[list[Any], Field(max_length=0)] | None = None


class EmbedRequest(StrictModel):
    model: Name
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=2048, fail_fast=True)]
    truncate: bool | None = None
    dimensions: int | None = None
    options: Options | None = None
    keep_alive: float | Name | None = None


class ShowRequest(StrictModel):
    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None


@router.post("/api/generate")
async def generate(body: GenerateRequest, request: Request, state: StateDep) -> Response:
    """Continue a prompt. A model with roles answers it, unless it is `raw`."""
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        model = await stack.enter_async_context(state.pool.use(known_name(state.pool, body.model)))
        task = model.gpt.task
        answers = task is not None and task.chat is not None and not body.raw and not body.context
        if body.system and not answers:
            raise ApiError(400, "system: this model has no roles. Write it at the beginning of the prompt.")
        if not body.prompt and not body.context and not body.suffix:
            return json_response({**head(body.model, "response", ""), "done": True, "done_reason": "load"})
        fields = {**sampling(body, usual=not answers), "stream": body.stream is not False}
        if answers:
            assert task is not None
            turns = [("system", body.system)] if body.system else []
            turns.append(("user", body.prompt or ""))
            limit, stop = fields.pop("max_tokens"), fields.pop("stop")
            completion = as_completion(model, task, turns, limit, stop, fields)
        else:
            ids = await anyio.to_thread.run_sync(model.encode, body.prompt) if body.prompt else []
            wanted = DEFAULT_TOKENS if fields["max_tokens"] is None else fields["max_tokens"]
            context = model.context - (FOLLOWING if body.suffix else 0)
            ids = [*(body.context or ()), *ids][-(context - max(1, min(wanted, context // 2))) :]
            fields["max_tokens"] = min(wanted, context - len(ids))
            completion = CompletionRequest.model_construct(
                prompt=ids or None, suffix=body.suffix or None, **fields
            )
            if body.suffix:  # the best of several guesses is known at the end
                completion.stream = False
        lead = task.chat.lead if answers and task is not None and task.chat is not None else ""
        return await respond(completion, model, request, state, stack, lambda text: {"response": text}, lead,
                             stream=body.stream is not False)  # fmt: skip


@router.post("/api/chat")
async def chat(body: OllamaChatRequest, request: Request, state: StateDep) -> Response:
    """Answer the last message of a conversation, by a model that has roles."""
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        model = await stack.enter_async_context(state.pool.use(known_name(state.pool, body.model)))
        task = chat_task(model)
        assert task.chat is not None

        def message(text: str) -> dict[str, Any]:
            return {"message": {"role": "assistant", "content": text}}

        if not body.messages:
            return json_response({**head(body.model, **message("")), "done": True, "done_reason": "load"})
        fields = {**sampling(body, usual=False), "stream": body.stream is not False}
        limit, stop = fields.pop("max_tokens"), fields.pop("stop")
        turns = [(one.role, one.text) for one in body.messages]
        completion = as_completion(model, task, turns, limit, stop, fields)
        return await respond(completion, model, request, state, stack, message, task.chat.lead)


@router.post("/api/embed")
async def create_embeddings(body: EmbedRequest, request: Request, state: StateDep) -> Response:
    begun = time.perf_counter_ns()
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        model = await stack.enter_async_context(state.pool.use(known_name(state.pool, body.model)))
        texts = await anyio.to_thread.run_sync(read_texts, model, body.input, body.truncate is not False)
        if body.dimensions not in (None, 0, model.gpt.config.n_embd):
            raise ApiError(400, f"dimensions: this model's vectors have {model.gpt.config.n_embd}.")
        vectors = await embed(model, texts, request, state)
    return json_response(
        {
            "model": body.model,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": time.perf_counter_ns() - begun,
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, texts)),
        }
    )


@router.get("/api/tags")
async def list_tags(state: StateDep) -> Response:
    return json_response({"models": [describe(state.pool, name) for name in state.pool.specs]})


@router.get("/api/ps")
async def list_running(state: StateDep) -> Response:
    loaded = [name for name in state.pool.specs if state.pool.is_loaded(name)]
    return json_response({"models": [describe(state.pool, name) for name in loaded]})


@router.get("/api/version")
async def get_version() -> Response:
    return json_response({"version": glassgpt.__version__})


@router.post("/api/show")
async def show(body: ShowRequest, state: StateDep) -> Response:
    state.check_available()
    sent = body.model or body.name
    if not sent:
        raise ApiError(400, "model is missing. Name one of GET /api/tags.")
    async with state.pool.use(known_name(state.pool, sent)) as model:
        task, config = model.gpt.task, model.gpt.config
        has_chat = task is not None and task.chat is not None
        about = describe(state.pool, model.name)
        return json_response(
            {
                "modelfile": f"FROM {model.name}\n",
                "parameters": "",
                "template": "{{ .Prompt }}",
                "details": about["details"],
                "model_info": {
                    "general.architecture": "gpt2",
                    "general.parameter_count": config.n_parameters,
                    "gpt2.context_length": model.context,
                    "gpt2.embedding_length": config.n_embd,
                    "gpt2.block_count": config.n_layer,
                    "gpt2.attention.head_count": config.n_head,
                    "gpt2.feed_forward_length": config.d_mlp,
                },
                "capabilities": ["completion", *([] if model.adapter else ["embedding"])]
                + (["chat"] if has_chat else []),
                "modified_at": about["modified_at"],
            }
        )


def known_name(pool: ModelPool, name: str) -> str:
    """The name without the tag that clients append."""
    plain = name.removesuffix(LATEST)
    return plain if name not in pool.specs and plain in pool.specs else name


def describe(pool: ModelPool, name: str) -> dict[str, Any]:
    spec = pool.specs[name]
    files = [file for file in (spec.path.iterdir() if spec.path.is_dir() else [spec.path]) if file.is_file()]
    status = [file.stat() for file in files]
    model = pool.find_loaded(name)
    parameters = None if model is None else model.gpt.config.n_parameters
    dtype = "" if model is None else str(getattr(model.gpt.backend, "dtype", "")).removeprefix("torch.")
    changed = max((one.st_mtime for one in status), default=0.0)
    return {
        "name": name,
        "model": name,
        "modified_at": datetime.fromtimestamp(changed, UTC).isoformat(),
        "size": sum(one.st_size for one in status),
        "digest": "" if model is None else model.fingerprint.removeprefix("fp_"),
        "details": {
            "parent_model": spec.base or "",
            "format": "glassgpt",
            "family": "gpt2",
            "families": ["gpt2"],
            "parameter_size": "" if parameters is None else f"{parameters / 1e6:.1f}M",
            "quantization_level": dtype,
        },
    }


def sampling(body: OllamaRequest, usual: bool) -> dict[str, Any]:
    """The options as fields of a completion; with Ollama's defaults where `usual`."""
    options = Options() if body.options is None else body.options
    fields: dict[str, Any] = dict(USUAL) if usual else {}
    sent = options.model_dump(exclude_none=True)
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
    ):
        if name in sent:
            fields[name] = sent[name]
    if options.repeat_penalty is not None:
        fields["repetition_penalty"] = options.repeat_penalty
    if options.seed is not None:
        fields["seed"] = options.seed
    wanted = options.num_predict
    fields["max_tokens"] = None if wanted is None else wanted if wanted >= 0 else MAX_PROMPT_CHARACTERS
    fields["stop"] = options.stop
    if body.format == "json":
        fields["response_format"] = JsonObjectFormat(type="json_object")
    elif isinstance(body.format, dict):
        fields["guided_json"] = body.format
    return fields


def head(model: str, key: str = "", text: str = "", **parts: Any) -> dict[str, Any]:
    own = {key: text} if key else {}
    return {"model": model, "created_at": datetime.now(UTC).isoformat(), **own, **parts}


async def respond(
    completion: CompletionRequest,
    model: LoadedModel,
    request: Request,
    state: Any,
    stack: AsyncExitStack,
    part: Callable[[str], dict[str, Any]],
    lead: str,
    stream: bool | None = None,
) -> Response:
    """Ollama's responses from those of a completion; `part` holds a piece of the text."""
    begun = time.perf_counter_ns()
    completion.return_token_ids = True
    if completion.stream:
        completion.stream_options = None

    def last(reason: str | None, ids: list[int], prompt: int, count: int) -> dict[str, Any]:
        total = time.perf_counter_ns() - begun
        return {
            "done": True, "done_reason": reason, "context": ids, "total_duration": total, "load_duration": 0,
            "prompt_eval_count": prompt, "prompt_eval_duration": 0,
            "eval_count": count, "eval_duration": total,
        }  # fmt: skip

    def whole(response: dict[str, Any]) -> dict[str, Any]:
        choice = response["choices"][0]
        ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
        end = last(choice["finish_reason"], ids, len(choice["prompt_token_ids"]), len(choice["token_ids"]))
        return {**head(model.name, **part(choice["text"].removeprefix(lead))), **end}

    async def pieces(chunks: Chunks) -> Chunks:
        ids: list[int] = []
        prompt, begins, reason = 0, True, None
        async for chunk in chunks:
            choice = chunk["choices"][0]
            if "prompt_token_ids" in choice:
                ids += choice["prompt_token_ids"]
                prompt = len(ids)
            ids += choice.get("token_ids", [])
            text = choice["text"]
            if begins and text:
                text, begins = text.removeprefix(lead), False
            reason = choice["finish_reason"] or reason
            if text:
                yield {**head(model.name, **part(text)), "done": False}
        yield {**head(model.name, **part("")), **last(reason, ids, prompt, len(ids) - prompt)}

    check_fields(completion)
    response = await answer(
        completion, model, request, state, stack, whole=whole, pieces=pieces, format=JSON_LINES
    )
    if stream and not completion.stream and response.status_code == 200:  # one line is a stream as well
        response.headers["content-type"] = JSON_LINES.media_type
    return response


def plain_error(status: int, message: str, field: str | None, code: str | None) -> Any:
    return {"error": message}


JSON_LINES = StreamFormat("application/x-ndjson", json_line, b"", plain_error)


class OllamaErrorsMiddleware:
    """ASGI middleware: below /api/, errors have Ollama's shape, whoever makes them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        started: Message | None = None
        body = b""

        async def rewrite(message: Message) -> None:
            nonlocal started, body
            if message["type"] == "http.response.start" and message["status"] >= 400:
                started = message
                return
            if started is None:
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            content = as_plain(body)
            MutableHeaders(scope=started)["content-length"] = str(len(content))
            await send(started)
            await send({**message, "body": content})

        await self.app(scope, receive, rewrite)


def as_plain(body: bytes) -> bytes:
    try:
        return bytes(dump_json({"error": json.loads(body)["error"]["message"]}))
    except (ValueError, KeyError, TypeError):
        return body
