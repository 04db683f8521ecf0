"""Log-likelihoods of the scored tokens of windows: computed by the backend, or cached by an earlier run.

The backend plans the batches and computes shared prefixes once (for torch: backends/torch/scoring.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from glassgpt.backends.protocol import Backend, ScoreRequest
from glassgpt.errors import UserError
from glassgpt.evaluate.score_cache import ScoreCache, Scores, cache_key
from glassgpt.evaluate.windows import Group, Window

OnTokens = Callable[[int], None]  # called with the number of tokens scored


class Scorer:
    """Scores windows. `suppress` are the tokens excluded at the first token of windows marked `suppress`."""

    def __init__(
        self,
        backend: Backend,
        cache: ScoreCache | None = None,
        suppress: Sequence[int] = (),
    ) -> None:
        self.backend = backend
        self.cache = ScoreCache() if cache is None else cache
        self.suppress = np.array(sorted(suppress), np.int64)
        self.suppressed_key = self.suppress.tobytes()

    @property
    def n_positions(self) -> int:
        return self.backend.context

    def uncached(self, groups: Sequence[Group]) -> list[Group]:
        """The windows whose scores are not in the cache, each once, still in their groups."""
        seen: set[bytes] = set()
        left = []
        for group in groups:
            new = []
            for row in group:
                key = cache_key(row, self.suppressed_key)
                if key not in self.cache and key not in seen:
                    self._check_ids(row)
                    seen.add(key)
                    new.append(row)
            if new:
                left.append(new)
        return left

    def _check_ids(self, row: Window) -> None:
        largest, vocab_size = int(row.ids.max(initial=0)), self.backend.config.vocab_size
        if largest >= vocab_size:
            raise UserError(
                f"the tokenizer gives the id {largest:,}, but the model's vocabulary has {vocab_size:,}: "
                "they do not belong together. Put the model's own tokenizer.json beside its weights."
            )

    def score(self, groups: Sequence[Group], on_tokens: OnTokens = lambda n: None) -> list[list[Scores]]:
        """The scores of every window of every group."""
        missing = self.uncached(groups)
        if missing:
            self._compute(missing, on_tokens)
        return [[self.cache[cache_key(row, self.suppressed_key)] for row in group] for group in groups]

    def _compute(self, missing: Sequence[Group], on_tokens: OnTokens) -> None:
        requests = [[ScoreRequest(row.ids, row.first, row.suppress) for row in group] for group in missing]
        with closing(self.backend.score(requests, self.suppress.tolist())) as batches:
            for indices, found in batches:
                rows = [missing[group][i] for group, i in indices]
                self.cache.add(
                    [
                        (cache_key(row, self.suppressed_key), Scores(*one))
                        for row, one in zip(rows, found, strict=True)
                    ]
                )
                on_tokens(sum(len(row.ids) for row in rows))
