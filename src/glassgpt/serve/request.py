"""A request for completions in the engine's terms: its prompts as ids, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from glassgpt.errors import UserError
from glassgpt.generate.fill import FOLLOWING
from glassgpt.generate.prompt import find_unknown_id
from glassgpt.generate.sampling.params import FILTERS, SamplingParams
from glassgpt.http.errors import ApiError
from glassgpt.serve.edited import read_edits
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.schemas import (
    MAX_RESPONSE_LOGPROBS,
    MAX_SEQUENCES,
    CompletionRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
)

DEFAULT_MAX_TOKENS = 16  # OpenAI's
GUESSES = 16  # at the text before a suffix
LONG_PROMPT = 20_000  # characters; the event loop does not wait for the tokenizer


@dataclass(frozen=True)
class CompletionInputs:
    """A request for completions, checked, in the engine's terms."""

    body: CompletionRequest
    prompts: list[tuple[str | None, list[int]]]  # as text, where it was sent as text, and as ids
    settings: list[SamplingParams]  # of each prompt
    suffix: list[int]  # the tokens that rate a guess
    edits: tuple[Any, ...]  # `inspect.edits.Edit`, to the forward pass
    n: int  # texts returned for each prompt


async def read_request(body: CompletionRequest, model: LoadedModel) -> CompletionInputs:
    length = prompt_characters(body.prompt) + (0 if body.suffix is None else len(body.suffix))
    if length < LONG_PROMPT and not body.edits:
        return read_inputs(body, model)
    return await anyio.to_thread.run_sync(read_inputs, body, model)


def read_inputs(body: CompletionRequest, model: LoadedModel) -> CompletionInputs:
    suffix = model.encode(body.suffix)[:FOLLOWING] if body.suffix else []
    prompts = read_prompts(body, model, len(suffix))
    settings = [make_settings(body, model, len(ids)) for _, ids in prompts]
    edits = read_edits(body.edits, model, [ids for _, ids in prompts], settings)
    inputs = CompletionInputs(body, prompts, settings, suffix, edits, 1 if body.n is None else body.n)
    check_size(inputs)
    return inputs


def prompt_characters(prompt: Any) -> int:
    if isinstance(prompt, list):
        return sum(map(len, prompt)) if prompt and not isinstance(prompt[0], int) else len(prompt)
    return 0 if prompt is None else len(prompt)


def check_fields(body: CompletionRequest) -> None:
    """Refuse combinations of fields that make no sense."""
    if body.suffix:
        check_suffix(body)
    n = 1 if body.n is None else body.n
    best_of = n if body.best_of is None else body.best_of
    if best_of < n:
        raise ApiError(400, f"best_of {best_of} is fewer than n {n}.", "best_of")
    if body.stream and best_of > n:
        raise ApiError(400, "best_of cannot be streamed: which is best is known at the end.", "best_of")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options has a meaning only with stream.", "stream_options")


def check_suffix(body: CompletionRequest) -> None:
    """A gap is filled by guesses, of which those remain after which the suffix is most likely."""
    together = ("stream", "echo", "logprobs", "prompt_logprobs", "best_of")
    fields = {name: getattr(body, name) for name in together}
    wrong = next((name for name, value in fields.items() if value is not None and value is not False), None)
    if wrong is not None:
        raise ApiError(400, f"{wrong} cannot be combined with suffix. Leave one of them out.", wrong)
    if body.temperature == 0:
        raise ApiError(
            400, "suffix needs a temperature above 0: at 0 there is one guess, and nothing to choose from.",
            "temperature",
        )  # fmt: skip
    if body.n is not None and body.n > GUESSES:
        raise ApiError(400, f"n is {body.n}; with suffix at most {GUESSES} texts are returned.", "n")


def read_prompts(
    body: CompletionRequest, model: LoadedModel, following: int
) -> list[tuple[str | None, list[int]]]:
    """Each prompt as text, where it was sent as text, and as ids.

    `following` tokens of a suffix come after the completion.
    """
    sent: Any = body.prompt
    if sent is None or sent == "":
        sent = [""]
    elif isinstance(sent, str) or isinstance(sent[0], int):
        sent = [sent]
    prompts: list[tuple[str | None, list[int]]] = []
    for number, prompt in enumerate(sent):
        text = prompt if isinstance(prompt, str) else None
        ids = list(prompt) if text is None else model.encode(text) if text else []
        name = "prompt" if len(sent) == 1 else f"prompt.{number}"
        size = model.service.engine.vocab_size
        unknown = find_unknown_id(ids, size)
        if unknown is not None:
            raise ApiError(
                400, f"{name}: {unknown} is not in this model's vocabulary, 0 to {size - 1}.", "prompt"
            )
        prompts.append(fit_prompt(body, model, name, text, ids, following))
    return prompts


