"""Metrics: a number for each prompt from its next-token logits.

A metric is a small dataclass, a name (`"logit_diff"`), or any function of logits (B, V) that returns (B,).
`bind` checks its answers once the prompts are known. The result reads logits (B, P, V): P is 1, but for a
continuation's loss, which reads one position for each of its tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.inspect.arrays import AnyArray, concat, double, kl_divergence, log_softmax
from glassgpt.inspect.batches.prompts import Answers, Prompts

Array = np.ndarray
Rows = Sequence[int]  # the prompt of each row of a batch
Score = Callable[[AnyArray, Rows], AnyArray]  # logits (B, P, V) -> (B,)
Reference = Callable[[int], AnyArray]  # the logits (V,) of a prompt in the clean run


class Metric(ABC):
    """A number from the logits of a prompt."""

    name: ClassVar[str]
    reads_clean: ClassVar[bool] = False  # whether it compares with the clean run's logits

    @abstractmethod
    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        """Check the answers, and return the function that computes the metric."""

    def continuations(self, prompts: Prompts) -> list[list[int]]:
        """The ids that follow each prompt when the metric is computed."""
        return [[] for _ in range(len(prompts))]

    def fingerprint(self) -> str:
        """What tells two metrics apart, for a sweep that is resumed."""
        return repr(self)


@dataclass(frozen=True)
class Logit(Metric):
    """The logit of a token."""

    name = "logit"

    answer: Answers

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        ids = prompts.answers("answer", self.answer)
        return lambda logits, rows: pick(logits, ids, rows)


@dataclass(frozen=True)
class LogitDifference(Metric):
    """The logit of a token less that of another."""

    name = "logit_diff"

    answer: Answers
    minus: Answers

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        ids, others = prompts.answers("answer", self.answer), prompts.answers("minus", self.minus)
        return lambda logits, rows: pick(logits, ids, rows) - pick(logits, others, rows)


@dataclass(frozen=True)
class LogProbability(Metric):
    """The log-probability of a token, in nats."""

    name = "log_probability"

    answer: Answers

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        ids, size = prompts.answers("answer", self.answer), prompts.vocabulary.size
        return lambda logits, rows: pick(log_softmax(double(logits[..., :size])), ids, rows)


@dataclass(frozen=True)
class Probability(Metric):
    """The probability of a token."""

    name = "probability"

    answer: Answers

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        score = LogProbability(self.answer).bind(prompts)
        return lambda logits, rows: exp(score(logits, rows))


@dataclass(frozen=True)
class KLDivergence(Metric):
    """KL(clean || this run) of the next-token distributions, in nats."""

    name = "kl"
    reads_clean = True

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        if reference is None:
            raise SettingError(
                "kl compares a run with another. Use it in sweep, path_patch or attribution_patch."
            )
        size, known = prompts.vocabulary.size, reference

        def score(logits: AnyArray, rows: Rows) -> AnyArray:
            log_q = log_softmax(double(logits[:, 0, :size]))
            parts = [
                kl_divergence(log_softmax(double(known(row)[:size]))[None], log_q[i : i + 1])
                for i, row in enumerate(rows)
            ]
            return concat(parts)

        return score


@dataclass(frozen=True)
class ContinuationLoss(Metric):
    """The mean loss of a continuation's tokens after the prompt, in nats."""

    name = "loss"

    continuation: Any  # a text or ids, or a list with those of each prompt

    def continuations(self, prompts: Prompts) -> list[list[int]]:
        if not prompts.gpt.config.is_causal:
            raise SettingError(
                "the loss of a continuation needs a model that reads from left to right; "
                "this one sees both sides. Use metric='log_probability'."
            )
        # The last token is predicted, and nothing follows it.
        return [ids[:-1] for ids in prompts.continuations(self.continuation)]

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        ids, size = prompts.continuations(self.continuation), prompts.vocabulary.size

        def score(logits: AnyArray, rows: Rows) -> AnyArray:
            log_p = log_softmax(double(logits[..., :size]))
            parts = []
            for i, row in enumerate(rows):
                own = ids[row]
                parts.append(-log_p[i, np.arange(len(own)), own].mean()[None])
            return concat(parts)

        return score


@dataclass(frozen=True)
class FunctionMetric(Metric):
    """A function of the logits (B, V) at the last position that returns (B,)."""

    name = "metric"

    function: Callable[[AnyArray], AnyArray]

    def bind(self, prompts: Prompts, reference: Reference | None = None) -> Score:
        def score(logits: AnyArray, rows: Rows) -> AnyArray:
            found = self.function(logits[:, 0])
            if tuple(getattr(found, "shape", ())) != (len(rows),):
                shape = tuple(getattr(found, "shape", ()))
                raise SettingError(
                    f"the metric returned {type(found).__name__} of shape {shape} "
                    f"for logits of {len(rows)} rows. Let it return one number for each row, such as "
                    "lambda logits: logits[:, 262]."
                )
            return found

        return score

    def fingerprint(self) -> str:
        code = getattr(self.function, "__code__", None)
        if code is None:
            return type(self.function).__qualname__
        cells = [repr(cell.cell_contents) for cell in getattr(self.function, "__closure__", None) or ()]
        constants = [each for each in code.co_consts if not hasattr(each, "co_code")]
        return sha256(repr((code.co_code, constants, code.co_names, cells)).encode()).hexdigest()


NAMED: dict[str, tuple[type[Metric], tuple[str, ...]]] = {
    "logit": (Logit, ("answer",)),
    "logit_diff": (LogitDifference, ("answer", "minus")),
    "probability": (Probability, ("answer",)),
    "log_probability": (LogProbability, ("answer",)),
    "kl": (KLDivergence, ()),
    "loss": (ContinuationLoss, ("continuation",)),
}


def make_metric(metric: Any, answer: Any = None, minus: Any = None, continuation: Any = None) -> Metric:
    """A metric from its name and answers, from a function, or as it is."""
    given = {"answer": answer, "minus": minus, "continuation": continuation}
    if isinstance(metric, str):
        if metric not in NAMED:
            raise SettingError(
                f"metric {metric!r} is not one of {', '.join(NAMED)}. Give one of them, or a function."
            )
        cls, needed = NAMED[metric]
        for name in needed:
            if given[name] is None:
                example = "' Mary'" if name != "continuation" else "' went home.'"
                raise SettingError(f"metric {metric!r} needs {name}=, such as {name}={example}.")
        _refuse_others(given, needed, f"metric {metric!r}")
        return cls(*(given[name] for name in needed))
    _refuse_others(given, (), "a metric that is not a name")
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        return FunctionMetric(metric)
    raise SettingError(
        f"{metric!r:.80} is not a metric. Give one of {', '.join(NAMED)}, or a function of logits."
    )


def _refuse_others(given: dict[str, Any], needed: tuple[str, ...], what: str) -> None:
    for name, value in given.items():
        if value is not None and name not in needed:
            raise SettingError(f"{what} takes no {name}=. Leave it out.")


def pick(logits: AnyArray, ids: list[int], rows: Rows) -> AnyArray:
    """The number of each row's own token, (B,)."""
    own = [ids[row] for row in rows]
    return logits[np.arange(len(own)), np.zeros(len(own), np.int64), own]


def exp(x: AnyArray) -> AnyArray:
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()
