"""From a request for completions to jobs of the service, and from their updates to choices."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.to_thread
from starlette.types import Receive

from glassgpt.errors import UserError
from glassgpt.generate.fair_queue import QueueFullError
from glassgpt.generate.generation import Alternatives, Event, Generation, PromptLogprobs, best
from glassgpt.generate.service import Job, Update
from glassgpt.generate.settings import Settings
from glassgpt.http.errors import ApiError
from glassgpt.serve.logprobs import TokenOffsets, TokenTexts, make_logprobs, make_prompt_logprobs
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.schemas import CompletionRequest, JsonObjectFormat, JsonSchemaFormat

if TYPE_CHECKING:
    from glassgpt.serve.state import ServerState

log = logging.getLogger("glassgpt.serve")

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class Ended(Enum):
    """Why nobody waits for a request any more."""

    DISCONNECTED = "disconnected"
    TIMED_OUT = "timeout"


class ClientDisconnected(Exception):
    pass


@dataclass(eq=False)
class CompletionJob(Job):
    """A job that knows its place in a request for completions, and where its updates are awaited."""

    inbox: asyncio.Queue[Update | Ended] = field(default_factory=asyncio.Queue)
    index: int = 0
    last_token: dict[int, float] = field(default_factory=dict)  # when each sample got its last


class Delivery:
    """Brings updates from the threads of services to the event loop, once for all requests of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, updates: list[Update]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_out, updates)

    def _hand_out(self, updates: list[Update]) -> None:
        for update in updates:
            assert isinstance(update.job, CompletionJob)
            update.job.inbox.put_nowait(update)


def check_fields(body: CompletionRequest) -> None:
    """Combinations that make no sense."""
    if body.suffix:
        raise ApiError(
            400, "suffix is not supported: GPT-2 continues a text, it cannot fill a gap.", "suffix"
        )
    n = 1 if body.n is None else body.n
    best_of = n if body.best_of is None else body.best_of
    if best_of < n:
        raise ApiError(400, f"best_of {best_of} is fewer than n {n}.", "best_of")
    if body.stream and best_of > n:
        raise ApiError(400, "best_of cannot be streamed: which is best is known at the end.", "best_of")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options has a meaning only with stream.", "stream_options")


def read_prompts(body: CompletionRequest, model: LoadedModel) -> list[tuple[str | None, list[int]]]:
    """Each prompt as text, where it was sent as text, and as ids."""
    given: Any = body.prompt
    if given is None or given == "":
        given = [""]
    elif isinstance(given, str) or isinstance(given[0], int):
        given = [given]
    prompts: list[tuple[str | None, list[int]]] = []
    for number, prompt in enumerate(given):
        text = prompt if isinstance(prompt, str) else None
        ids = list(prompt) if text is None else model.encode(text) if text else []
        name = "prompt" if len(given) == 1 else f"prompt.{number}"
        size = model.service.engine.vocab_size
        wrong = next((token for token in ids if token >= size), None)
        if wrong is not None:
            raise ApiError(
                400, f"{name}: {wrong} is not in this model's vocabulary, 0 to {size - 1}.", "prompt"
            )
        prompts.append(fit_prompt(body, model, name, text, ids))
    return prompts


def fit_prompt(
    body: CompletionRequest, model: LoadedModel, name: str, text: str | None, ids: list[int]
) -> tuple[str | None, list[int]]:
    """The prompt, truncated if that was asked for; an error if it is too long."""
    context = model.context
    wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    keep = body.truncate_prompt_tokens
    if keep is not None:
        room = context - min(wanted, context - 1)
        keep = room if keep == -1 else keep
        if keep < len(ids):
            text, ids = None, ids[len(ids) - keep :]
    least = wanted if body.max_tokens is not None else 1
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
    """What the text has to follow, as a setting of the engine."""
    given = {
        "guided_json": ("schema", body.guided_json),
        "guided_regex": ("regex", body.guided_regex),
        "guided_choice": ("choice", body.guided_choice),
        "guided_grammar": ("grammar", body.guided_grammar),
    }
    if isinstance(body.response_format, JsonObjectFormat):
        given["response_format"] = ("schema", {"type": "object"})
    elif isinstance(body.response_format, JsonSchemaFormat):
        content = body.response_format.json_schema.content
        given["response_format"] = ("schema", {} if content is None else content)
    wanted = {name: pair for name, pair in given.items() if pair[1] is not None}
    if len(wanted) > 1:
        first, second, *_ = wanted
        raise ApiError(400, f"{first} and {second} cannot both be followed. Leave one out.", second)
    return dict(wanted.values())


