"""From a checked body to a response: what all endpoints that write a text have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from starlette.responses import Response

from glassgpt.errors import QueueFullError, UserError
from glassgpt.http.errors import ApiError, user_error_status
from glassgpt.http.responses import json_response
from glassgpt.serve.completions import ClientDisconnected, Completion
from glassgpt.serve.edited import find_service
from glassgpt.serve.event_stream import SERVER_SENT_EVENTS, EventStream, StreamFormat
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.overload import refuse
from glassgpt.serve.request import read_request
from glassgpt.serve.schemas import CompletionRequest
from glassgpt.serve.state import ServerState

Chunks = AsyncIterator[dict[str, Any]]


async def answer(
    body: CompletionRequest,
    model: LoadedModel,
    request: Request,
    state: ServerState,
    stack: AsyncExitStack,
    *,
    whole: Callable[[dict[str, Any]], dict[str, Any]] = lambda response: response,
    pieces: Callable[[Chunks], Chunks] = lambda chunks: chunks,
    format: StreamFormat = SERVER_SENT_EVENTS,
) -> Response:
    """Compute a completion with a model that `stack` holds in use.

    `whole` makes the body of the response of OpenAI's, `pieces` the chunks of a streamed one.
    """
    try:
        inputs, service = await stack.enter_async_context(
            find_service(await read_request(body, model), model, state.settings.timeout)
        )
        completion = Completion(
            inputs,
            model,
            request,
            service=service,
            observer=state.observe(request, model),
            delivery=state.delivery,
            compilers=state.compilers,
            timeout=state.settings.timeout,
        )
        await stack.enter_async_context(completion)
        if not body.stream:
            return json_response(whole(await completion.respond()))
        chunks = pieces(completion.chunks())
        # An error before the first chunk still gets its own status.
        first = await anext(chunks)
        return EventStream(chunks, first, stack.pop_all(), format)
    except ClientDisconnected:
        return Response(status_code=499)
    except QueueFullError as full:
        raise refuse(state, model.name, full) from None
    except UserError as error:
        raise ApiError(user_error_status(error), str(error)) from None
