"""Relative positions in numpy, for the shipped model of music where torch is not installed (relative.py)."""

from __future__ import annotations

import numpy as np

from glassgpt.model.numpy_gpt2 import Array, NumpyGPT2, Tap
from glassgpt.model.tap import show


class NumpyRelativeGPT2(NumpyGPT2):
    """GPT-2 whose scores also depend on how far a key is from the query."""

    kind = "relative"

    def scores(self, layer: int, q: Array, k: Array, tap: Tap | None) -> Array:
        relative = show(tap, "relative", self.relative_scores(layer, q, k.shape[2]))
        scores: Array = super().scores(layer, q, k, tap) + relative  # (B, H, T, L)
        return scores

    def relative_scores(self, layer: int, q: Array, n_keys: int) -> Array:
        """Every query times the vector of its distance to each key: (B, H, T, D) -> (B, H, T, L)."""
        _, H, T, D = q.shape
        table = self.weights[f"h.{layer}.attn.wre.weight"].reshape(-1, H, D)  # (R, H, D)
        by_distance = q @ table.transpose(1, 2, 0)  # (B, H, T, R)
        distance = np.arange(n_keys - T, n_keys)[:, None] - np.arange(n_keys)  # (T, L)
        scores: Array = by_distance[:, :, np.arange(T)[:, None], distance.clip(0, len(table) - 1)]
        return scores