def make_settings(body: CompletionRequest, model: LoadedModel, prompt_length: int) -> Settings:
    """The engine's settings. What changes nothing is left out: the engine is faster without."""

    def unless(value: float | None, neutral: float) -> float | None:
        return None if value == neutral else value

    room = max(1, model.context - prompt_length)
    max_tokens = min(DEFAULT_MAX_TOKENS, room) if body.max_tokens is None else body.max_tokens
    n = 1 if body.n is None else body.n
    best_of = None if body.best_of in (None, n) else body.best_of
    ranks = best_of is not None
    stop = () if body.stop is None else (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    wanted = [k for k in (body.logprobs if body.echo else None, body.prompt_logprobs) if k is not None]
    try:
        return Settings(
            max_new_tokens=max_tokens,
            min_new_tokens=0 if body.min_tokens is None else body.min_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
            top_p=unless(body.top_p, 1),
            min_p=unless(body.min_p, 0),
            typical_p=unless(body.typical_p, 1),
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
            prompt_logprobs=max(wanted) if wanted else None,
            **find_constraint(body),
        )
    except UserError as error:
        raise ApiError(400, str(error)) from None


class Piece(NamedTuple):
    """Some more of a choice: text, and the tokens that it consists of."""

    text: str
    tokens: list[int]
    logprobs: dict[str, Any] | None
    finish_reason: str | None = None


class ChoiceStream:
    """A choice as it grows. A token comes with the text in which it begins, never before it.

    The engine holds text back while it may be a stop string; the tokens of that text wait with it.
    """

    def __init__(self, texts: TokenTexts, start: int, with_logprobs: bool) -> None:
        self.texts = texts
        self.with_logprobs = with_logprobs
        self._offsets = TokenOffsets(texts, start)
        self._pending: deque[tuple[int, float | None, Alternatives | None, int]] = deque()
        self._length = start  # of the text so far
        self._released = 0

    def push(self, event: Event) -> Piece:
        if event.token is not None:
            offset = self._offsets.push(event.token)
            self._pending.append((event.token, event.logprob, event.alternatives, offset))
        self._length += len(event.text)
        done = event.generation
        if done is None:
            count = sum(offset < self._length for *_, offset in self._pending)
        else:
            count = len(done.tokens) - self._released
        parts = [self._pending.popleft() for _ in range(count)]
        self._released += count
        tokens = [token for token, *_ in parts]
        logprobs = None
        if self.with_logprobs:
            columns = ([part[i] for part in parts] for i in (1, 2, 3))
            logprobs = make_logprobs(self.texts, tokens, *columns)  # type: ignore[arg-type]
        return Piece(event.text, tokens, logprobs, None if done is None else done.finish_reason)


class Completion:
    """One request for completions, from its jobs to its choices. Use it with `async with`."""

    def __init__(
        self, state: ServerState, body: CompletionRequest, model: LoadedModel, client: str, receive: Receive
    ) -> None:
        self.state = state
        self.body = body
        self.model = model
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.n = 1 if body.n is None else body.n
        self.prompts = read_prompts(body, model)
        self.inbox: asyncio.Queue[Update | Ended] = asyncio.Queue()
        self.jobs = [
            CompletionJob(
                ids,
                make_settings(body, model, len(ids)),
                state.delivery,
                client=client,
                inbox=self.inbox,
                index=index,
            )
            for index, (_, ids) in enumerate(self.prompts)
        ]
        self.prompt_scores: list[PromptLogprobs | None] = [None] * len(self.jobs)
        self.generated = 0
        self.cached = [0] * len(self.jobs)
        self._left = sum(job.samples for job in self.jobs)
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outcome = "error"

    async def __aenter__(self) -> Completion:
        await self._compile()
        try:
            self.model.service.submit(self.jobs)
        except QueueFullError as full:
            raise self.state.refuse(self.model.name, full) from None
        loop = asyncio.get_running_loop()
        self._watch = loop.create_task(self._watch_client())
        self._timer = loop.call_later(self.state.settings.timeout, self.inbox.put_nowait, Ended.TIMED_OUT)
        self.state.begin(self)
        return self

    async def _compile(self) -> None:
        """Compile grammars in a thread, one at a time: neither the event loop nor the engine waits for it."""
        if any(job.settings.constraint is not None for job in self.jobs):
            await anyio.to_thread.run_sync(
                self.model.service.compile, self.jobs, limiter=self.state.compiling
            )

    async def __aexit__(self, *error: object) -> None:
        if self._left:
            self.model.service.cancel(self.jobs)
        assert self._watch is not None
        assert self._timer is not None
        self._watch.cancel()
        self._timer.cancel()
        self.state.end(self, "ok" if not self._left else self._outcome)

    async def _watch_client(self) -> None:
        """Free the rows as soon as the client is gone, whatever the request waits for just now."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._left:
            self.model.service.cancel(self.jobs)
            self.inbox.put_nowait(Ended.DISCONNECTED)

    async def events(self) -> AsyncIterator[tuple[CompletionJob, Event]]:
        """The events of all jobs, until the last text is finished."""
        while self._left:
            update = await self.inbox.get()
            if isinstance(update, Ended):
                self._outcome = update.value
                if update is Ended.DISCONNECTED:
                    raise ClientDisconnected
                seconds = self.state.settings.timeout
                raise ApiError(408, f"The request took longer than {seconds:g} seconds.", code="timeout")
            job, event = update.job, update.event
            assert isinstance(job, CompletionJob)
            if update.error is not None:
                raise update.error
            assert event is not None
            if event.error is not None:
                raise event.error
            self._note(job, event)
            yield job, event

    def _note(self, job: CompletionJob, event: Event) -> None:
        """Keep what the response and the metrics need of an event."""
        now, name, metrics = time.monotonic(), self.model.name, self.state.metrics
        if event.prompt is not None:
            self.prompt_scores[job.index] = event.prompt
        if event.token is not None:
            self.generated += 1
            metrics.generated_tokens.labels(name).inc()
            if event.sample not in job.last_token:
                metrics.first_token.labels(name).observe(now - job.submitted)
            else:
                metrics.inter_token.labels(name).observe(now - job.last_token[event.sample])
            job.last_token[event.sample] = now
            self.state.recent.append(self.id, job.index, event.sample, event.token)
        if event.generation is not None:
            self._left -= 1
            self.cached[job.index] = max(self.cached[job.index], event.generation.cached_tokens)

    # Without streaming: everything at once.

    async def respond(self) -> dict[str, Any]:
        found: list[list[Generation]] = [[] for _ in self.jobs]
        async for job, event in self.events():
            if event.generation is not None:
                found[job.index].append(event.generation)
        choices = []
        for index, generations in enumerate(found):
            await asyncio.sleep(0)  # a million log-probabilities take a second: others are served meanwhile
            generations.sort(key=lambda generation: generation.sample)
            if self.jobs[index].settings.best_of is not None:
                generations = best(generations, self.n)
            choices += [
                self._choice(index, number, generation) for number, generation in enumerate(generations)
            ]
        return {**self._head(), "choices": choices, "usage": self.usage()}

    def _choice(self, index: int, number: int, generation: Generation) -> dict[str, Any]:
        opening = self._opening(index)
        logprobs = None
        if self.body.logprobs is not None:
            offsets = TokenOffsets(self.model.texts, len(opening["text"]))
            logprobs = make_logprobs(
                self.model.texts,
                generation.tokens,
                generation.logprobs or [],
                generation.alternatives,
                [offsets.push(token) for token in generation.tokens],
            )
            if opening["logprobs"] is not None:
                logprobs = {key: opening["logprobs"][key] + logprobs[key] for key in logprobs}
        choice = {
            "index": index * self.n + number,
            "text": opening["text"] + generation.text,
            "logprobs": logprobs,
            "finish_reason": generation.finish_reason,
        }
        if self.body.return_token_ids:
            choice |= {"token_ids": generation.tokens, "prompt_token_ids": list(self.jobs[index].prompt)}
        if self.body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(index)
        return choice

    # Streaming: a chunk for each event that brings something.

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        body, texts = self.body, self.model.texts
        scored = any(job.settings.prompt_logprobs is not None for job in self.jobs)
        opens = bool(body.echo or body.return_token_ids or scored)
        streams: dict[tuple[int, int], ChoiceStream] = {}
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        async for job, event in self.events():
            key = (job.index, event.sample)
            if key not in streams:
                opening = self._opening(job.index)
                streams[key] = ChoiceStream(texts, len(opening["text"]), body.logprobs is not None)
                if opens:
                    if body.return_token_ids:
                        opening |= {"token_ids": [], "prompt_token_ids": list(job.prompt)}
                    if body.prompt_logprobs is not None:
                        opening["prompt_logprobs"] = self._prompt_logprobs(job.index)
                    yield self._chunk(key, opening, usage)
            piece = streams[key].push(event)
            if piece.text or piece.tokens or piece.finish_reason is not None:
                choice: dict[str, Any] = {
                    "text": piece.text,
                    "logprobs": piece.logprobs,
                    "finish_reason": piece.finish_reason,
                }
                if body.return_token_ids:
                    choice["token_ids"] = piece.tokens
                yield self._chunk(key, choice, usage)
        if usage:
            yield {**self._head(), "choices": [], "usage": self.usage()}

    def _chunk(self, key: tuple[int, int], choice: dict[str, Any], usage: bool) -> dict[str, Any]:
        index = key[0] * self.n + key[1]
        chunk = {**self._head(), "choices": [{"index": index, "finish_reason": None, **choice}]}
        return {**chunk, "usage": None} if usage else chunk

    # What both have in common.

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
        }

    def _opening(self, index: int) -> dict[str, Any]:
        """What precedes the text of a choice: with echo, the prompt and its log-probabilities."""
        body, texts = self.body, self.model.texts
        if not body.echo:
            return {"text": "", "logprobs": None}
        text, ids = self.prompts[index]
        text = texts.decode(ids) if text is None else text
        scores = self.prompt_scores[index]
        if body.logprobs is None or scores is None or not ids:
            return {"text": text, "logprobs": None}
        offsets = TokenOffsets(texts)
        alternatives = first_alternatives(scores.alternatives, body.logprobs)
        positions = [offsets.push(token) for token in ids]
        return {"text": text, "logprobs": make_logprobs(texts, ids, scores.logprobs, alternatives, positions)}

    def _prompt_logprobs(self, index: int) -> list[dict[str, Any] | None]:
        scores, ids = self.prompt_scores[index], self.prompts[index][1]
        assert self.body.prompt_logprobs is not None
        if scores is None or not ids:
            return []
        alternatives = first_alternatives(scores.alternatives, self.body.prompt_logprobs)
        return make_prompt_logprobs(self.model.texts, ids, scores.logprobs, alternatives)

    def usage(self) -> dict[str, Any]:
        prompt_tokens = sum(len(ids) for _, ids in self.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": prompt_tokens + self.generated,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached)},
        }


def first_alternatives(
    alternatives: Sequence[Alternatives | None] | None, count: int
) -> list[Alternatives | None] | None:
    """As many as were asked for here; the same scores may serve two fields."""
    if alternatives is None:
        return None
    return [None if ranked is None else ranked[:count] for ranked in alternatives]
