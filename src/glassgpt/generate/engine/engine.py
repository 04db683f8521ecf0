"""The scheduler: requests join and leave between steps, and every step gives each running sequence a token.

    engine = Engine(backend, tokenizer)
    number = engine.add(ids, settings)
    while engine.busy:
        for event in engine.step(): ...

A step computes either a token for every running sequence (`_decode`) or a few chunks of the new prompts
(`_read_prompts`). When both have work, they alternate: a long prompt does not hold up running sequences, nor
do they hold up a short prompt. The step then reports the events that the host knows of (`_collect`).

A request's text does not depend on the other requests: its prompt is read by itself, in chunks that depend on
the prompt alone, its random numbers follow from its own seed, and the sampler treats sequences separately.

On a GPU the loop is a pipeline (pipeline.py). A step is queued on the device with the tokens of the previous
step still there; only then does the host read those tokens, while the device computes. A sequence that turns
out to have ended has computed one token in vain. A draw that depends on the text so far (penalties, n-grams)
waits for the previous step; so does the whole step if a context window slides.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import Array, Backend, array_namespace
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.engine.exact_scores import ExactScores
from glassgpt.generate.engine.pipeline import Drawn, SamplingPipeline
from glassgpt.generate.engine.prefill import Prefill, PromptReader
from glassgpt.generate.engine.prefix_cache import PrefixCache
from glassgpt.generate.engine.request import Request, Sample
from glassgpt.generate.engine.speculation import (
    Cost,
    DraftModel,
    Guess,
    Speculator,
    check_draft,
    guess_ahead,
    verify,
)
from glassgpt.generate.generation import Event, PromptLogprobs
from glassgpt.generate.prompt import (
    check_prompt,
    fit_length,
    sliding_note,
    stop_tokens,
    truncation_note,
    usable_vocab_size,
)
from glassgpt.generate.sampling.constraints import Constraint, GrammarCompiler
from glassgpt.generate.sampling.logits_processors import MakeRule, WordBiases
from glassgpt.generate.sampling.mask_workers import MaskWorkers
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import NOTHING
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

CHUNK = 64  # prompt tokens read together, unless the backend has its own `prefill_chunk`
CHUNKS_PER_STEP = 4
MASK_GRACE = 0.005  # seconds a step waits for masks that are not ready: most need less than 0.001
MASK_WAIT = 0.05  # seconds it waits if there is nothing else to do

SetUpRow = Callable[[int, object], None]


@dataclass
class Stats:
    """What an engine has done so far. The counts never decrease."""

    requests: int = 0
    prompt_tokens: int = 0  # in the prompts read so far
    cached_tokens: int = 0  # of these, found in the prefix cache
    read_tokens: int = 0  # prompt tokens computed, including those read again after a context window slid
    generated_tokens: int = 0
    drafted_tokens: int = 0  # guessed ahead by speculation
    accepted_tokens: int = 0  # of these, guessed right


class Engine:
    """Use it from one thread at a time.

    `step_tokens` bounds the prompt tokens read in one step, rounded up to a whole chunk. Without
    `prefix_cache` every prompt is read from its beginning. `draft` is a smaller model with the same
    vocabulary, for requests that speculate with one.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer | None = None,
        *,
        prefix_cache: bool = True,
        step_tokens: int | None = None,
        draft: Backend | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.vocab_size = usable_vocab_size(backend, tokenizer)
        # With one row, no other sequence waits and none can share: read the prompt in one piece.
        chunk = backend.context if backend.rows == 1 else getattr(backend, "prefill_chunk", CHUNK)
        if step_tokens is not None:
            check_whole("step_tokens", step_tokens, 1)
        if draft is not None:
            check_draft(draft, backend)
        self._draft = None if draft is None else DraftModel(draft.with_rows(backend.rows))
        self._set_up_row: SetUpRow | None = getattr(backend, "set_up_row", None)
        self._on_host = isinstance(backend.array(np.zeros(1)), np.ndarray)
        ends = stop_tokens(SamplingParams(), backend, tokenizer)
        self._grammars = GrammarCompiler(tokenizer, self.vocab_size, sorted(ends))
        # With one row, a slow mask delays only the request that asked for it.
        self._mask_workers = None if backend.rows == 1 else MaskWorkers()
        self.stats = Stats()
        self._last_request = 0
        self._step = 0
        self._reads = False  # the last step read prompts
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self._rows = PrefixCache(backend.rows, chunk, prefix_cache)
        self._adapters = [0] * backend.rows  # with which each row computes
        step_tokens = CHUNKS_PER_STEP * chunk if step_tokens is None else step_tokens
        self._exact = ExactScores(backend) if getattr(backend, "is_rounded", False) else None
        self._reader = PromptReader(backend, self._rows, self.vocab_size, chunk, step_tokens, self._exact)
        self._pipeline = SamplingPipeline(backend, self.vocab_size)
        self._events: list[Event] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._reader or self._running or self._events)

    @property
    def running(self) -> int:
        """The number of sequences that have a row, generating or reading their prompt."""
        return len(self._samples_with_rows())

    @property
    def waiting(self) -> int:
        """The number of sequences waiting for a row."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """The number of tokens in prompts that have no row yet."""
        return sum(len(request.prompt) for request in {sample.request for sample in self._waiting})

    @property
    def tokens_left(self) -> list[int]:
        """The number of tokens that each sequence may still draw."""
        return [sample.limit - sample.drawn for sample in [*self._samples_with_rows(), *self._waiting]]

    @property
    def unread_tokens(self) -> int:
        """The number of prompt tokens not read yet."""
        return self._reader.unread_tokens + self.waiting_tokens

    def add(
        self,
        prompt: Sequence[int],
        settings: SamplingParams | None = None,
        rule: MakeRule | None = None,
        first_sample: int = 0,
        constraint: Constraint | None = None,
        cache_scope: str = "",
        row_setup: object = None,
        adapter: int = 0,
    ) -> int:
        """Queue a request for `settings.candidates` texts after `prompt`; its number marks its events.

        An empty prompt starts from end-of-text, as documents did in training. `rule()` makes the `TokenRule`
        of one text, which applies in addition to the settings. Samples are numbered from `first_sample` on,
        and their random numbers follow from these numbers: a request may be added in parts. `constraint` is
        the result of `compile(settings)`, which is called here if it is None. Requests with the same
        `cache_scope` share the beginnings of their prompts in the prefix cache. A `row_setup` is given to the
        backend's `set_up_row` for each row that the request takes. `adapter` is a number that the backend's
        `add_adapter` returned.
        """
        settings = SamplingParams() if settings is None else settings
        if settings.beams is not None:
            raise SettingError(
                "beams are searched by generate.beam, not by the engine. Leave beams out here."
            )
        ids = check_prompt(prompt, self.backend, self.tokenizer)
        if settings.stops_at_text and self.tokenizer is None:
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
            constraint=self.compile(settings) if constraint is None else constraint,
            rule=rule,
            cache_scope=f"{adapter} {cache_scope}" if adapter else cache_scope,
            row_setup=row_setup,
            adapter=adapter,
        )
        numbers = range(first_sample, first_sample + settings.candidates)
        samples = [Sample(request, i, self.tokenizer, self.vocab_size) for i in numbers]
        request.samples = samples
        for sample in samples:
            sample.speculator = self._speculator(sample)
            self._begin_mask(sample)
        self._waiting.extend(samples)
        self.stats.requests += 1
        return request.number

    def compile(self, settings: SamplingParams) -> Constraint | None:
        """Compile the grammar of the settings, if there is one. Slow; any thread may call it."""
        return self._grammars.compile(settings)

    def is_compiled(self, settings: SamplingParams) -> bool:
        """Whether `compile` returns immediately for these settings."""
        return self._grammars.is_known(settings)

    def _speculator(self, sample: Sample) -> Speculator | None:
        """The speculator of a sample; None without speculation.

        With `speculate` "auto", only a single text on a CPU is speculated on. There it is faster; in a batch,
        rounding would make a text depend on the others.
        """
        wanted = sample.request.settings.speculate
        if wanted == "draft" and self._draft is None:
            raise SettingError("speculate draft needs a draft model. Load one with it, or write lookup.")
        is_alone = self._on_host and self.backend.rows == 1
        if wanted == "off" or (wanted == "auto" and not is_alone):
            return None
        return Speculator(Cost(*getattr(self.backend, "verify_cost", ())), sample.request.prompt)

    def cancel(self, number: int) -> None:
        """End a request. The next step reports its texts so far."""
        for sample in [*self._samples_with_rows(), *self._waiting]:
            if sample.request.number == number:
                self._finish(sample, "cancelled")

    def clear(self) -> None:
        """Drop all requests and pending events, and empty the prefix cache."""
        self._waiting.clear()
        self._reader.clear()
        self._running.clear()
        self._pipeline.clear()
        self._events.clear()
        self._rows.clear()

    def _samples_with_rows(self) -> list[Sample]:
        return [*self._running, *self._reader.samples]

    def step(self) -> list[Event]:
        """Compute a token for every running sequence, or read more of the prompts; return the events."""
        try:
            self._advance()
        except BaseException:  # also Ctrl-C: drop unfinished work and free the rows
            self._pipeline.clear()
            for sample in [*self._samples_with_rows(), *self._waiting]:
                self._finish(sample, "cancelled")
            self._rows.clear()
            raise
        events, self._events = self._events, []
        return events

    def _advance(self) -> None:
        self._step += 1
        self._slide_full()
        self._admit()
        drawn = self._read_prompts() if self._reads_next() else self._decode()
        self._collect(self._step - 1 if drawn and self._pipeline.on_device else self._step)

    def _reads_next(self) -> bool:
        """Whether this step reads prompts: if there are any, but not twice in a row while sequences run."""
        self._reads = bool(self._reader) and not (self._reads and any(s.unfinished for s in self._running))
        return self._reads

    def _begin_mask(self, sample: Sample) -> None:
        """Have another thread compute which tokens may come next, while the model computes."""
        constraint = sample.logits_processor.constraint
        if constraint is not None and self._mask_workers is not None:
            constraint.begin(self._mask_workers)

    def _draw(self, samples: list[Sample], logits: Array) -> bool:
        """Draw the next token of samples whose mask is ready; others keep their logits. True if any was."""
        self._wait_for_masks(samples, MASK_GRACE)
        keep = []
        for i, sample in enumerate(samples):
            if sample.mask_ready:
                keep.append(i)
            else:  # a copy: a backend may write the next step's logits to the same place
                sample.held_logits = array_namespace(logits).asarray(logits[i], copy=True)
        if len(keep) < len(samples):
            samples = [samples[i] for i in keep]
            logits = logits[self.backend.array(np.array(keep, np.int64))] if keep else None
        if samples:
            self._pipeline.draw(self._step, samples, logits)
        return bool(samples)

    def _wait_for_masks(self, samples: list[Sample], timeout: float | None, count: int | None = None) -> None:
        """Wait until the masks of these samples are ready, or `count` of them."""
        pending = [s.logits_processor.constraint for s in samples if not s.mask_ready]
        if pending and self._mask_workers is not None:
            self._mask_workers.wait([c for c in pending if c is not None], timeout, count)

    def _draw_held(self) -> bool:
        """Draw for samples whose mask has become ready; True if there was one."""
        held = [s for s in self._running if s.held_logits is not None and not s.finished]
        ready = [s for s in held if s.mask_ready]
        if ready:
            logits = [s.held_logits for s in ready]
            for sample in ready:
                sample.held_logits = None
            self._pipeline.draw(self._step, ready, array_namespace(logits[0]).stack(logits))
        elif len(held) == len(self._running) and not self._reader:
            self._wait_for_masks(held, MASK_WAIT, count=1)
        return bool(ready)

    def _decode(self) -> bool:
        """Draw a token for every running sequence, or several where guesses were right; True if any."""
        guesses = self._guess()
        if guesses:
            verify(guesses, self.backend, self._draw_guessed)
            self.stats.drafted_tokens += sum(len(guess.tokens) for guess in guesses)
            self.stats.accepted_tokens += sum(guess.right for guess in guesses)
        drawn = self._draw_held() or bool(guesses)
        due = [s for s in self._running if s.due and s.step < self._step]
        return self._decode_one(due) or drawn if due else drawn

    def _decode_one(self, due: list[Sample]) -> bool:
        """Draw one token for each of these sequences; True if any was drawn."""
        logits = self.backend.decode(
            [s.row for s in due], self._pipeline.latest_tokens(due), [s.length for s in due]
        )  # (B, V)
        for sample in due:
            sample.length += 1
        if not all(sample.logits_processor.fixed for sample in due):
            self._collect(self._step)  # while a device computes, the host reads what the draw depends on
            unfinished = [i for i, sample in enumerate(due) if not sample.finished]
            if len(unfinished) < len(due):
                due = [due[i] for i in unfinished]
                logits = logits[self.backend.array(np.array(unfinished, np.int64))]
        return self._draw(due, logits) if due else False

    def _guess(self) -> list[Guess]:
        """Guess the next tokens of sequences where that is expected to pay."""
        if not any(sample.speculator for sample in self._running):
            return []
        self._collect(self._step)  # a guess continues what the host has read
        due = [sample for sample in self._running if sample.due]
        return guess_ahead(due, self.backend.context, self._draft)

    def _draw_guessed(self, samples: list[Sample], logits: Array) -> None:
        """Draw one token of texts that were guessed ahead, and read it: the next guess depends on it."""
        self._wait_for_masks(samples, None)
        self._pipeline.draw(self._step, samples, logits)
        for sample in samples:
            sample.length += 1
        self._collect(self._step)

    def _slide_full(self) -> None:
        """Slide the context window of sequences whose row is full."""
        full = [s for s in self._running if s.due and s.length == self.backend.context]
        if full:
            self._collect(self._step)
        for sample in full:
            if sample.unfinished:
                self._slide(sample)

    def _slide(self, sample: Sample) -> None:
        """Read the last part of the text again from position 0, to make room for more.

        Keys in the cache belong to absolute positions and cannot be moved, so every slide reads text again.
        Keeping three quarters costs three positions read per token gained and never forgets more than a
        quarter; keeping all but one would cost a whole window per token.
        """
        context = self.backend.context
        text = sample.history
        length = fit_length(len(text), sample.limit - sample.drawn, context)
        if not sample.slid:
            sample.slid = True
            sample.note(sliding_note(context))
            self._events.append(Event(sample.request.number, sample.index, note=sample.notes[-1]))
        sample.holds_prompt = False
        self._running.remove(sample)
        self._reader.add_first(Prefill([sample], text[-length:]))

    def _admit(self) -> None:
        """Give waiting sequences a row; samples of one prompt share its prefill."""
        while self._waiting and (self._rows.free or self._waiting[0].wants_nothing):
            first = self._waiting.popleft()
            if first.wants_nothing:
                self._finish(first, "length")
                continue
            request, group = first.request, [first]
            while self._waiting and self._waiting[0].request is request and len(group) < len(self._rows.free):
                group.append(self._waiting.popleft())
            ids = request.prompt[-self._prompt_length(first) :]
            for sample in group:
                sample.row = self._rows.take(ids, request.cache_scope)
                if self._set_up_row is not None:
                    self._set_up_row(sample.row, request.row_setup)
                self._set_adapter(sample.row, request.adapter)
                sample.started = time.perf_counter()
            prefill = Prefill(group, ids)
            source = next((s for s in self._running if s.request is request and s.holds_prompt), None)
            if source is not None:  # another sample has read it
                self._reader.copy(source.row, group, len(ids))
                prefill.done, prefill.logits = len(ids), request.logits
            elif request.settings.prompt_logprobs is not None and request.prompt_scores is None:
                unseen = len(request.prompt) - len(ids) + 1
                prefill.scores = request.prompt_scores = PromptLogprobs([None] * unseen, [None] * unseen)
            self._reader.add(prefill)

    def _set_adapter(self, row: int, number: int) -> None:
        if self._adapters[row] == number:
            return
        self._adapters[row] = number
        self.backend.set_adapter(row, number)  # type: ignore[attr-defined]
        if self._exact is not None:
            self._exact.set_adapter(row, number)

    def _prompt_length(self, sample: Sample) -> int:
        """The number of prompt tokens to read. Note a truncation once."""
        request = sample.request
        length = fit_length(len(request.prompt), sample.limit, self.backend.context)
        if length < len(request.prompt) and not request.cut_noted:
            request.cut_noted = True
            sample.note(truncation_note(len(request.prompt), length, self.backend.context))
            self._events.append(Event(request.number, sample.index, note=sample.notes[-1]))
        return length

    def _read_prompts(self) -> bool:
        """Read more of the prompts; True if one was read to its end."""
        before = self._reader.unread_tokens
        ready = self._reader.read()
        self.stats.read_tokens += before - self._reader.unread_tokens
        if ready:
            self._start(ready)
        return bool(ready)

    def _start(self, ready: list[Prefill]) -> None:
        """Start texts whose prompt has been read: draw the next token of every sample."""
        for prefill in ready:
            request = prefill.request
            for sample in prefill.samples:
                sample.length = len(prefill.ids)
                sample.offset = len(sample.history) - len(prefill.ids)
                sample.holds_prompt = not sample.slid
            self._running += prefill.samples
            if not request.read:
                request.read = True
                self.stats.prompt_tokens += len(request.prompt)
                self.stats.cached_tokens += request.cached_tokens
            if prefill.scores is not None:
                self._events.append(Event(request.number, prefill.samples[0].index, prompt=prefill.scores))
            if prefill.samples[-1].holds_prompt:  # samples still waiting for a row start from here as well
                request.logits = prefill.logits if request.samples[-1].row < 0 else None
        drawing = []
        for prefill in ready:
            for sample in list(prefill.samples):
                if sample.unfinished:
                    drawing.append((sample, prefill.logits))
                else:
                    self._finish(sample, "length")
        if drawing:
            samples, firsts = zip(*drawing, strict=True)
            self._draw(list(samples), array_namespace(firsts[0]).stack(firsts))

    def _collect(self, up_to: int) -> None:
        """Process the tokens of all steps up to `up_to`, waiting for the device if necessary."""
        samples: dict[Sample, None] = {}
        for drawn in self._pipeline.read(up_to):
            for sample, values in drawn if self._exact is None else self._scored_exactly(drawn, self._exact):
                self._append_token(sample, values)
                samples[sample] = None
        for sample in samples:  # when all are appended: a mask that is computed keeps its grammar busy
            if not sample.finished:
                self._begin_mask(sample)

    def _scored_exactly(self, drawn: list[Drawn], exact: ExactScores) -> list[Drawn]:
        """The reports, with exact log-probabilities for requests that ask for alternatives.

        That computes each step twice, so it is not done for requests that leave logprobs at 0.
        """
        wanted = [
            (sample, int(values[0]))
            for sample, values in drawn
            if sample.request.settings.logprobs and values[0] != NOTHING
        ]
        if not wanted:
            return drawn
        samples, tokens = zip(*wanted, strict=True)
        scores = dict(zip(samples, exact.score(samples, tokens, self.vocab_size), strict=True))
        return [(s, [values[0], *scores[s]] if s in scores else values) for s, values in drawn]

    def _append_token(self, sample: Sample, values: list[float]) -> None:
        request = sample.request
        token = int(values[0])
        if token == NOTHING and sample.constraint_complete:  # not yet known when the last token was drawn
            self._finish(sample, "stop")
            return
        if token == NOTHING:
            self._finish(sample, "error", error=sample.no_token_error())
            return
        logprob, alternatives = sample.unpack(values)
        if token in request.stop_tokens:
            self._finish(sample, "stop")
            return
        self.stats.generated_tokens += 1
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
        if sample.row >= 0:
            self._leave_row(sample)
        elif sample in self._waiting:
            self._waiting.remove(sample)
        last = Event(sample.request.number, sample.index) if last is None else last
        self._events.append(
            Event(
                last.request, last.sample, last.text + rest, last.token, last.logprob, last.alternatives,
                generation=generation, error=error,
            )
        )  # fmt: skip

    def _leave_row(self, sample: Sample) -> None:
        self._rows.release(sample.row)
        if sample in self._running:
            self._running.remove(sample)
            return
        self._reader.remove(sample)
