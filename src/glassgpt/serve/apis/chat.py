"""`POST /v1/chat/completions`, for a model that was tuned on a task with roles (tasks/chat.py)."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from glassgpt.errors import UserError
from glassgpt.http.errors import ApiError
from glassgpt.serve.answer import Chunks, answer
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.request import check_fields
from glassgpt.serve.schemas import (
    COMPLETION_RESPONSES,
    MAX_TOKEN_ID,
    CompletionRequest,
    LogitBias,
    Name,
    ResponseFormat,
    Stop,
    StreamOptions,
    StrictModel,
    Text,
)
from glassgpt.serve.state import StateDep
from glassgpt.tasks.definition import Task

router = APIRouter()

MAX_MESSAGES = 1000
NO_CHAT = "GPT-2 is a base model, and has no chat: it continues a text. Use /v1/completions with a prompt."


class TextPart(StrictModel):
    type: Literal["text"]
    text: Text


class Message(StrictModel):
    role: Name
    content: Text | Annotated[list[TextPart], Field(max_length=MAX_MESSAGES)]
    name: Name | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(StrictModel):
    """Fields that are left out are as the task's definition says."""

    model: Name | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKEN_ID)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKEN_ID)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logit_bias: LogitBias | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = None


@router.post("/v1/chat/completions", responses=COMPLETION_RESPONSES)
async def create_chat_completion(body: ChatRequest, request: Request, state: StateDep) -> Response:
    """Answer the last message of a conversation."""
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        model = await stack.enter_async_context(state.pool.use(body.model))
        task = chat_task(model)
        turns = [(message.role, message.text) for message in body.messages]
        limit = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
        fields = {
            name: getattr(body, name)
            for name in ("temperature", "top_p", "n", "seed", "logit_bias", "presence_penalty",
                         "frequency_penalty", "response_format", "stream", "stream_options", "user")
        }  # fmt: skip
        completion = as_completion(model, task, turns, limit, body.stop, fields)
        check_fields(completion)
        assert task.chat is not None
        lead = task.chat.lead
        return await answer(
            completion, model, request, state, stack,
            whole=lambda response: whole_chat(response, lead),
            pieces=lambda chunks: chat_chunks(chunks, lead),
        )  # fmt: skip


def chat_task(model: LoadedModel) -> Task:
    """The model's task, which must have roles."""
    task = model.gpt.task
    if task is None or task.chat is None or model.gpt.tokenizer is None:
        raise ApiError(404, NO_CHAT)
    return task


def as_completion(
    model: LoadedModel,
    task: Task,
    turns: list[tuple[str, str]],
    limit: int | None,
    stop: str | list[str] | None,
    fields: dict[str, Any],
) -> CompletionRequest:
    """The same request for a completion, of the conversation's ids."""
    assert task.chat is not None
    assert model.gpt.tokenizer is not None
    try:
        ids = task.chat.encode(turns, model.gpt.tokenizer)
    except UserError as error:
        raise ApiError(400, f"messages: {error}", "messages") from None
    room = model.context - len(ids)
    if room < 1:
        raise ApiError(
            400, f"messages: the conversation has {len(ids)} tokens, and this model reads {model.context}. "
            "Leave out its oldest messages.", "messages", code="context_length_exceeded",
        )  # fmt: skip
    settings = task.settings()
    usual = {
        name: getattr(settings, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                     "repetition_penalty")
    }  # fmt: skip
    tokens, strings = task.chat.ending(model.gpt.tokenizer)
    sent = [] if stop is None else [stop] if isinstance(stop, str) else stop
    given = {name: value for name, value in fields.items() if value is not None}
    return CompletionRequest.model_construct(
        **{
            **{name: value for name, value in usual.items() if value is not None},
            "prompt": ids, "stop": [*sent, *strings] or None, "stop_token_ids": tokens or None,
            "max_tokens": min(task.max_target_tokens, room) if limit is None else min(limit, room),
            **given,
        }
    )  # fmt: skip


def whole_chat(response: dict[str, Any], lead: str) -> dict[str, Any]:
    choices = [
        {
            "index": choice["index"],
            "message": {"role": "assistant", "content": choice["text"].removeprefix(lead), "refusal": None},
            "logprobs": None,
            "finish_reason": choice["finish_reason"],
        }
        for choice in response["choices"]
    ]
    return {**response, "id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "choices": choices}


async def chat_chunks(chunks: Chunks, lead: str) -> Chunks:
    """A delta for each piece; the first of a choice names the role."""
    id, begun = f"chatcmpl-{uuid.uuid4().hex}", set()
    async for chunk in chunks:
        choices = []
        for choice in chunk["choices"]:
            text, delta = choice["text"], {}
            if choice["index"] not in begun:
                begun.add(choice["index"])
                text, delta = text.removeprefix(lead), {"role": "assistant"}
            choices.append(
                {
                    "index": choice["index"], "delta": {**delta, "content": text}, "logprobs": None,
                    "finish_reason": choice["finish_reason"],
                }
            )  # fmt: skip
        yield {**chunk, "id": id, "object": "chat.completion.chunk", "choices": choices}
