"""Comparing two models token by token on the same text, such as a quantised one with the original."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.evaluate.metrics import ACCURACY, MEAN, MetricResult
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.windows import Window
from glassgpt.inspect.arrays import kl_divergence, log_softmax

Agreements = Generator[tuple[Window, tuple[float, float]], None, None]


def compare_distributions(
    name: str, a: Scorer, b: Scorer, rows: Sequence[Window], on_tokens: Callable[[int], None] = lambda n: None
) -> list[MetricResult]:
    """KL(A || B) per token in nats, and how often both have the same argmax."""
    if a.backend.config.vocab_size != b.backend.config.vocab_size:
        raise SettingError(
            f"the models have {a.backend.config.vocab_size:,} and {b.backend.config.vocab_size:,} tokens: "
            "their distributions cannot be compared."
        )
    divergence, same, counts = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    with closing(agreements(a, b, rows)) as compared:
        for i, (row, found) in enumerate(compared):
            divergence[i], same[i] = found
            counts[i] = row.n_scored
            on_tokens(2 * len(row.ids))
    protocol = "every scored token"
    return [
        MetricResult(f"{name}.kl", protocol, MEAN, divergence, counts),
        MetricResult(f"{name}.same_top", protocol, ACCURACY, same, counts),
    ]


def agreements(a: Scorer, b: Scorer, rows: Sequence[Window]) -> Agreements:
    """For each window the sum of KL(A || B), and how many argmaxes are the same."""
    if "torch" in sys.modules:  # otherwise it computes for neither
        from glassgpt.backends.torch.backend import TorchBackend
        from glassgpt.evaluate.torch_compare import torch_agreements

        if isinstance(a.backend, TorchBackend) and isinstance(b.backend, TorchBackend):
            return torch_agreements(a.backend, b.backend, rows)
    return ((row, _agree(a, b, row)) for row in rows)


def _agree(a: Scorer, b: Scorer, row: Window) -> tuple[float, float]:
    """By all logits of the window, which any backend has."""
    ids, scored = [row.ids[:-1].tolist()], slice(row.first - 1, None)
    p, q = (log_softmax(s.backend.logits(ids)[0, scored].astype(np.float64)) for s in (a, b))  # (N, V)
    return float(kl_divergence(p, q).sum()), float((p.argmax(-1) == q.argmax(-1)).sum())
