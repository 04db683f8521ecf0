"""Log-likelihoods of the scored tokens of windows: computed by the backend, or cached by an earlier run.

The backend plans the batches and computes shared prefixes once (for torch: backends/torch/scoring.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from glassgpt.backends.protocol import Backend, ScoreRequest, TokenScores
from glassgpt.errors import UserError
from glassgpt.evaluate.scoring.score_cache import ScoreCache, cache_key
from glassgpt.evaluate.scoring.windows import Group
from glassgpt.generate.prompt import find_unknown_id
from glassgpt.progress import Advance


class Scorer:
    """Scores windows. `excluded` are the tokens left out at the first scored token of windows with
    `exclude`."""

    def __init__(
        self, backend: Backend, cache: ScoreCache | None = None, excluded: Sequence[int] = ()
    ) -> None:
        self.backend = backend
        self.cache = ScoreCache() if cache is None else cache
        self.excluded = sorted(excluded)
        self._excluded_key = np.array(self.excluded, np.int64).tobytes()

    @property
    def n_positions(self) -> int:
        return self.backend.context

    def uncached(self, groups: Sequence[Group]) -> list[Group]:
        """The windows whose scores are not in the cache, each once, still in their groups."""
        seen: set[bytes] = set()
        uncached = []
        for group in groups:
            new = []
            for window in group:
                key = cache_key(window, self._excluded_key)
                if key not in self.cache and key not in seen:
                    self._check_ids(window)
                    seen.add(key)
                    new.append(window)
            if new:
                uncached.append(new)
        return uncached

    def _check_ids(self, row: ScoreRequest) -> None:
        vocab_size = self.backend.config.vocab_size
        unknown = find_unknown_id(row.ids.tolist(), vocab_size)
        if unknown is not None:
            raise UserError(
                f"the tokenizer gives the id {unknown:,}, but the model's vocabulary has {vocab_size:,}: "
                "they do not belong together. Put the model's own tokenizer.json beside its weights."
            )

    def score(self, groups: Sequence[Group], on_tokens: Advance = lambda n: None) -> list[list[TokenScores]]:
        """The scores of every window of every group. `on_tokens` gets the number of tokens of each batch."""
        uncached = self.uncached(groups)
        with closing(self.backend.score(uncached, self.excluded)) as batches:
            for indices, scores in batches:
                windows = [uncached[group][i] for group, i in indices]
                keys = [cache_key(window, self._excluded_key) for window in windows]
                self.cache.add(list(zip(keys, scores, strict=True)))
                on_tokens(sum(len(window.ids) for window in windows))
        return [[self.cache[cache_key(window, self._excluded_key)] for window in group] for group in groups]
