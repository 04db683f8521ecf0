"""Log-probabilities as in float32, for a backend that rounds activations for speed.

Tokens are drawn from the fast backend's logits, so a seed gives the same text whether or not its
log-probabilities are requested. The reported ones are computed again by `Backend.exact_backend`: the same
numbers as in a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from glassgpt.backends.protocol import Array, Backend
from glassgpt.generate.engine.request import Sample
from glassgpt.generate.sampling.sampler import score_tokens


class ExactScores:
    """A second cache: it reads the text of an engine's row when scores of that text are requested."""

    def __init__(self, rounded: Backend) -> None:
        self._rounded = rounded
        self._held: list[list[int]] = [[] for _ in range(rounded.rows)]  # what each row has read
        self._adapters = [0] * rounded.rows  # and with which adapter

    @cached_property
    def backend(self) -> Backend:
        """Created on first use, since it has its own cache."""
        exact: Backend = self._rounded.exact_backend()  # type: ignore[attr-defined]
        for row, number in enumerate(self._adapters):
            if number:
                exact.set_adapter(row, number)  # type: ignore[attr-defined]
        return exact

    def set_adapter(self, row: int, number: int) -> None:
        self._adapters[row], self._held[row] = number, []
        if "backend" in vars(self):
            self.backend.set_adapter(row, number)  # type: ignore[attr-defined]

    def read(self, row: int, ids: Sequence[int], start: int) -> Array:
        """The logits after each of ids[start:], (len(ids) - start, V)."""
        self._read(row, list(ids[:start]))
        logits = self.backend.extend([row], [ids[start:]], [start], "all")
        self._held[row] = list(ids)
        return logits

    def score(self, samples: Sequence[Sample], tokens: Sequence[int], vocab_size: int) -> list[list[float]]:
        """`sampler.score_tokens` of the token drawn after the text of each sample."""
        texts = [sample.history[sample.offset :] for sample in samples]
        rows = [sample.row for sample in samples]
        for row, ids in zip(rows, texts, strict=True):
            self._read(row, ids[:-1])
        logits = self.backend.decode(
            rows, np.array([ids[-1] for ids in texts]), [len(ids) - 1 for ids in texts]
        )
        for row, ids in zip(rows, texts, strict=True):
            self._held[row] = ids
        wanted = max(sample.request.settings.logprobs or 0 for sample in samples)
        known = logits[:, :vocab_size]
        scores: list[list[float]] = score_tokens(known, np.array(tokens), min(wanted, vocab_size)).tolist()
        return scores

    def _read(self, row: int, ids: list[int]) -> None:
        """Make a row hold these tokens, copied from the row that has most of them."""
        done = _common(self._held[row], ids)
        if len(ids) - done > 1:
            own = self._adapters[row]
            lengths = [
                _common(held, ids) if adapter == own else 0
                for held, adapter in zip(self._held, self._adapters, strict=True)
            ]
            best = max(lengths)
            if best > done:
                self.backend.copy(lengths.index(best), [row], best)
                done = best
        self._held[row] = []  # if reading is interrupted
        if done < len(ids):
            self.backend.extend([row], [ids[done:]], [done], "none")
        self._held[row] = ids


def _common(held: list[int], ids: list[int]) -> int:
    """The length of the longest common prefix."""
    length = min(len(held), len(ids))
    if held[:length] == ids[:length]:
        return length
    return next(i for i, (first, second) in enumerate(zip(held, ids, strict=False)) if first != second)
