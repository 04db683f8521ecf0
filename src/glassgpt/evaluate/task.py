"""What a task is: documents in a published format, rows to be scored, and figures from the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from glassgpt.errors import UserError
from glassgpt.evaluate.metrics import Measure
from glassgpt.evaluate.score_cache import Scores
from glassgpt.evaluate.windows import Group, continuation_rows, encode_pair

if TYPE_CHECKING:
    from glassgpt.evaluate.datasets import Dataset
    from glassgpt.generate.text import Tokenizer


class NotScorable(UserError, ValueError):
    """A document or a data set that cannot be scored, and why. The rest of the suite goes on."""


def lines_of(text: str) -> list[str]:
    """Its lines. Python's own `splitlines` also cuts at a dozen other characters that texts may hold."""
    return text.removesuffix("\n").split("\n") if text else []


@dataclass(frozen=True)
class Reader:
    """How a model reads: its tokenizer and the length of its context."""

    tokenizer: Tokenizer
    n_positions: int
    stride: int | None = None  # of windows over long texts; None: each task's own
    limit: int | None = None  # documents (or windows) of each task, from the first on

    def continuation(self, context: str, continuation: str, barred: bool = False) -> tuple[Group, bool]:
        """Rows that score what follows a context, and whether its beginning had to be cut off.

        An empty context is the beginning of a document.
        """
        before, after = encode_pair(self.tokenizer, context, continuation)
        if not continuation.strip() or not after:
            raise NotScorable(f"{continuation!r} has no tokens of its own after its context")
        if not before:
            if self.tokenizer.eot_id is None:
                raise NotScorable("it has no context, and the vocabulary no end-of-text token to begin with")
            before = [self.tokenizer.eot_id]
        is_cut = len(before) + len(after) > self.n_positions + 1
        return continuation_rows(before, after, self.n_positions, barred), is_cut


@dataclass
class Prepared:
    """A task made ready for one model."""

    groups: list[Group]
    figures: Callable[[Sequence[Sequence[Scores]]], list[Measure]]
    notes: list[str] = field(default_factory=list)  # what a user should know: documents left out or cut
    remark: str = ""  # what sets its figures apart from those of the whole published data
    is_text: bool = False  # running text, on which two models can be compared token by token

    def measures(self, scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        found = self.figures(scores)
        if not self.remark:
            return found
        return [replace(measure, protocol=f"{measure.protocol}; {self.remark}") for measure in found]


class Task(Protocol):
    """Frozen data classes implement this; see perplexity.py, lambada.py, choice.py and cbt.py."""

    @property
    def name(self) -> str: ...
    @property
    def dataset(self) -> Dataset: ...
    def prepare(self, text: str, reader: Reader) -> Prepared: ...


def left_out(numbers: Sequence[int], why: str) -> list[str]:
    """One line for all documents of a kind."""
    if not numbers:
        return []
    which = ", ".join(str(n) for n in numbers[:3]) + (", ..." if len(numbers) > 3 else "")
    noun = "document" if len(numbers) == 1 else "documents"
    return [f"{len(numbers)} {noun} {why} (number {which})"]
