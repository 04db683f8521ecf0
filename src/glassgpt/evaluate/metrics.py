"""A figure and how far to trust it. Every metric here is one sum over another, perhaps as an exponential."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000  # of a paired bootstrap: its 95% limits then stray by about 5% of their width


@dataclass(frozen=True)
class Kind:
    """How a ratio becomes a figure: the function, and its slope (for the standard error)."""

    name: str
    of: Callable[[Any], Any]
    slope: Callable[[float], float]
    lower_is_better: bool
    in_percent: bool = False


def _exp(ratio: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.exp(ratio)


ACCURACY = Kind("accuracy", lambda r: r, lambda r: 1.0, lower_is_better=False, in_percent=True)
PERPLEXITY = Kind("perplexity", _exp, lambda r: float(_exp(r)), lower_is_better=True)
BITS = Kind("bits", lambda r: r / math.log(2), lambda r: 1 / math.log(2), lower_is_better=True)
MEAN = Kind("mean", lambda r: r, lambda r: 1.0, lower_is_better=True)


@dataclass(frozen=True)
class Measure:
    """`totals` and `weights` have an entry for each unit: a document, or a window of a long text."""

    metric: str  # lambada.accuracy
    protocol: str  # which of the ways to count, in a few words
    kind: Kind
    totals: np.ndarray  # float64: right answers, or nats
    weights: np.ndarray  # float64: questions, or words, tokens, bytes

    @property
    def ratio(self) -> float:
        return float(self.totals.sum() / self.weights.sum())

    @property
    def value(self) -> float:
        return float(self.kind.of(self.ratio))

    @property
    def n(self) -> int:
        """How many things the figure is a mean over."""
        return round(float(self.weights.sum()))

    @property
    def stderr(self) -> float | None:
        """The standard error of a ratio of sums, to first order; None where a single unit says nothing of it.

        For questions that count alike this is the sample deviation over the square root of their number.
        """
        units = len(self.totals)
        if units < 2:
            return None
        strayed = self.totals - self.ratio * self.weights
        variance = units / (units - 1) * float((strayed**2).sum())
        return self.kind.slope(self.ratio) * math.sqrt(variance) / float(self.weights.sum())

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "stderr": self.stderr, "n": self.n, "protocol": self.protocol}


@dataclass(frozen=True)
class Difference:
    """What B has more than A, on the same units."""

    value: float
    low: float  # 95% of the resampled differences lie from here
    high: float  # to here

    @property
    def is_clear(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_bootstrap(a: Measure, b: Measure, seed: int = 0) -> Difference:
    """Draw the units again, with return, the same for both, and see how the difference varies."""
    if len(a.totals) != len(b.totals):
        raise ValueError(f"{a.metric}: {len(a.totals)} units of one and {len(b.totals)} of the other")
    units = len(a.totals)
    draw = np.random.default_rng(seed)
    found = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        again = draw.integers(units, size=units)
        found[i] = b.kind.of(b.totals[again].sum() / b.weights[again].sum()) - a.kind.of(
            a.totals[again].sum() / a.weights[again].sum()
        )
    low, high = np.quantile(found, (0.025, 0.975))
    return Difference(b.value - a.value, float(low), float(high))
