"""A task: documents in a published format, windows to be scored, and metrics from the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from glassgpt.backends.protocol import TokenScores
from glassgpt.errors import UserError
from glassgpt.evaluate.metrics import MetricResult
from glassgpt.evaluate.scoring.windows import Group, continuation_windows, encode_pair

if TYPE_CHECKING:
    from glassgpt.evaluate.suites.datasets import Dataset
    from glassgpt.tokenizer import Tokenizer


class NotScorable(UserError, ValueError):
    """A document or data set that cannot be scored, and why. The rest of the suite still runs."""


def split_lines(text: str) -> list[str]:
    """Split at newlines only; `str.splitlines` also splits at a dozen other characters."""
    return text.removesuffix("\n").split("\n") if text else []


@dataclass(frozen=True)
class WindowBuilder:
    """Turns text into windows for one model, with its tokenizer and context length."""

    tokenizer: Tokenizer
    n_positions: int
    stride: int | None = None  # of windows over long texts; None: the task's default
    limit: int | None = None  # the first N documents (or windows) of each task

    def continuation(self, context: str, continuation: str, exclude: bool = False) -> tuple[Group, bool]:
        """Windows that score a continuation given a context, and whether the context was truncated.

        An empty context means the start of a document.
        """
        before, after = encode_pair(self.tokenizer, context, continuation)
        if not continuation.strip() or not after:
            raise NotScorable(f"{continuation!r} adds no tokens to its context")
        if not before:
            if self.tokenizer.eot_id is None:
                raise NotScorable(
                    "it has no context, and the vocabulary has no end-of-text token to start with"
                )
            before = [self.tokenizer.eot_id]
        truncated = len(before) + len(after) > self.n_positions + 1
        return continuation_windows(before, after, self.n_positions, exclude), truncated


@dataclass
class PreparedTask:
    """A task with its data tokenized for one model."""

    groups: list[Group]
    compute_metrics: Callable[[Sequence[Sequence[TokenScores]]], list[MetricResult]]
    notes: list[str] = field(default_factory=list)  # for the user: documents skipped or truncated
    remark: str = ""  # appended to the protocol: only a part of the data, or modified data
    is_text: bool = False  # running text: two models can be compared token by token

    def metrics(self, scores: Sequence[Sequence[TokenScores]]) -> list[MetricResult]:
        metrics = self.compute_metrics(scores)
        if not self.remark:
            return metrics
        return [replace(result, protocol=f"{result.protocol}; {self.remark}") for result in metrics]


class EvalTask(Protocol):
    """Implemented by frozen data classes in perplexity.py, lambada.py, choice.py and cbt.py."""

    @property
    def name(self) -> str: ...
    @property
    def dataset(self) -> Dataset: ...
    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask: ...


def document_note(numbers: Sequence[int], why: str) -> list[str]:
    """One note for all documents with the same problem."""
    if not numbers:
        return []
    which = ", ".join(str(n) for n in numbers[:3]) + (", ..." if len(numbers) > 3 else "")
    noun = "document" if len(numbers) == 1 else "documents"
    return [f"{len(numbers)} {noun} {why} (number {which})"]
