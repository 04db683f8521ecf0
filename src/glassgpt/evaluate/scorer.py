"""Rows to log-probabilities: what a backend computes, and what is known already from an earlier run.

The backend plans the batches and reads common prefixes once (for torch: model/scoring.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from glassgpt.backend import Backend, ScoreRequest
from glassgpt.errors import UserError
from glassgpt.evaluate.score_cache import Scores, Store, key_of
from glassgpt.evaluate.windows import Group, Row

OnTokens = Callable[[int], None]  # called with the number of tokens read


class Scorer:
    """A model that scores. `barred` are the tokens that a row marked `barred` may not choose first."""

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        barred: Sequence[int] = (),
    ) -> None:
        self.backend = backend
        self.store = Store() if store is None else store
        self.barred = np.array(sorted(barred), np.int64)
        self.barred_list = self.barred.tobytes()

    @property
    def n_positions(self) -> int:
        return self.backend.context

    def todo(self, groups: Sequence[Group]) -> list[Group]:
        """The rows whose scores are not known yet, each once, still in their groups."""
        seen: set[bytes] = set()
        left = []
        for group in groups:
            new = []
            for row in group:
                key = key_of(row, self.barred_list)
                if key not in self.store and key not in seen:
                    self._check_ids(row)
                    seen.add(key)
                    new.append(row)
            if new:
                left.append(new)
        return left

    def _check_ids(self, row: Row) -> None:
        largest, vocab_size = int(row.ids.max(initial=0)), self.backend.config.vocab_size
        if largest >= vocab_size:
            raise UserError(
                f"the tokenizer gives the id {largest:,}, but the model's vocabulary has {vocab_size:,}: "
                "they do not belong together. Put the model's own tokenizer.json beside its weights."
            )

    def score(self, groups: Sequence[Group], on_tokens: OnTokens = lambda n: None) -> list[list[Scores]]:
        """The scores of every row of every group."""
        missing = self.todo(groups)
        if missing:
            self._compute(missing, on_tokens)
        return [[self.store[key_of(row, self.barred_list)] for row in group] for group in groups]

    def _compute(self, missing: Sequence[Group], on_tokens: OnTokens) -> None:
        requests = [[ScoreRequest(row.ids, row.first, row.barred) for row in group] for group in missing]
        with closing(self.backend.score(requests, self.barred.tolist())) as batches:
            for indices, found in batches:
                rows = [missing[group][i] for group, i in indices]
                self.store.add(
                    [
                        (key_of(row, self.barred_list), Scores(*one))
                        for row, one in zip(rows, found, strict=True)
                    ]
                )
                on_tokens(sum(len(row.ids) for row in rows))
