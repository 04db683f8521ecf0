"""The engine's state for a request and its samples, each a growing sequence."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassgpt.backends.protocol import Array
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.detokenizer import Detokenizer, tokens_covering
from glassgpt.generate.engine.speculation import Speculator
from glassgpt.generate.generation import Alternatives, Generation, PromptLogprobs
from glassgpt.generate.sampling.constraints import Constraint
from glassgpt.generate.sampling.logits_processors import LogitsProcessor, MakeRule, WordBiases
from glassgpt.generate.sampling.params import CONSTRAINTS, SamplingParams
from glassgpt.generate.sampling.rng import UniformRNG

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer


@dataclass(eq=False)
class Request:
    number: int
    prompt: list[int]
    settings: SamplingParams
    seed: int
    word_biases: WordBiases
    stop_tokens: frozenset[int]
    constraint: Constraint | None = None  # in its initial state; samples copy it
    samples: list[Sample] = field(default_factory=list)
    logits: Array | None = None  # (V,) after the prompt, while samples wait for a row
    cut_noted: bool = False
    added: float = field(default_factory=time.perf_counter)
    cache_scope: str = ""  # requests of one scope share prompt beginnings in the prefix cache
    adapter: int = 0  # of the backend, 0 for none
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    rule: MakeRule | None = None  # called once for each sample
    row_setup: object = None  # see `Engine.add`
    read: bool = False  # the prompt has been read for at least one sample
    prompt_scores: PromptLogprobs | None = None


class Sample:
    """One sequence of a request. Compared by identity; only the engine changes its fields."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self.request = request
        self.index = index
        self.limit = request.settings.max_new_tokens
        self.row = -1
        self.length = 0  # filled positions of the row
        self.drawn = 0  # tokens drawn, whether or not the host has read them
        self.step = 0  # the engine's step that drew the last token
        self.latest: tuple[Any, int] = (None, 0)  # the step that drew the last token, and its index there
        self.holds_prompt = False  # the row begins with the whole prompt, for other samples to copy
        self.slid = False
        self.offset = 0  # index in the history of the row's position 0
        self.speculator: Speculator | None = None
        self.held_logits: Array | None = None  # of the next token, if its mask was not ready
        self.finished = False
        self.started = 0.0
        self.first_token = 0.0
        self.notes: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.alternatives: list[Alternatives] = []
        self.rng = UniformRNG(request.seed, index)
        self.logits_processor = LogitsProcessor(
            request.settings,
            request.prompt,
            request.word_biases,
            vocab_size,
            request.stop_tokens,
            None if request.constraint is None else request.constraint.copy(),
            None if request.rule is None else request.rule(),
        )
        self._tokenizer = tokenizer
        self._out = Detokenizer(tokenizer, request.settings)
        self._stopped = False
        self._seen: set[tuple[int, ...]] = set()  # runs of `stop_on_repeat` tokens

    @property
    def unfinished(self) -> bool:
        """Whether more tokens will be drawn."""
        return not self.finished and self.drawn < self.limit

    @property
    def due(self) -> bool:
        """Whether the model may compute its next logits: it is not waiting for a mask."""
        return self.unfinished and self.held_logits is None

    @property
    def mask_ready(self) -> bool:
        constraint = self.logits_processor.constraint
        return constraint is None or constraint.ready

    @property
    def text(self) -> str:
        """The text that is certain so far."""
        return self._out.text

    @property
    def wants_nothing(self) -> bool:
        """Whether nothing is computed, not even the prompt."""
        return self.limit == 0 and self.request.settings.prompt_logprobs is None

    @property
    def history(self) -> list[int]:
        return self.request.prompt + self.tokens

    def note(self, text: str) -> None:
        self.notes.append(text)

    def unpack(self, values: list[float]) -> tuple[float | None, Alternatives | None]:
        """The log-probability and the alternatives in a sampler's report, whose first value is the token."""
        wanted = self.request.settings.logprobs
        return (None, None) if wanted is None else unpack_scores(values[1:], wanted)

    def push(self, token: int, logprob: float | None, alternatives: Alternatives | None) -> tuple[str, bool]:
        """Append a token; return the text that became certain, and whether the sequence ends."""
        if not self.tokens:
            self.first_token = time.perf_counter()
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if alternatives is not None:
            self.alternatives.append(alternatives)
        self.logits_processor.push(token)
        text, self._stopped = self._out.push(token)
        return text, self._stopped or self.constraint_complete or self._repeats()

    def _repeats(self) -> bool:
        """Whether the last tokens stand earlier in the text."""
        length = self.request.settings.stop_on_repeat
        if length is None or len(self.tokens) < length:
            return False
        last = tuple(self.tokens[-length:])
        if last in self._seen:
            return len(self.tokens) >= self.request.settings.min_new_tokens
        self._seen.add(last)
        return False

    @property
    def constraint_complete(self) -> bool:
        constraint = self.logits_processor.constraint
        return constraint is not None and constraint.complete

    def _note_unfulfilled(self, reason: str) -> None:
        """Add a note if a text ended before it fulfilled its grammar."""
        constraint, name = self.logits_processor.constraint, self.request.settings.constraint
        if constraint is not None and name is not None and not constraint.fulfilled:
            why = f"at max_new_tokens {self.limit}" if reason == "length" else "early"
            self.note(f"the text ended {why} and does not yet follow the {CONSTRAINTS[name]}")

    def no_token_error(self) -> UserError:
        """The error for a sequence that no token may continue."""
        settings, constraint = self.request.settings, self.logits_processor.constraint
        if constraint is not None and constraint.error is not None and settings.constraint is not None:
            return SettingError(
                f"the {CONSTRAINTS[settings.constraint]} cannot be followed after {self.text!r}: no token of "
                f"this vocabulary may come next ({constraint.error}). Change it, or take another model."
            )
        banning = ("logit_bias", "banned_words", "no_repeat_ngram", "min_new_tokens", *CONSTRAINTS)
        used = [name for name in banning if getattr(settings, name) not in ({}, (), None, 0)]
        if used:
            return SettingError(f"{' and '.join(used)} left no token that may come next. Ban fewer.")
        return UserError(
            "the model's logits are not finite numbers. Try dtype float32; or the weights are bad."
        )

    def close(self, reason: str) -> tuple[Generation, str]:
        """End the sequence; return the result, and the text that was held back."""
        if reason in ("length", "stop"):
            self._note_unfulfilled(reason)
        self.finished = True
        self.holds_prompt = False
        rest = "" if self._stopped else self._out.finish()
        settings, scores = self.request.settings, self.request.prompt_scores
        if not self.request.read:  # cancelled before its prompt was read
            scores = None
        text = self._out.text
        kept = len(self.tokens)
        if self._stopped and self._tokenizer is not None:
            kept = tokens_covering(text, self.tokens, self._tokenizer)
        generation = Generation(
            text=text,
            tokens=self.tokens[:kept],
            finish_reason=reason,
            prompt=self.request.prompt,
            prompt_tokens=len(self.request.prompt),
            logprobs=None if settings.logprobs is None else self.logprobs[:kept],
            alternatives=self.alternatives[:kept] if settings.logprobs else None,
            prompt_logprobs=None if scores is None else scores.logprobs,
            prompt_alternatives=scores.alternatives if scores and settings.prompt_logprobs else None,
            seed=None if settings.greedy else self.request.seed,
            sample=self.index,
            notes=self.notes,
            rule=self.logits_processor.rule,
            seconds=time.perf_counter() - self.started if self.started else 0.0,
            cached_tokens=self.request.cached_tokens,
            queue_s=(self.started if self.started else time.perf_counter()) - self.request.added,
            first_token_s=self.first_token - self.request.added if self.first_token else None,
        )
        return generation, rest


def unpack_scores(values: list[float], wanted: int) -> tuple[float, Alternatives | None]:
    """The log-probability and the alternatives in a row of `sampler.score_tokens`."""
    if wanted == 0:
        return values[0], None
    n = (len(values) - 1) // 2  # the most that any sequence of the batch requested
    ids, logprobs = values[1 : 1 + n], values[1 + n :]
    return values[0], [
        (int(token), logprob) for token, logprob in zip(ids[:wanted], logprobs[:wanted], strict=True)
    ]
