"""Comparing two models token by token on the same text, such as a quantised one with the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import torch

from glassgpt.backend import ScoreRequest
from glassgpt.errors import SettingError
from glassgpt.evaluate.metrics import ACCURACY, MEAN, MetricResult
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.windows import Window
from glassgpt.model import TorchBackend
from glassgpt.model.divergence import kl_divergence
from glassgpt.model.scoring import batch_limits
from glassgpt.model.scoring_batches import pack_texts, scored_hidden
from glassgpt.model.threads import map_over_threads


def compare_distributions(
    name: str, a: Scorer, b: Scorer, rows: Sequence[Window], on_tokens: Callable[[int], None] = lambda n: None
) -> list[MetricResult]:
    """KL(A || B) per token in nats, and how often both have the same argmax."""
    for scorer in (a, b):
        if not isinstance(scorer.backend, TorchBackend):
            raise SettingError("distributions are compared on the torch backend only.")
    if a.backend.config.vocab_size != b.backend.config.vocab_size:
        raise SettingError(
            f"the models have {a.backend.config.vocab_size:,} and {b.backend.config.vocab_size:,} tokens: "
            "their distributions cannot be compared."
        )
    divergence, same, counts = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    on_cpu = all(s.backend.device.type == "cpu" for s in (a, b) if isinstance(s.backend, TorchBackend))
    assert isinstance(a.backend, TorchBackend)
    chunk = batch_limits(a.backend.model).chunk
    in_turn = ((row, _agree(a, b, row, chunk)) for row in rows)
    threads = map_over_threads(lambda row: _agree(a, b, row, chunk), rows) if on_cpu else in_turn
    with closing(threads) as compared:
        for i, (row, found) in enumerate(compared):
            divergence[i], same[i] = found
            counts[i] = row.n_scored
            on_tokens(2 * len(row.ids))
    protocol = "every scored token"
    return [
        MetricResult(f"{name}.kl", protocol, MEAN, divergence, counts),
        MetricResult(f"{name}.same_top", protocol, ACCURACY, same, counts),
    ]


@torch.inference_mode()
def _agree(a: Scorer, b: Scorer, row: Window, chunk: int) -> tuple[float, float]:
    assert isinstance(a.backend, TorchBackend)
    assert isinstance(b.backend, TorchBackend)
    packed = pack_texts([ScoreRequest(row.ids, row.first)])
    x, y = scored_hidden(a.backend.model, packed), scored_hidden(b.backend.model, packed)  # (N, C) each
    divergence = same = 0.0
    for start in range(0, len(x), chunk):
        some = slice(start, start + chunk)
        p = a.backend.model.head(x[some]).float().log_softmax(dim=-1)  # (chunk, V)
        q = b.backend.model.head(y[some]).float().to(p.device).log_softmax(dim=-1)
        divergence += float(kl_divergence(p, q).cpu().sum(dtype=torch.float64))
        same += float((p.argmax(dim=-1) == q.argmax(dim=-1)).sum())
    return divergence, same
