"""The scheduler: requests join and leave between steps, and every step gives each running sequence a token.

    engine = Engine(backend, tokenizer)
    number = engine.add(ids, settings)
    while engine.busy:
        for event in engine.step(): ...

What a request gets does not depend on its neighbours: its prompt is read alone, its random numbers follow
from its own seed, and the sampler treats sequences separately.

On a GPU the loop is a pipeline. A step is queued on the device with the tokens of the previous step still
there; only then does the host read those tokens, while the device computes. A sequence that turns out to
have ended has computed one token in vain. Where the next step needs the host to have read the text
(penalties, n-grams, a context window that must slide), it waits for the previous one.
"""

from __future__ import annotations

import heapq
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import array_api_compat
import numpy as np

from glassgpt.backend import Array, Backend
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.generation import Event
from glassgpt.generate.logits_processors import WordBiases, collect_edits
from glassgpt.generate.request import Request, Sample
from glassgpt.generate.sampling import NOTHING, LogitEdits, SamplingParams, draw_tokens, stack_params
from glassgpt.generate.settings import Settings
from glassgpt.generate.text import Tokenizer
from glassgpt.ranges import check_whole

RANDOM_AHEAD = 64  # steps for which random numbers are moved to the device together


@dataclass(eq=False)
class InFlightStep:
    """The tokens drawn in one step, which the host may not have read yet."""

    step: int
    samples: list[Sample]
    tokens: Array  # (B,), on the device
    report: Callable[[], np.ndarray]


@dataclass(eq=False)
class SamplingState:
    """What sampling needs for a group of sequences; rebuilt only when the group changes."""

    samples: list[Sample]
    params: SamplingParams
    edits: LogitEdits | None
    edits_fixed: bool
    random: Array  # (B, RANDOM_AHEAD)
    used: int = 0


