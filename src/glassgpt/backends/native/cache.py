"""The keys and values of some rows inside the engine, and the calls that read and write them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgpt.backends.native.library import doubles_at, floats_at, ints, ints_at
from glassgpt.backends.native.weights import DTYPES, Weights
from glassgpt.backends.protocol import Array, WantedLogits, check_lengths

CACHE_DTYPES = ("float32", "float16", "int8")  # int8: with a scale for every key and value vector of a head
PANEL = 64  # rows of logits are padded to whole panels (cpp/layout.h)
WANTED = {"none": 0, "last": 1, "all": 2}  # as `Wanted` in cpp/engine.h


class EngineCache:
    """The KV cache of a backend."""

    def __init__(self, weights: Weights, rows: int, context: int, dtype: str, parts: int) -> None:
        self.weights, self.rows = weights, rows
        self.padded = -(-weights.config.vocab_size // PANEL) * PANEL
        library = weights.library
        self.handle = library.new_cache(weights.handle, rows, context, DTYPES.index(dtype), parts)
        if not self.handle:
            raise library.failure()
        weakref.finalize(self, library.delete_cache, self.handle)

    def forward(self, rows: Any, starts: Any, tokens: Sequence[Any], wanted: WantedLogits) -> Array:
        """Float32 logits, of whose rows only the first V numbers are handed out."""
        check_lengths(rows, tokens, starts)
        counts, ids = _flat(tokens)
        count = {"none": 0, "last": len(counts), "all": len(ids)}[wanted]
        out = np.empty((count, self.padded), np.float32)
        weights = self.weights
        weights.library.check_result(
            weights.library.forward(
                weights.handle, self.handle, len(counts),
                *map(ints_at, (ints(rows), ints(starts), counts, ids)),
                WANTED[wanted], floats_at(out), self.padded,
            )
        )  # fmt: skip
        return None if wanted == "none" else out[:, : weights.config.vocab_size]

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        library, others = self.weights.library, ints(list(rows))
        source, length = ints([source, length]).tolist()
        library.check_result(
            library.copy(self.weights.handle, self.handle, source, len(others), ints_at(others), length)
        )

    def set_adapter(self, row: int, number: int) -> None:
        library = self.weights.library
        row, number = ints([row, number]).tolist()
        library.check_result(library.set_adapter(self.weights.handle, self.handle, row, number))

    def score(
        self,
        rows: Any,
        starts: Any,
        tokens: Sequence[Any],
        targets: Sequence[np.ndarray],
        excluded: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts, ids = _flat(tokens)
        wanted = ints(np.concatenate(targets))
        logprobs = np.zeros(len(ids))
        most_likely, allowed = np.zeros(len(ids), np.int32), np.zeros(len(ids), np.int32)
        weights = self.weights
        weights.library.check_result(
            weights.library.score(
                weights.handle, self.handle, len(counts),
                *map(ints_at, (ints(rows), ints(starts), counts, ids, wanted, excluded)), len(excluded),
                doubles_at(logprobs), ints_at(most_likely), ints_at(allowed),
            )
        )  # fmt: skip
        return logprobs, most_likely, allowed


def _flat(tokens: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens each row gets, and all of them one after the other."""
    return ints([len(ids) for ids in tokens]), ints(np.concatenate([np.asarray(ids) for ids in tokens]))
