"""A request for completions while it is computed: jobs for the service, and choices from their events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request

from glassgpt.generate.generation import Alternatives, Event, Generation, PromptLogprobs, order_samples
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.service import Service
from glassgpt.http.errors import ApiError
from glassgpt.serve.auth import KEY
from glassgpt.serve.choice_stream import ChoiceStream
from glassgpt.serve.delivery import CompletionJob, Delivery, Ended, Inbox
from glassgpt.serve.grammars import GrammarCompilers
from glassgpt.serve.logprobs import TokenOffsets, make_logprobs, make_prompt_logprobs
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.observer import RequestObserver
from glassgpt.serve.request import CompletionInputs


class ClientDisconnected(Exception):
    pass


class Completion:
    """One request for completions, from its jobs to its choices. Use it with `async with`."""

    def __init__(
        self,
        inputs: CompletionInputs,
        model: LoadedModel,
        request: Request,
        *,
        service: Service,
        observer: RequestObserver,
        delivery: Delivery,
        compilers: GrammarCompilers,
        timeout: float,
    ) -> None:
        self.body, self.prompts, self.suffix, self.n = inputs.body, inputs.prompts, inputs.suffix, inputs.n
        self.model = model
        self.service = service
        self.observer = observer
        self.delivery = delivery
        self.compilers = compilers
        self.timeout = timeout
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.client = "" if request.client is None else request.client.host
        key = request.scope.get(KEY)
        self.inbox: Inbox = asyncio.Queue()
        self.jobs = [
            CompletionJob(
                ids,
                settings,
                delivery,
                client=self.client,
                cache_scope=self.client if key is None else key,
                inbox=self.inbox,
                index=index,
                row_setup=inputs.edits or None,
                adapter=model.adapter,
            )
            for index, ((_, ids), settings) in enumerate(zip(inputs.prompts, inputs.settings, strict=True))
        ]
        self.prompt_scores: list[PromptLogprobs | None] = [None] * len(self.jobs)
        self.cached = [0] * len(self.jobs)
        self._rating: list[CompletionJob] = []
        self._left = sum(job.samples for job in self.jobs)
        self._receive = request.receive
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outcome = "error"

    async def __aenter__(self) -> Completion:
        loop = asyncio.get_running_loop()
        self._watch = loop.create_task(self._watch_client())
        self._timer = loop.call_later(self.timeout, self.inbox.put_nowait, Ended.TIMED_OUT)
        try:
            await self._compile()
            self.service.submit(self.jobs)
        except BaseException:
            self._stop_watching()
            raise
        self.observer.begin(self.id, self.jobs)
        return self

    async def _compile(self) -> None:
        """Compile new grammars. A client that disconnects, or whose time is over, waits no longer."""
        service = self.service
        if all(service.engine.is_compiled(job.settings) for job in self.jobs):
            return
        compiling = asyncio.ensure_future(self.compilers.compile(service, self.jobs, self.client))
        ended = asyncio.ensure_future(self.inbox.get())
        try:
            await asyncio.wait({compiling, ended}, return_when=asyncio.FIRST_COMPLETED)
            if compiling.done():
                compiling.result()
            else:
                update = ended.result()
                assert isinstance(update, Ended)
                raise self._end(update)
        finally:
            compiling.cancel()
            ended.cancel()

    async def __aexit__(self, *error: object) -> None:
        if self._left:
            self.service.cancel([*self.jobs, *self._rating])
        self._stop_watching()
        self.observer.end("ok" if not self._left else self._outcome)

    def _stop_watching(self) -> None:
        assert self._watch is not None
        assert self._timer is not None
        self._watch.cancel()
        self._timer.cancel()

    def _end(self, ended: Ended) -> Exception:
        """The exception to raise when nobody waits for the request anymore."""
        self._outcome = ended.value
        if ended is Ended.DISCONNECTED:
            return ClientDisconnected()
        return ApiError(408, f"The request took longer than {self.timeout:g} seconds.", code="timeout")

    async def _watch_client(self) -> None:
        """Free the rows as soon as the client is gone, whatever the request is waiting for."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._left:
            self.service.cancel([*self.jobs, *self._rating])
            self.inbox.put_nowait(Ended.DISCONNECTED)

    async def events(self) -> AsyncIterator[tuple[CompletionJob, Event]]:
        """The events of all jobs, until the last text is finished."""
        while self._left:
            update = await self.inbox.get()
            if isinstance(update, Ended):
                raise self._end(update)
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
        """Keep what the response needs of an event."""
        if job.rates:
            self._left -= event.generation is not None
            return
        if event.prompt is not None:
            self.prompt_scores[job.index] = event.prompt
        if event.token is not None:
            self.observer.token(job.index, event.sample, event.token)
        if event.generation is not None:
            self._left -= 1
            self.cached[job.index] = max(self.cached[job.index], event.generation.cached_tokens)

    # Without streaming: everything at once.

    async def respond(self) -> dict[str, Any]:
        finished: list[list[Generation]] = [[] for _ in self.jobs]
        async for job, event in self.events():
            if event.generation is not None:
                finished[job.index].append(event.generation)
        choices = []
        for index, generations in enumerate(finished):
            await asyncio.sleep(0)  # a million log-probabilities take a second: let others be served
            job = self.jobs[index]
            if self.suffix:
                generations.sort(key=lambda generation: generation.sample)
                generations = await self._choose_by_suffix(job, generations)
            else:
                generations = order_samples(generations, job.settings)
            choices += [
                self._choice(index, number, generation) for number, generation in enumerate(generations)
            ]
        return {**self._head(), "choices": choices, "usage": self.usage()}

    async def _choose_by_suffix(self, job: CompletionJob, guesses: list[Generation]) -> list[Generation]:
        """The guesses after which the suffix is most likely.

        They were sampled after the prompt, so their own probabilities are already accounted for.
        """
        settings = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
        distinct = list({tuple(guess.tokens): guess for guess in guesses}.values())
        self._rating = [
            CompletionJob(
                [*job.prompt, *guess.tokens, *self.suffix],
                settings,
                self.delivery,
                client=self.client,
                cache_scope=job.cache_scope,
                adapter=job.adapter,
                inbox=self.inbox,
                index=number,
                rates=True,
                row_setup=job.row_setup,
            )
            for number, guess in enumerate(distinct)
        ]
        self._left += len(self._rating)
        self.service.submit(self._rating)
        scores = [0.0] * len(distinct)
        async for rating, event in self.events():
            if event.prompt is not None:
                of_suffix = event.prompt.logprobs[-len(self.suffix) :]
                scores[rating.index] = sum(value for value in of_suffix if value is not None)
        ranked = sorted(zip(scores, distinct, strict=True), key=lambda pair: -pair[0])
        chosen = [guess for _, guess in ranked]
        return (chosen * self.n)[: self.n]  # repeat guesses if there are too few distinct ones

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

    # Streaming: a chunk for each event with text or tokens.

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        body, texts = self.body, self.model.texts
        scored = any(job.settings.prompt_logprobs is not None for job in self.jobs)
        opens = bool(body.echo or body.return_token_ids or scored)
        streams: dict[tuple[int, int], ChoiceStream] = {}
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        async for job, event in self.events():
            key = (job.index, event.sample)
            if key not in streams:
                opening = self._opening_chunk(job)
                streams[key] = ChoiceStream(texts, len(opening["text"]), body.logprobs is not None)
                if opens:
                    yield self._chunk(key, opening, usage)
            delta = streams[key].push(event)
            if delta.text or delta.tokens or delta.finish_reason is not None:
                choice: dict[str, Any] = {
                    "text": delta.text,
                    "logprobs": delta.logprobs,
                    "finish_reason": delta.finish_reason,
                }
                if body.return_token_ids:
                    choice["token_ids"] = delta.tokens
                yield self._chunk(key, choice, usage)
        if usage:
            yield {**self._head(), "choices": [], "usage": self.usage()}

    def _opening_chunk(self, job: CompletionJob) -> dict[str, Any]:
        """The part of a choice before its first token."""
        opening = self._opening(job.index)
        if self.body.return_token_ids:
            opening |= {"token_ids": [], "prompt_token_ids": list(job.prompt)}
        if self.body.prompt_logprobs is not None:
            opening["prompt_logprobs"] = self._prompt_logprobs(job.index)
        return opening

    def _chunk(self, key: tuple[int, int], choice: dict[str, Any], usage: bool) -> dict[str, Any]:
        index = key[0] * self.n + key[1]
        chunk = {**self._head(), "choices": [{"index": index, "finish_reason": None, **choice}]}
        return {**chunk, "usage": None} if usage else chunk

    # For both.

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
        }

    def _opening(self, index: int) -> dict[str, Any]:
        """With echo, the prompt and its log-probabilities, which precede the text of a choice."""
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
            "completion_tokens": self.observer.generated,
            "total_tokens": prompt_tokens + self.observer.generated,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached)},
        }


def first_alternatives(
    alternatives: Sequence[Alternatives | None] | None, count: int
) -> list[Alternatives | None] | None:
    """The first `count` of each: the same scores may serve two fields."""
    if alternatives is None:
        return None
    return [None if ranked is None else ranked[:count] for ranked in alternatives]
