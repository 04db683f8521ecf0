"""How much of its attention a head gives to the previous token, to copies, to what followed a copy.

In a text of T tokens, as masks (T, T) of the keys of a kind for each query. A query counts only if it has
such a key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

KINDS = ("previous_token", "duplicate_token", "induction", "first_token", "current_token")


def key_masks(ids: Sequence[int]) -> dict[str, np.ndarray]:
    """The keys of each kind, (T, T) bool, for queries from the third token on: before, all keys are of all
    kinds."""
    tokens = np.asarray(ids)
    T = len(tokens)
    query, key = np.arange(T)[:, None], np.arange(T)[None, :]
    equal = tokens[:, None] == tokens[None, :]
    after_equal = np.zeros((T, T), bool)
    after_equal[:, 1:] = equal[:, :-1] & (key[:, :-1] < query)  # the key's predecessor is a copy of the query
    masks = {
        "previous_token": key == query - 1,
        "duplicate_token": equal & (key < query),
        "induction": after_equal & (key <= query),
        "first_token": (key == 0) & (query >= 0),
        "current_token": key == query,
    }
    late = np.broadcast_to(query >= 2, (T, T))
    return {kind: mask & late for kind, mask in masks.items()}


class KindMeans:
    """The mean fraction of attention that heads give to each kind, over texts."""

    def __init__(self, n_layer: int, n_head: int) -> None:
        self.sums = np.zeros((len(KINDS), n_layer, n_head))
        self.counts = np.zeros(len(KINDS), np.int64)  # of queries that have a key of the kind

    def add(self, layer: int, weights: np.ndarray, masks: dict[str, np.ndarray]) -> None:
        """The attention weights (H, T, T) of a layer for one text. Count the text once, by `count`."""
        of_kinds = np.stack([masks[kind].ravel() for kind in KINDS]).astype(np.float32)  # (kinds, T * T)
        self.sums[:, layer] += of_kinds @ weights.reshape(len(weights), -1).T

    def count(self, masks: dict[str, np.ndarray]) -> None:
        for i, kind in enumerate(KINDS):
            self.counts[i] += int(masks[kind].any(axis=1).sum())

    @property
    def means(self) -> np.ndarray:
        """(kinds, layers, heads); NaN for a kind that no query had."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.sums / np.where(self.counts, self.counts, np.nan)[:, None, None])
