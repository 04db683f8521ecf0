"""Comparing two models on the same data: the significance of the differences between their metrics, and on
running text their distributions token by token, such as those of a quantized model and the original."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.errors import SettingError
from glassgpt.evaluate.evaluate import Evaluation, all_metrics
from glassgpt.evaluate.metrics import ACCURACY, MEAN, Difference, MetricResult, paired_bootstrap
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.suites.run import TaskResult
from glassgpt.inspect.arrays import kl_divergence, log_softmax
from glassgpt.progress import Advance

Agreements = Generator[tuple[ScoreRequest, tuple[float, float]], None, None]

# Two models that give the same ids for this text are taken to tokenize all text alike.
PROBE = "The quick brown fox, aged 37, didn't jump over the lazy dog's 1,024 naïve friends.\n\n"


@dataclass(frozen=True)
class Comparison:
    a: list[TaskResult]
    b: list[TaskResult]
    differences: dict[str, Difference | None]  # None where the units differ: windows of different tokenizers
    agreement: list[MetricResult]

    def to_json(self) -> dict[str, Any]:
        return {
            "a": {metric.metric: metric.to_json() for metric in all_metrics(self.a)},
            "b": {metric.metric: metric.to_json() for metric in all_metrics(self.b)},
            "difference": {
                name: None if difference is None else asdict(difference)
                for name, difference in self.differences.items()
            },
            "agreement": {metric.metric: metric.to_json() for metric in self.agreement},
        }


def compare(a: Evaluation, b: Evaluation) -> Comparison:
    """Run both evaluations and compare every metric that both have."""
    results_a, results_b = a.run(), b.run()
    metrics_b = {metric.metric: metric for metric in all_metrics(results_b)}
    differences = {
        first.metric: difference(first, metrics_b[first.metric])
        for first in all_metrics(results_a)
        if first.metric in metrics_b
    }
    return Comparison(results_a, results_b, differences, compare_texts(a, b))


def difference(a: MetricResult, b: MetricResult) -> Difference | None:
    return paired_bootstrap(a, b) if len(a.totals) == len(b.totals) > 1 else None


def compare_texts(a: Evaluation, b: Evaluation) -> list[MetricResult]:
    """KL divergence and argmax agreement per token, on every running text that both tokenize alike."""
    windows = {
        task.name: [window for group in prepared.groups for window in group]
        for task, prepared in a.suite.ready
        if prepared.is_text
    }
    if not windows:
        return []
    if a.gpt.encode(PROBE) != b.gpt.encode(PROBE) or a.scorer.n_positions != b.scorer.n_positions:
        a.note("the models tokenize text differently: no comparison per token")
        return []
    metrics: list[MetricResult] = []
    total = sum(2 * len(window.ids) for text in windows.values() for window in text)
    with a.progress("comparing distributions", total, unit="tokens") as advance:
        for name, text in windows.items():
            try:
                metrics += compare_distributions(name, a.scorer, b.scorer, text, advance)
            except SettingError as error:
                a.note(f"{name}: {error}")
    return metrics


def compare_distributions(
    name: str, a: Scorer, b: Scorer, windows: Sequence[ScoreRequest], on_tokens: Advance = lambda n: None
) -> list[MetricResult]:
    """KL(A || B) per token in nats, and how often both have the same argmax."""
    if a.backend.config.vocab_size != b.backend.config.vocab_size:
        raise SettingError(
            f"the models have {a.backend.config.vocab_size:,} and {b.backend.config.vocab_size:,} tokens: "
            "their distributions cannot be compared."
        )
    divergence, same, counts = np.zeros((3, len(windows)))
    with closing(agreements(a, b, windows)) as compared:
        for i, (window, (kl, same_argmax)) in enumerate(compared):
            divergence[i], same[i], counts[i] = kl, same_argmax, window.n_scored
            on_tokens(2 * len(window.ids))
    protocol = "every scored token"
    return [
        MetricResult(f"{name}.kl", protocol, MEAN, divergence, counts),
        MetricResult(f"{name}.same_top", protocol, ACCURACY, same, counts),
    ]


def agreements(a: Scorer, b: Scorer, windows: Sequence[ScoreRequest]) -> Agreements:
    """For each window the sum of KL(A || B), and how many argmaxes are the same."""
    if "torch" in sys.modules:  # otherwise neither backend computes with it
        from glassgpt.backends.torch.backend import TorchBackend
        from glassgpt.evaluate.torch_compare import torch_agreements

        if isinstance(a.backend, TorchBackend) and isinstance(b.backend, TorchBackend):
            return torch_agreements(a.backend, b.backend, windows)
    return ((window, _agree(a, b, window)) for window in windows)


def _agree(a: Scorer, b: Scorer, window: ScoreRequest) -> tuple[float, float]:
    """From all logits of the window, which any backend has."""
    ids, scored = [window.ids[:-1].tolist()], slice(window.first - 1, None)
    p, q = (log_softmax(s.backend.logits(ids)[0, scored].astype(np.float64)) for s in (a, b))  # (N, V)
    return float(kl_divergence(p, q).sum()), float((p.argmax(-1) == q.argmax(-1)).sum())
