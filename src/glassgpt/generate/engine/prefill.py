"""Read prompts chunk by chunk between decoding steps, copying beginnings that the prefix cache holds.

A prompt is always read by itself, in chunks cut at the same places whatever else runs, so its keys and values
are always the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.backends.protocol import Array, Backend
from glassgpt.generate.engine.exact_scores import ExactScores
from glassgpt.generate.engine.prefix_cache import PrefixCache
from glassgpt.generate.engine.request import Request, Sample, unpack_scores
from glassgpt.generate.generation import PromptLogprobs
from glassgpt.generate.sampling.sampler import score_tokens


@dataclass(eq=False)
class Prefill:
    """A text being read into the cache, chunk by chunk: a prompt, or a text whose context window slid."""

    samples: list[Sample]  # the text is read into the row of the first; the others get a copy
    ids: list[int]
    done: int = 0  # positions that the row holds
    logits: Array | None = None  # (V,) after the last token
    scores: PromptLogprobs | None = None  # of the tokens read so far, if requested

    @property
    def row(self) -> int:
        return self.samples[0].row

    @property
    def rest(self) -> list[int]:
        return self.ids[self.done :]

    @property
    def request(self) -> Request:
        return self.samples[0].request


class PromptReader:
    """The texts that have a row and are not fully read yet, first come, first served.

    A call of `read` ends with the chunk that brings it to `step_tokens` tokens or more.
    """

    def __init__(
        self,
        backend: Backend,
        rows: PrefixCache,
        vocab_size: int,
        chunk: int,
        step_tokens: int,
        exact: ExactScores | None = None,
    ) -> None:
        self.backend = backend
        self.exact = exact  # computes the scores, if the backend rounds for speed
        self.vocab_size = vocab_size
        self.chunk = chunk
        self.step_tokens = step_tokens
        self._rows = rows
        self._texts: deque[Prefill] = deque()

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def samples(self) -> Iterator[Sample]:
        return (sample for prefill in self._texts for sample in prefill.samples)

    @property
    def unread_tokens(self) -> int:
        return sum(len(prefill.ids) - prefill.done for prefill in self._texts)

    def add(self, prefill: Prefill) -> None:
        self._texts.append(prefill)

    def add_first(self, prefill: Prefill) -> None:
        """Read this text before those already waiting."""
        self._texts.appendleft(prefill)

    def remove(self, sample: Sample) -> None:
        """Remove a cancelled sample. A text is no longer read when its last sample is removed."""
        for prefill in [prefill for prefill in self._texts if sample in prefill.samples]:
            prefill.samples.remove(sample)
            if not prefill.samples:
                self._texts.remove(prefill)

    def clear(self) -> None:
        self._texts.clear()

    def read(self) -> list[Prefill]:
        """Read some chunks; return the texts that were read to their end, with the logits after it.

        A beginning that another row holds is copied. This is looked up before every chunk: if several prompts
        that begin alike arrive together, one is read and the others copy.
        """
        budget, ready = self.step_tokens, []
        while self._texts and budget > 0:
            prefill = self._texts[0]
            self._reuse(prefill)
            budget -= min(len(prefill.rest), self.chunk)
            if len(prefill.rest) > self.chunk:
                self._read_chunk(prefill)
            else:
                ready.append(self._texts.popleft())
        self._read_last([prefill for prefill in ready if prefill.rest])
        return ready

    def copy(self, source: int, samples: Sequence[Sample], length: int) -> None:
        """Copy the beginning of a row to the rows of these samples."""
        if samples:
            self.backend.copy(source, [sample.row for sample in samples], length)
            for sample in samples:
                self._rows.keep_like(sample.row, source)

    def _reuse(self, prefill: Prefill) -> None:
        """Copy the beginning of a text from another row, if that holds more of it than its own row."""
        if prefill.scores is not None:  # all of its logits are needed
            return
        row, length = self._rows.find(prefill.ids, prefill.request.cache_scope)
        if length <= prefill.done:
            return
        if row != prefill.row:
            self.backend.copy(row, [prefill.row], length)
        self._rows.keep(prefill.row, prefill.ids[:length])
        if not prefill.request.read:
            prefill.request.cached_tokens += length - prefill.done
        prefill.done = length

    def _read_chunk(self, prefill: Prefill) -> None:
        """Read one whole chunk, which other rows may copy afterwards."""
        chunk = prefill.rest[: self.chunk]
        if prefill.scores is None:
            self.backend.extend([prefill.row], [chunk], [prefill.done], "none")
            self._rows.keep(prefill.row, prefill.ids[: prefill.done + len(chunk)])
        else:
            self._score_chunk(prefill, prefill.scores, chunk)
        prefill.done += len(chunk)

    def _read_last(self, ready: Sequence[Prefill]) -> None:
        """Read the rest of each text, at most a chunk, all texts together."""
        together = [prefill for prefill in ready if prefill.scores is None]
        if together:
            logits = self.backend.extend(
                [p.row for p in together], [p.rest for p in together], [p.done for p in together]
            )  # (prefills, V)
            for prefill, after in zip(together, logits, strict=True):
                prefill.logits = after
                self._rows.keep(prefill.row, prefill.ids)
        for prefill in ready:
            if prefill.scores is not None:
                prefill.logits = self._score_chunk(prefill, prefill.scores, prefill.rest)
            self.copy(prefill.row, prefill.samples[1:], len(prefill.ids))

    def _score_chunk(self, prefill: Prefill, scores: PromptLogprobs, chunk: list[int]) -> Array:
        """Read a chunk and score the token after each of its tokens; return the last logits, (V,)."""
        wanted = prefill.request.settings.prompt_logprobs
        assert wanted is not None
        # On a GPU this may be another computation than a plain prefill's: others must not copy it.
        self._rows.keep(prefill.row, [])
        end = prefill.done + len(chunk)
        if self.exact is None:
            logits = self.backend.extend([prefill.row], [chunk], [prefill.done], "all")  # (T, V)
            last = logits[len(chunk) - 1]
        else:
            logits = self.exact.read(prefill.row, prefill.ids[:end], prefill.done)
            # Tokens are drawn from the fast backend's logits.
            last = self.backend.extend([prefill.row], [chunk], [prefill.done])[0]
        targets = prefill.ids[prefill.done + 1 : end + 1]
        if targets:
            known = logits[: len(targets), : self.vocab_size]
            tokens = self.backend.array(np.minimum(targets, self.vocab_size - 1))
            report = self.backend.fetch(score_tokens(known, tokens, min(wanted, self.vocab_size)))()
            for target, values in zip(targets, report.tolist(), strict=True):
                logprob, alternatives = unpack_scores(values, wanted)
                scores.logprobs.append(logprob if target < self.vocab_size else None)  # else: padding
                scores.alternatives.append(alternatives)
        return last