class Engine:
    def __init__(self, backend: Backend, tokenizer: Tokenizer | None = None) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.vocab_size = usable_vocab_size(backend, tokenizer)
        self._last_request = 0
        self._step = 0
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self._free = list(range(backend.rows))  # a heap: low rows first keeps the batch compact
        self._in_flight: deque[InFlightStep] = deque()
        self._events: list[Event] = []
        self._sampling: SamplingState | None = None
        self._draw_tokens = backend.capture(draw_tokens)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running or self._events)

    def add(self, prompt: Sequence[int], settings: Settings | None = None, first_sample: int = 0) -> int:
        """Queue a request for `settings.candidates` texts after `prompt`; its number marks its events.

        An empty prompt starts from end-of-text, as the beginning of a document did in training. The samples
        are numbered from `first_sample` on, and their random numbers follow from their numbers: a request
        may be added in parts.
        """
        settings = Settings() if settings is None else settings
        if settings.beams is not None:
            raise SettingError(
                "beams are searched by generate.beam, not by the engine. Leave beams out here."
            )
        ids = check_prompt(prompt, self.backend, self.tokenizer)
        if settings.stop and self.tokenizer is None:
            raise UserError(
                "stop strings need a tokenizer, and this model came without one; use stop_tokens."
            )
        self._last_request += 1
        request = Request(
            number=self._last_request,
            prompt=ids,
            settings=settings,
            seed=secrets.randbits(32) if settings.seed is None else settings.seed,
            word_biases=WordBiases(settings, self.tokenizer),
            stop_tokens=stop_tokens(settings, self.backend, self.tokenizer),
        )
        numbers = range(first_sample, first_sample + settings.candidates)
        samples = [Sample(request, i, self.tokenizer, self.vocab_size) for i in numbers]
        request.samples = samples
        self._waiting.extend(samples)
        return request.number

    def cancel(self, number: int) -> None:
        """End a request; its texts so far come with the next step's events."""
        for sample in [s for s in (*self._running, *self._waiting) if s.request.number == number]:
            self._finish(sample, "cancelled")

    def clear(self) -> None:
        """Drop every request and all pending events."""
        self._waiting.clear()
        self._running.clear()
        self._in_flight.clear()
        self._events.clear()
        self._sampling = None
        self._free = list(range(self.backend.rows))

    def step(self) -> list[Event]:
        """One token for every running sequence; the events that the host has learned of."""
        try:
            self._advance()
        except BaseException:  # also Ctrl-C: what was half done is dropped, and the rows are freed
            self._in_flight.clear()
            self._sampling = None
            for sample in [*self._running, *self._waiting]:
                self._finish(sample, "cancelled")
            self._free = list(range(self.backend.rows))
            raise
        events, self._events = self._events, []
        return events

    def _advance(self) -> None:
        self._step += 1
        if any(s.must_be_read(self.backend.context) for s in self._running):
            self._collect(self._step)
        drawn = False
        for sample in [s for s in self._running if s.unfinished and s.length == self.backend.context]:
            self._slide(sample)
            drawn = True
        due = [s for s in self._running if s.unfinished and s.step < self._step]
        if due:
            logits = self.backend.decode(
                [s.row for s in due], self._latest_tokens(due), [s.length for s in due]
            )
            for sample in due:
                sample.length += 1
            self._sample(due, logits)  # (B, V)
            drawn = True
        drawn = self._admit() or drawn
        pipelined = bool(self._in_flight) and not isinstance(self._in_flight[-1].tokens, np.ndarray)
        self._collect(self._step - 1 if drawn and pipelined else self._step)

    def _admit(self) -> bool:
        """Give waiting sequences a row and their first token; samples of one prompt share its prefill."""
        groups: list[list[Sample]] = []
        while self._waiting and (self._free or self._waiting[0].limit == 0):
            first = self._waiting.popleft()
            if first.limit == 0:
                self._finish(first, "length")
                continue
            group = [first]
            while (
                self._waiting and self._waiting[0].request is first.request and len(group) < len(self._free)
            ):
                group.append(self._waiting.popleft())
            self._running += group
            for sample in group:
                sample.row = heapq.heappop(self._free)
                sample.started = time.perf_counter()
            groups.append(group)
        if groups:
            self._prefill(groups)
        return bool(groups)

    def _prefill(self, groups: list[list[Sample]]) -> None:
        lengths = [self._prompt_length(group[0]) for group in groups]
        sources = [next((s for s in g[0].request.samples if s.holds_prompt), None) for g in groups]
        unread = [i for i, source in enumerate(sources) if source is None]
        if unread:
            logits = self.backend.extend(
                [groups[i][0].row for i in unread],
                [groups[i][0].request.prompt[-lengths[i] :] for i in unread],
            )  # (unread, V)
            for i, after_prompt in zip(unread, logits, strict=True):
                groups[i][0].request.logits = after_prompt  # (V,)
        for group, length, source in zip(groups, lengths, sources, strict=True):
            rest = group[1:] if source is None else group
            if rest:
                self.backend.copy((group[0] if source is None else source).row, [s.row for s in rest], length)
            for sample in group:
                sample.length = length
                sample.holds_prompt = True
        samples = [sample for group in groups for sample in group]
        firsts = [sample.request.logits for sample in samples]
        self._sample(samples, array_api_compat.array_namespace(firsts[0]).stack(firsts))  # (samples, V)
        for group in groups:
            if group[-1] is group[-1].request.samples[-1]:
                group[-1].request.logits = None

    def _prompt_length(self, sample: Sample) -> int:
        """How much of a prompt is read; truncation is noted once."""
        request = sample.request
        length = fit_length(len(request.prompt), sample.limit, self.backend.context)
        if length < len(request.prompt) and not request.cut_noted:
            request.cut_noted = True
            sample.note(
                f"the prompt has {len(request.prompt)} tokens and the model reads {self.backend.context} "
                f"at a time: it saw the last {length}"
            )
            self._events.append(Event(request.number, sample.index, note=sample.notes[-1]))
        return length

    def _slide(self, sample: Sample) -> None:
        """Read the last part of the text again from position 0, to make room for more.

        Keys in the cache belong to absolute positions, so they cannot be moved: every slide reads afresh.
        Keeping three quarters costs three positions read per token gained and never forgets more than a
        quarter; keeping all but one would cost a whole window per token.
        """
        context = self.backend.context
        text = sample.history
        length = fit_length(len(text), sample.limit - sample.drawn, context)
        if not sample.slid:
            sample.slid = True
            sample.note(
                f"the text is longer than the {context} tokens the model reads at a time: "
                f"from here on it sees only the last {context - context // 4} to {context}"
            )
            self._events.append(Event(sample.request.number, sample.index, note=sample.notes[-1]))
        sample.holds_prompt = False
        logits = self.backend.extend([sample.row], [text[-length:]])  # (1, V)
        sample.length = length
        self._sample([sample], logits)

    def _latest_tokens(self, samples: list[Sample]) -> Array:
        """The last token of each sequence, (B,), without waiting for the device."""
        groups: list[tuple[InFlightStep, list[int]]] = []
        for sample in samples:
            in_flight, index = sample.latest
            if not groups or groups[-1][0] is not in_flight:
                groups.append((in_flight, []))
            groups[-1][1].append(index)
        parts = []
        for in_flight, indices in groups:
            full = indices == list(range(len(in_flight.samples)))
            parts.append(
                in_flight.tokens if full else in_flight.tokens[self.backend.array(np.array(indices))]
            )
        return parts[0] if len(parts) == 1 else array_api_compat.array_namespace(*parts).concat(parts)

    def _sample(self, samples: list[Sample], logits: Array) -> None:
        state = self._sampling_state(samples)
        if self.vocab_size < self.backend.config.vocab_size:
            logits = logits[:, : self.vocab_size]
        if not state.edits_fixed:
            state.edits = collect_edits([s.logits_processor for s in samples], self.backend.array)
        tokens, report = self._draw_tokens(logits, state.params, state.random[:, state.used], state.edits)
        state.used += 1
        in_flight = InFlightStep(self._step, samples, tokens, self.backend.fetch(report))
        self._in_flight.append(in_flight)
        for index, sample in enumerate(samples):
            sample.latest = (in_flight, index)
            sample.drawn += 1
            sample.step = self._step

    def _sampling_state(self, samples: list[Sample]) -> SamplingState:
        state = self._sampling
        if state is None or state.samples != samples:
            fixed = all(s.logits_processor.fixed for s in samples)
            state = SamplingState(
                samples=samples,
                params=stack_params(
                    [s.request.settings for s in samples], self.vocab_size, self.backend.array
                ),
                edits=collect_edits([s.logits_processor for s in samples], self.backend.array)
                if fixed
                else None,
                edits_fixed=fixed,
                random=None,
                used=RANDOM_AHEAD,
            )
            self._sampling = state
        if state.used == RANDOM_AHEAD:
            ahead = np.stack([s.rng.window(s.drawn, RANDOM_AHEAD) for s in samples])
            state.random, state.used = self.backend.array(ahead), 0
        return state

    def _collect(self, up_to: int) -> None:
        """Process the tokens of all steps until `up_to`, waiting for the device if need be."""
        while self._in_flight and self._in_flight[0].step <= up_to:
            in_flight = self._in_flight.popleft()
            report = in_flight.report().tolist()  # (B, 1 + [1 + 2n])
            for sample, values in zip(in_flight.samples, report, strict=True):
                if not sample.finished:  # else it ended while this step was in flight
                    self._append_token(sample, values)

    def _append_token(self, sample: Sample, values: list[float]) -> None:
        request = sample.request
        token = int(values[0])
        if token == NOTHING:
            self._finish(sample, "error", error=_no_token_error(request.settings))
            return
        logprob, alternatives = sample.unpack(values)
        if token in request.stop_tokens:
            self._finish(sample, "stop")
            return
        text, stopped = sample.push(token, logprob, alternatives)
        if stopped or len(sample.tokens) == sample.limit:
            reason = "stop" if stopped else "length"
            self._finish(
                sample, reason, Event(request.number, sample.index, text, token, logprob, alternatives)
            )
            return
        self._events.append(Event(request.number, sample.index, text, token, logprob, alternatives))

    def _finish(
        self, sample: Sample, reason: str, last: Event | None = None, error: UserError | None = None
    ) -> None:
        generation, rest = sample.close(reason)
        if sample in self._running:
            self._running.remove(sample)
            heapq.heappush(self._free, sample.row)
        elif sample in self._waiting:
            self._waiting.remove(sample)
        last = Event(sample.request.number, sample.index) if last is None else last
        self._events.append(
            Event(
                last.request, last.sample, last.text + rest, last.token, last.logprob, last.alternatives,
                generation=generation, error=error,
            )
        )  # fmt: skip


