"""Requests with `edits`: another service of their model, which computes with the edits of each request.

It starts with the first such request. Requests without edits stay in the model's usual service, and notice
nothing: what edits need beforehand (the values of patches) is computed in a thread of its own, one pass at a
time, and bounded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from glassgpt.errors import QueueFullError, UserError
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.service import Service
from glassgpt.http.errors import ApiError

if TYPE_CHECKING:
    from glassgpt.serve.models import LoadedModel
    from glassgpt.serve.request import CompletionInputs

EDITED_ROWS = 4  # texts computed side by side; they take turns, for each is computed by itself
MAX_EDITED_REQUESTS = 32  # at once: each holds the values of its patches


def read_edits(
    edits: Sequence[dict[str, Any]] | None,
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[SamplingParams],
) -> tuple[Any, ...]:
    """The edits of a request, refused where they do not fit the model, the prompts or their length."""
    if not edits:
        return ()
    if model.adapter:
        raise ApiError(
            400, "edits: an adapter that shares its model takes none. Serve it with --model.", "edits"
        )
    from glassgpt.inspect.edits.edited_backend import check_edits

    longest = max(zip(prompts, settings, strict=True), key=lambda pair: len(pair[0]) + pair[1].max_new_tokens)
    try:
        return tuple(check_edits(model.gpt, list(edits), longest[0], longest[1].max_new_tokens))
    except UserError as error:
        raise ApiError(400, f"edits: {error}", "edits") from None


@asynccontextmanager
async def find_service(
    inputs: CompletionInputs, model: LoadedModel, timeout: float
) -> AsyncIterator[tuple[CompletionInputs, Service]]:
    """The service that computes a request: the model's own, or the one for requests with edits. The edits
    are ready to be applied then."""
    if not inputs.edits:
        yield inputs, model.service
        return
    if model.edited_requests >= MAX_EDITED_REQUESTS:
        raise QueueFullError(f"{model.edited_requests} requests with edits wait. Try again in a moment.")
    model.edited_requests += 1
    try:
        with anyio.fail_after(timeout):
            edits, service = await anyio.to_thread.run_sync(_prepare, inputs, model, limiter=model.preparing)
        yield replace(inputs, edits=tuple(edits)), service
    except TimeoutError:
        message = f"The request took longer than {timeout:g} seconds."
        raise ApiError(408, message, code="timeout") from None
    finally:
        model.edited_requests -= 1


def _prepare(inputs: CompletionInputs, model: LoadedModel) -> tuple[Sequence[Any], Service]:
    from glassgpt.inspect.edits.edited_backend import check_fit, take_patches

    try:
        edits = take_patches(model.gpt, inputs.edits)
        check_fit(model.gpt, edits, [ids for _, ids in inputs.prompts])
        return edits, model.edited_service(EDITED_ROWS)
    except UserError as error:
        raise ApiError(400, f"edits: {error}", "edits") from None
