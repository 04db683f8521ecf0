"""A request and its samples, each a sequence that grows: the engine's state for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from glassgpt.backend import Array
from glassgpt.generate.generation import Alternatives, Generation
from glassgpt.generate.logits_processors import LogitsProcessor, WordBiases
from glassgpt.generate.rng import UniformRNG
from glassgpt.generate.settings import Settings
from glassgpt.generate.text import TextOut, Tokenizer, tokens_covering


@dataclass(eq=False)
class Request:
    number: int
    prompt: list[int]
    settings: Settings
    seed: int
    word_biases: WordBiases
    stop_tokens: frozenset[int]
    samples: list[Sample] = field(default_factory=list)
    logits: Array | None = None  # (V,) after the prompt, while samples still wait for a row
    cut_noted: bool = False


class Sample:
    """One sequence of a request. Compared by identity; only the engine changes its fields."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self.request = request
        self.index = index
        self.limit = request.settings.max_new_tokens
        self.row = -1
        self.length = 0  # positions of the row that are filled
        self.drawn = 0  # tokens that were drawn, read or not
        self.step = 0  # of the engine, when the last one was drawn
        self.latest: tuple[Any, int] = (None, 0)  # the step that drew the last token, and its index there
        self.holds_prompt = False  # the row begins with the whole prompt, for other samples to copy
        self.slid = False
        self.finished = False
        self.started = 0.0
        self.notes: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.alternatives: list[Alternatives] = []
        self.rng = UniformRNG(request.seed, index)
        self.logits_processor = LogitsProcessor(
            request.settings, request.prompt, request.word_biases, vocab_size
        )
        self._tokenizer = tokenizer
        self._out = TextOut(tokenizer, request.settings.stop)
        self._stopped = False

    @property
    def unfinished(self) -> bool:
        """More tokens are to be drawn."""
        return not self.finished and self.drawn < self.limit

    @property
    def history(self) -> list[int]:
        return self.request.prompt + self.tokens

    def must_be_read(self, context: int) -> bool:
        """Whether the next token depends on something that only the host can see."""
        return self.unfinished and (self.length == context or not self.logits_processor.fixed)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def unpack(self, values: list[float]) -> tuple[float | None, Alternatives | None]:
        """The log-probability and the alternatives in a sampler's report."""
        wanted = self.request.settings.logprobs
        if wanted is None:
            return None, None
        if wanted == 0:
            return values[1], None
        n = (len(values) - 2) // 2  # as many as the neighbour that wanted most
        ids, logprobs = values[2 : 2 + n], values[2 + n :]
        return values[1], [
            (int(token), logprob) for token, logprob in zip(ids[:wanted], logprobs[:wanted], strict=True)
        ]

    def push(self, token: int, logprob: float | None, alternatives: Alternatives | None) -> tuple[str, bool]:
        """Append a token; the text that became certain, and whether a stop string was completed."""
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if alternatives is not None:
            self.alternatives.append(alternatives)
        if self.logits_processor.any:
            self.logits_processor.push(token)
        text, self._stopped = self._out.push(token)
        return text, self._stopped

    def close(self, reason: str) -> tuple[Generation, str]:
        """The result, and the text that had been held back."""
        self.finished = True
        self.holds_prompt = False
        rest = "" if self._stopped else self._out.finish()
        settings = self.request.settings
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
            seed=None if settings.greedy else self.request.seed,
            sample=self.index,
            notes=self.notes,
            seconds=time.perf_counter() - self.started if self.started else 0.0,
        )
        return generation, rest
