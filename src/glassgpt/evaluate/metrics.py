"""Metrics with standard errors. Every metric here is a ratio of two sums, perhaps exponentiated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000  # of a paired bootstrap: its 95% interval is then accurate to about 5% of its width


@dataclass(frozen=True)
class MetricKind:
    """How a ratio becomes the reported value: a function and its derivative (for the standard error)."""

    name: str
    of: Callable[[Any], Any]
    slope: Callable[[float], float]
    lower_is_better: bool
    in_percent: bool = False


def _exp(ratio: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.exp(ratio)


ACCURACY = MetricKind("accuracy", lambda r: r, lambda r: 1.0, lower_is_better=False, in_percent=True)
PERPLEXITY = MetricKind("perplexity", _exp, lambda r: float(_exp(r)), lower_is_better=True)
BITS = MetricKind("bits", lambda r: r / math.log(2), lambda r: 1 / math.log(2), lower_is_better=True)
MEAN = MetricKind("mean", lambda r: r, lambda r: 1.0, lower_is_better=True)


@dataclass(frozen=True)
class MetricResult:
    """`totals` and `weights` have one entry per unit: a document, or a window of a long text."""

    metric: str  # lambada.accuracy
    protocol: str  # how it was computed, in a few words
    kind: MetricKind
    totals: np.ndarray  # float64: correct answers, or nats
    weights: np.ndarray  # float64: questions, or words, tokens, bytes

    @property
    def ratio(self) -> float:
        return float(self.totals.sum() / self.weights.sum())

    @property
    def value(self) -> float:
        return float(self.kind.of(self.ratio))

    @property
    def n(self) -> int:
        """The number of items averaged over."""
        return round(float(self.weights.sum()))

    @property
    def stderr(self) -> float | None:
        """The standard error of a ratio of sums, to first order; None for a single unit.

        For equally weighted questions this is the sample deviation over the square root of their number.
        """
        units = len(self.totals)
        if units < 2:
            return None
        residuals = self.totals - self.ratio * self.weights
        variance = units / (units - 1) * float((residuals**2).sum())
        return self.kind.slope(self.ratio) * math.sqrt(variance) / float(self.weights.sum())

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "stderr": self.stderr, "n": self.n, "protocol": self.protocol}


@dataclass(frozen=True)
class Difference:
    """B minus A, on the same units."""

    value: float
    low: float  # 95% of the resampled differences are between low
    high: float  # and high

    @property
    def is_significant(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_bootstrap(a: MetricResult, b: MetricResult, seed: int = 0) -> Difference:
    """Resample the units with replacement, the same for both, and collect the differences."""
    if len(a.totals) != len(b.totals):
        raise ValueError(f"{a.metric}: {len(a.totals)} units of one and {len(b.totals)} of the other")
    units = len(a.totals)
    draw = np.random.default_rng(seed)
    differences = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        again = draw.integers(units, size=units)
        differences[i] = b.kind.of(b.totals[again].sum() / b.weights[again].sum()) - a.kind.of(
            a.totals[again].sum() / a.weights[again].sum()
        )
    low, high = np.quantile(differences, (0.025, 0.975))
    return Difference(b.value - a.value, float(low), float(high))