def fit_prompt(
    body: CompletionRequest, model: LoadedModel, name: str, text: str | None, ids: list[int], following: int
) -> tuple[str | None, list[int]]:
    """The prompt, truncated if the request says so; an error if it is too long."""
    context = model.context
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    keep = body.truncate_prompt_tokens
    if keep is not None:
        room = context - min(max_tokens, context - 1)
        keep = room if keep == -1 else keep
        if keep < len(ids):
            text, ids = None, ids[len(ids) - keep :]
    least = max_tokens if body.max_tokens is not None else 1
    least += following
    if len(ids) + least > context:
        raise ApiError(
            400,
            f"{name}: this model's maximum context length is {context} tokens, and you asked for "
            f"{len(ids) + least} ({len(ids)} in the prompt, {least} for the completion). Shorten the prompt, "
            "lower max_tokens, or send truncate_prompt_tokens.",
            "prompt" if len(ids) >= context else "max_tokens",
            code="context_length_exceeded",
        )
    return text, ids


def find_constraint(body: CompletionRequest) -> dict[str, Any]:
    """The constraint on the text, as a setting of the engine."""
    constraints = {
        "guided_json": ("schema", body.guided_json),
        "guided_regex": ("regex", body.guided_regex),
        "guided_choice": ("choice", body.guided_choice),
        "guided_grammar": ("grammar", body.guided_grammar),
    }
    if isinstance(body.response_format, JsonObjectFormat):
        constraints["response_format"] = ("schema", {"type": "object"})
    elif isinstance(body.response_format, JsonSchemaFormat):
        content = body.response_format.json_schema.content
        constraints["response_format"] = ("schema", {} if content is None else content)
    sent = {name: pair for name, pair in constraints.items() if pair[1] is not None}
    if len(sent) > 1:
        first, second, *_ = sent
        raise ApiError(400, f"{first} and {second} cannot both be followed. Leave one out.", second)
    return dict(sent.values())


def make_settings(body: CompletionRequest, model: LoadedModel, prompt_length: int) -> SamplingParams:
    """The engine's settings. Values that change nothing are left out, which is faster."""

    def unless(value: float | None, neutral: float) -> float | None:
        return None if value == neutral else value

    filters: dict[str, Any] = {
        name: unless(getattr(body, name), row.neutral) for name, row in FILTERS.items()
    }
    room = max(1, model.context - prompt_length)
    max_tokens = min(DEFAULT_MAX_TOKENS, room) if body.max_tokens is None else body.max_tokens
    n = 1 if body.n is None else body.n
    best_of = None if body.best_of in (None, n) else body.best_of
    if body.suffix:
        best_of = GUESSES
    ranks = best_of is not None
    stop = () if body.stop is None else (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    prompt_logprobs = [
        k for k in (body.logprobs if body.echo else None, body.prompt_logprobs) if k is not None
    ]
    try:
        return SamplingParams(
            max_new_tokens=max_tokens,
            min_new_tokens=0 if body.min_tokens is None else body.min_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
            **filters,
            repetition_penalty=unless(body.repetition_penalty, 1),
            presence_penalty=unless(body.presence_penalty, 0),
            frequency_penalty=unless(body.frequency_penalty, 0),
            logit_bias={token: value for token, value in bias.items() if value != 0},
            stop=stop,
            stop_tokens=() if body.stop_token_ids is None else tuple(body.stop_token_ids),
            ignore_eot=bool(body.ignore_eos),
            seed=None if body.seed is None else body.seed % 2**64,
            samples=n,
            best_of=best_of,
            logprobs=0 if ranks and body.logprobs is None else body.logprobs,
            prompt_logprobs=max(prompt_logprobs) if prompt_logprobs else None,
            **find_constraint(body),
        )
    except UserError as error:
        raise ApiError(400, str(error)) from None


def check_size(inputs: CompletionInputs) -> None:
    """A request of a few bytes may ask for gigabytes: a hundred texts of each of two thousand prompts."""
    samples = inputs.settings[0].candidates
    sequences = len(inputs.prompts) * samples
    if sequences > MAX_SEQUENCES:
        raise ApiError(
            400,
            f"{len(inputs.prompts)} prompts with {samples} texts each are {sequences:,}; one request may "
            f"have {MAX_SEQUENCES:,}. Send several.",
            "n",
        )
    logprobs = 0
    for (_, ids), settings in zip(inputs.prompts, inputs.settings, strict=True):
        if settings.logprobs is not None:
            logprobs += settings.candidates * settings.max_new_tokens * (1 + settings.logprobs)
        if settings.prompt_logprobs is not None:
            logprobs += inputs.n * len(ids) * (1 + settings.prompt_logprobs)
    if logprobs > MAX_RESPONSE_LOGPROBS:
        raise ApiError(
            400,
            f"This asks for up to {logprobs:,} log-probabilities, and a response may have "
            f"{MAX_RESPONSE_LOGPROBS:,}. Lower logprobs, n or max_tokens, or send fewer prompts at once.",
            "logprobs",
        )