def fit_length(length: int, remaining: int, context: int) -> int:
    """How many of the last tokens to read, so that `remaining` more can be drawn, at best without sliding."""
    if length <= context and length + remaining - 1 <= context:
        return length
    least = context - context // 4
    return min(length, max(least, min(context, context - (remaining - 1))))


def check_prompt(prompt: Sequence[int], backend: Backend, tokenizer: Tokenizer | None) -> list[int]:
    """The ids to start from; none at all means the beginning of a document."""
    vocab_size = backend.config.vocab_size
    ids = [int(token) for token in prompt]
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise SettingError(f"token id {wrong} is not in this model's vocabulary, 0 to {vocab_size - 1}.")
    if ids:
        return ids
    start = end_of_text(backend, tokenizer)
    if start is None:
        start = backend.config.bos_token_id
    if start is None or not 0 <= start < vocab_size:
        raise SettingError(
            "an empty prompt needs an end-of-text token, which this model lacks. Write a prompt."
        )
    return [start]


def usable_vocab_size(backend: Backend, tokenizer: Tokenizer | None) -> int:
    """How many of the logits stand for tokens.

    A vocabulary is often padded to a round number (nanoGPT's 50,304 for 50,257 tokens). What lies beyond the
    tokenizer's ids cannot be written, so it is never drawn, listed or counted as probability.
    """
    size = backend.config.vocab_size
    return size if tokenizer is None else min(size, tokenizer.vocab_size)


def end_of_text(backend: Backend, tokenizer: Tokenizer | None) -> int | None:
    eot = None if tokenizer is None else tokenizer.eot_id
    # One that was added to the tokenizer alone lies above the embeddings: the model never learned it.
    return backend.config.eos_token_id if eot is None or eot >= backend.config.vocab_size else eot


def stop_tokens(settings: Settings, backend: Backend, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The tokens that end a text: those asked for, end-of-text, and every other one that the config names."""
    for token in settings.stop_tokens:
        check_whole("a token id in stop_tokens", token, 0, backend.config.vocab_size - 1, "the vocabulary")
    if settings.ignore_eot:
        return frozenset(settings.stop_tokens)
    eot = end_of_text(backend, tokenizer)
    return frozenset((*settings.stop_tokens, *backend.config.eos_token_ids, *(() if eot is None else (eot,))))


def _no_token_error(settings: Settings) -> UserError:
    banning = ("logit_bias", "banned_words", "no_repeat_ngram")
    used = [name for name in banning if getattr(settings, name) not in ({}, (), None)]
    if used:
        return SettingError(f"{' and '.join(used)} left no token that may come next. Ban fewer.")
    return UserError("the model's logits are not finite numbers. Try dtype float32; or the weights are bad.")
