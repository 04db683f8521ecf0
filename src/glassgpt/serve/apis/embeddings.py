"""`POST /v1/embeddings`: a vector for a text, the mean of its tokens' final vectors, of length one.

The model was not trained for this: such vectors are close to one another, and their order by similarity is
what they are good for. They are computed one text at a time, with the model that traces are computed with.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio
import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from glassgpt.generate.prompt import find_unknown_id
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import json_response
from glassgpt.inspect.forward import make_forward
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.schemas import COMPLETION_RESPONSES, Name, Prompt, StrictModel
from glassgpt.serve.state import ServerState, StateDep

router = APIRouter()

MAX_TOKENS = 65_536  # of one request: some seconds of a CPU


class EmbeddingRequest(StrictModel):
    model: Name | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: Name | None = None


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


@router.post("/v1/embeddings", response_model=EmbeddingResponse, responses=COMPLETION_RESPONSES)
async def create_embeddings(body: EmbeddingRequest, request: Request, state: StateDep) -> Response:
    """A vector for each text."""
    async with AsyncExitStack() as stack:
        stack.enter_context(state.admit())
        model = await stack.enter_async_context(state.pool.use(body.model))
        texts = await anyio.to_thread.run_sync(read_texts, model, body.input, False)
        size = model.gpt.config.n_embd
        if body.dimensions not in (None, size):
            raise ApiError(400, f"dimensions: this model's vectors have {size}. Leave it out.", "dimensions")
        vectors = await embed(model, texts, request, state)
    tokens = sum(map(len, texts))
    return json_response(
        {
            "object": "list",
            "model": model.name,
            "data": [
                {"object": "embedding", "index": i, "embedding": encode(vector, body.encoding_format)}
                for i, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def encode(vector: np.ndarray, format: str | None) -> list[float] | str:
    return base64.b64encode(vector.tobytes()).decode() if format == "base64" else vector.tolist()


def read_texts(model: LoadedModel, sent: Any, truncate: bool) -> list[list[int]]:
    """The ids of each text; `truncate` keeps as many of the first as fit."""
    if model.adapter:
        raise ApiError(
            400, "An adapter that shares its model has no embeddings. Serve it with --model.", "model"
        )
    if isinstance(sent, str) or isinstance(sent[0], int):
        sent = [sent]
    texts = []
    for number, text in enumerate(sent):
        ids = model.encode(text) if isinstance(text, str) else list(text)
        if not ids:
            raise ApiError(400, f"input.{number} is empty: it has no vector.", "input")
        unknown = find_unknown_id(ids, model.service.engine.vocab_size)
        if unknown is not None:
            raise ApiError(400, f"input.{number}: {unknown} is not in the vocabulary.", "input")
        if len(ids) > model.context and not truncate:
            raise ApiError(
                400, f"input.{number} has {len(ids)} tokens; this model reads {model.context}. Shorten it.",
                "input", code="context_length_exceeded",
            )  # fmt: skip
        texts.append(ids[: model.context])
    if sum(map(len, texts)) > MAX_TOKENS:
        raise ApiError(
            400, f"input has {sum(map(len, texts)):,} tokens; the limit is {MAX_TOKENS:,}. Send several.",
            "input",
        )  # fmt: skip
    return texts


async def embed(
    model: LoadedModel, texts: Sequence[list[int]], request: Request, state: ServerState
) -> list[np.ndarray]:
    """A text at a time, and a request at a time: between texts, others compute with the model."""
    vectors = []
    deadline = time.monotonic() + state.settings.timeout
    async with state.embedding():
        for ids in texts:
            if await request.is_disconnected():
                raise ApiError(499, "The client is gone.")
            if time.monotonic() > deadline:
                raise ApiError(
                    408, f"The request took longer than {state.settings.timeout:g} seconds.", code="timeout"
                )
            vectors.append(await anyio.to_thread.run_sync(embed_ids, model, ids))
    return vectors


def embed_ids(model: LoadedModel, ids: Sequence[int]) -> np.ndarray:
    with model.gpt.lock.hold():
        hidden: Any = make_forward(model.gpt.model).hidden(ids)[0]  # (T, C)
        mean = hidden.mean(0)
        vector = mean if isinstance(mean, np.ndarray) else mean.float().cpu().numpy()
    length = float(np.linalg.norm(vector))
    return (vector / length if length > 0 else vector).astype(np.float32)
