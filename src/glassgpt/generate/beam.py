"""Beam search: the texts with the highest joint probability that a beam of a given width finds.

A hypothesis is ranked by log-probability / length ** length_penalty, where the length counts the generated
tokens, including a final end-of-text. Bias, bans and penalties act on the logits, but the normalizer stays
the model's own: for tokens that no setting touches, a score is the model's probability.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import Array, Backend
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.detokenizer import Detokenizer, tokens_covering
from glassgpt.generate.generation import Alternatives, Generation, Interrupted
from glassgpt.generate.prompt import (
    check_prompt,
    fit_length,
    sliding_note,
    stop_tokens,
    truncation_note,
    usable_vocab_size,
)
from glassgpt.generate.sampling.logits_processors import LogitsProcessor, WordBiases, collect_edits
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import apply_edits, logsumexp, rank_tokens

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer


@dataclass(frozen=True)
class Hypothesis:
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    row: int = 0  # of the cache; the parent's row until `_place` assigns one
    ended: bool = False  # by a stop token, which is its last token

    @property
    def joint(self) -> float:
        return sum(self.logprobs)

    def score(self, length_penalty: float) -> float:
        return float(self.joint / max(len(self.tokens), 1) ** length_penalty)


@dataclass
class Finished:
    score: float
    hypothesis: Hypothesis
    text: str
    reason: str


def beam_search(
    backend: Backend, prompt: Sequence[int], settings: SamplingParams, tokenizer: Tokenizer | None = None
) -> list[Generation]:
    """The `settings.samples` best continuations, best first. Uses the whole cache of the backend."""
    if settings.beams is None:
        raise SettingError("beam search needs a width. Write beams=4, for example.")
    if settings.beams > backend.rows:
        raise SettingError(f"beams {settings.beams} is more than the {backend.rows} rows of the cache.")
    if settings.stops_at_text and tokenizer is None:
        raise UserError("stop strings need a tokenizer, and this model came without one; use stop_tokens.")
    return _Search(backend, prompt, settings, settings.beams, tokenizer).run()


class _Search:
    def __init__(
        self,
        backend: Backend,
        prompt: Sequence[int],
        settings: SamplingParams,
        beams: int,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.tokenizer = tokenizer
        self.beams = beams
        self.running = [Hypothesis()]
        self.vocab_size = usable_vocab_size(backend, tokenizer)
        self.prompt = check_prompt(prompt, backend, tokenizer)
        self.stop_tokens = stop_tokens(settings, backend, tokenizer)
        self.word_biases = WordBiases(settings, tokenizer)
        self.finished: list[Finished] = []
        self.alternatives: dict[tuple[int, ...], Alternatives] = {}  # by the tokens before them
        self.notes: list[str] = []

    def run(self) -> list[Generation]:
        started = time.perf_counter()
        try:
            self._search()
        except KeyboardInterrupt:
            for hypothesis in self.running:
                if hypothesis.tokens:
                    self._finish(hypothesis, "cancelled")
            raise Interrupted([self._best(started)]) from None
        return self._best(started)

    def _best(self, started: float) -> list[Generation]:
        best = self.finished[: self.settings.samples]
        seconds = time.perf_counter() - started
        return [self._generation(finished, i, seconds) for i, finished in enumerate(best)]

    def _search(self) -> None:
        steps = self.settings.max_new_tokens
        beams = self.running
        length = fit_length(len(self.prompt), steps, self.backend.context)
        if length < len(self.prompt):
            self.notes.append(truncation_note(len(self.prompt), length, self.backend.context))
        logits = self.backend.extend([0], [self.prompt[-length:]]) if steps else None  # (1, V)
        for step in range(1, steps + 1):
            assert logits is not None
            beams = self.running = self._extend(beams, logits)
            if step == steps or not beams or self._is_settled(beams):
                break
            self._place(beams, length)
            if length == self.backend.context:
                logits, length = self._slide(beams, steps - step)
            else:
                last = np.array([h.tokens[-1] for h in beams])
                logits = self.backend.decode(
                    [h.row for h in beams], self.backend.array(last), [length] * len(beams)
                )
                length += 1
        if not self._is_settled(beams):
            for hypothesis in beams:
                self._finish(hypothesis, "length")

    def _extend(self, beams: list[Hypothesis], logits: Array) -> list[Hypothesis]:
        """The best one-token continuations of all hypotheses, without those that end."""
        logits = logits[:, : self.vocab_size]
        width = min(self.beams + len(self.stop_tokens), self.vocab_size)
        displayed = min(max(width, self.settings.logprobs or 0), self.vocab_size)
        total = self.backend.fetch(logsumexp(logits))()  # (B,)
        changes = collect_edits([self._logits_processor(h) for h in beams], self.backend.array)
        allowed = logits if changes is None else apply_edits(logits, changes)
        scores, ids = (self.backend.fetch(part)() for part in rank_tokens(allowed, width))  # (B, W)
        if not np.isfinite(total).all():
            raise UserError("the model's logits are not finite numbers. Try dtype float32.")
        if self.settings.logprobs:
            values, names = (self.backend.fetch(part)() for part in rank_tokens(logits, displayed))
            for i, hypothesis in enumerate(beams):
                pairs = zip(names[i], values[i].astype(np.float64) - total[i], strict=True)
                self.alternatives[hypothesis.tokens] = [(int(n), float(v)) for n, v in pairs][
                    : self.settings.logprobs
                ]
        logprobs = scores.astype(np.float64) - total[:, None]  # (B, W)
        candidates = []
        for i, hypothesis in enumerate(beams):
            for token, logprob in zip(ids[i], logprobs[i], strict=True):
                if logprob > -np.inf:
                    candidates.append((-(hypothesis.joint + logprob), i, int(token), float(logprob)))
        candidates.sort()
        extended: list[Hypothesis] = []
        for _, i, token, logprob in candidates:
            if len(extended) == self.beams:
                break
            parent = beams[i]
            ended = token in self.stop_tokens
            child = Hypothesis((*parent.tokens, token), (*parent.logprobs, logprob), parent.row, ended)
            if ended or self._has_stop(child):
                self._finish(child, "stop")
            else:
                extended.append(child)
        if not extended and not self.finished:
            raise SettingError("the bans left no token that may come next. Ban fewer.")
        return extended

    def _is_settled(self, beams: list[Hypothesis]) -> bool:
        """Whether no running hypothesis can still become one of the best."""
        if len(self.finished) < self.settings.samples:
            return False
        if not beams:
            return True
        penalty = self.settings.length_penalty
        worst = self.finished[self.settings.samples - 1].score
        # A joint probability only falls. With a positive penalty the longest text has the largest divisor.
        now, longest = len(beams[0].tokens), self.settings.max_new_tokens
        divisor = longest**penalty if penalty > 0 else (now + (now < longest)) ** penalty
        return bool(max(h.joint for h in beams) / divisor <= worst)

    def _place(self, beams: list[Hypothesis], length: int) -> None:
        """Give each hypothesis a row: a parent's first child keeps its row, the others get free rows."""
        kept: set[int] = set()
        moved: list[int] = []
        for i, hypothesis in enumerate(beams):
            if hypothesis.row in kept:
                moved.append(i)
            kept.add(hypothesis.row)
        free = [row for row in range(self.beams) if row not in kept]
        for i, row in zip(moved, free, strict=False):
            self.backend.copy(beams[i].row, [row], length)
            beams[i] = Hypothesis(beams[i].tokens, beams[i].logprobs, row)

    def _slide(self, beams: list[Hypothesis], remaining: int) -> tuple[Array, int]:
        context = self.backend.context
        if (note := sliding_note(context)) not in self.notes:
            self.notes.append(note)
        texts = [[*self.prompt, *h.tokens] for h in beams]
        length = fit_length(len(texts[0]), remaining, context)
        return self.backend.extend([h.row for h in beams], [text[-length:] for text in texts]), length

    def _logits_processor(self, hypothesis: Hypothesis) -> LogitsProcessor:
        processor = LogitsProcessor(
            self.settings, self.prompt, self.word_biases, self.vocab_size, self.stop_tokens
        )
        if processor.any:
            for token in hypothesis.tokens:
                processor.push(token)
        return processor

    def _text(self, hypothesis: Hypothesis) -> tuple[str, bool]:
        out = Detokenizer(self.tokenizer, self.settings)
        for token in hypothesis.tokens[: len(hypothesis.tokens) - hypothesis.ended]:
            if out.push(token)[1]:
                return out.text, True
        out.finish()
        return out.text, False

    def _has_stop(self, hypothesis: Hypothesis) -> bool:
        return self.settings.stops_at_text and self._text(hypothesis)[1]

    def _finish(self, hypothesis: Hypothesis, reason: str) -> None:
        score = hypothesis.score(self.settings.length_penalty)
        self.finished.append(Finished(score, hypothesis, self._text(hypothesis)[0], reason))
        self.finished.sort(key=lambda finished: (-finished.score, finished.hypothesis.tokens))

    def _generation(self, finished: Finished, index: int, seconds: float) -> Generation:
        tokens = finished.hypothesis.tokens
        kept = len(tokens) - finished.hypothesis.ended
        if finished.reason == "stop" and not finished.hypothesis.ended and self.tokenizer is not None:
            kept = tokens_covering(finished.text, tokens, self.tokenizer)
        n_alternatives = self.settings.logprobs
        return Generation(
            text=finished.text,
            tokens=list(tokens[:kept]),
            finish_reason=finished.reason,
            prompt=self.prompt,
            prompt_tokens=len(self.prompt),
            logprobs=None if n_alternatives is None else list(finished.hypothesis.logprobs[:kept]),
            alternatives=[self.alternatives[tokens[:i]] for i in range(kept)] if n_alternatives else None,
            sample=index,
            score=finished.score,
            notes=self.notes,
            seconds=seconds,
        )
