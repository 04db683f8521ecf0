"""Requests with `edits`: another service of their model, which computes with the edits of each request.

It starts with the first such request. Requests without edits stay in the model's usual service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from glassgpt.errors import UserError
from glassgpt.generate.prompt import check_prompt
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.service import Service
from glassgpt.http.errors import ApiError

if TYPE_CHECKING:
    from glassgpt.serve.models import LoadedModel

EDITED_ROWS = 4  # texts computed side by side; they take turns, for each is computed by itself


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

    try:
        for ids, its in zip(prompts, settings, strict=True):
            parsed = check_edits(model.gpt, list(edits), ids, its.max_new_tokens)
    except UserError as error:
        raise ApiError(400, f"edits: {error}", "edits") from None
    return tuple(parsed)


async def find_service(model: LoadedModel, edits: Sequence[Any], prompts: Sequence[list[int]]) -> Service:
    """The service that computes a request: the model's own, or the one for requests with edits."""
    if not edits:
        return model.service
    return await anyio.to_thread.run_sync(_start_edited, model, edits, prompts)


def _start_edited(model: LoadedModel, edits: Sequence[Any], prompts: Sequence[list[int]]) -> Service:
    """Start the service, and try the edits on the prompts: a failure there would be that of all its texts."""
    from glassgpt.inspect.edits.edited_backend import EditedBackend

    try:
        with model.gpt.lock.hold():
            service = model.edited_service(EDITED_ROWS)
            trial = EditedBackend(model.gpt, edits)
            for ids in prompts:  # an empty one is the beginning of a document
                whole = check_prompt(ids, model.gpt.backend, model.gpt.tokenizer)
                trial.extend([0], [whole], logits="none")
    except UserError as error:
        raise ApiError(400, f"edits: {error}", "edits") from None
    return service
