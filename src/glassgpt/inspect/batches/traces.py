"""`gpt.traces(prompts)`: the traces of many texts of any lengths, made when they are read.

Each row is a trace of its own, computed by itself: what stands beside it cannot change its numbers. Rows stay
in memory within a bound, the least recently read go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.inspect.batches.metrics import Metric, make_metric
from glassgpt.inspect.batches.named_array import NamedArray, numbered
from glassgpt.inspect.batches.prompts import Answers, Position, Prompts
from glassgpt.inspect.taps import check_index
from glassgpt.inspect.traces.trace import Trace
from glassgpt.progress import Progress, no_progress

if TYPE_CHECKING:
    from glassgpt.inspect.batches.decompose import Decomposition, LogitAttribution
    from glassgpt.inspect.traceable_model import TraceableModel

MEMORY = 1.0  # GiB

Positions = Position | Sequence[Position]


class Traces(Sequence[Trace]):
    """`traces[i]` is the trace of a prompt. What is computed for all of them is an array with named axes."""

    def __init__(self, gpt: TraceableModel, prompts: Any, memory: float = MEMORY) -> None:
        self.gpt = gpt
        self.prompts = Prompts(gpt, prompts)
        self.memory_bytes = as_bytes(memory)
        self._kept: OrderedDict[int, Trace] = OrderedDict()  # least recently read first

    def __len__(self) -> int:
        return len(self.prompts)

    @overload
    def __getitem__(self, index: int) -> Trace: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trace]: ...

    def __getitem__(self, index: int | slice) -> Trace | list[Trace]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number = check_index("prompt", index, len(self))
        trace = self._kept.pop(number, None)
        self._free()
        if trace is None:
            trace = Trace.from_tokens(self.gpt, self.prompts.ids[number])
        self._kept[number] = trace
        return trace

    def __iter__(self) -> Iterator[Trace]:
        return (self[i] for i in range(len(self)))

    def _free(self) -> None:
        """Forget the least recently read rows: first what their blocks computed, then all of it."""
        held = self.held_bytes
        for forget in (Trace.clear_cache, None):
            for number, trace in list(self._kept.items()):
                if held <= self.memory_bytes:
                    return
                before = trace.held_bytes
                if forget is None:
                    del self._kept[number]
                    held -= before
                else:
                    forget(trace)
                    held -= before - trace.held_bytes

    @property
    def held_bytes(self) -> int:
        """The memory of the rows that are kept."""
        return sum(trace.held_bytes for trace in self._kept.values())

    @property
    def tokens(self) -> list[list[int]]:
        """The token ids of each prompt."""
        return [list(ids) for ids in self.prompts.ids]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of each prompt's tokens."""
        return [self.prompts.texts(i) for i in range(len(self))]

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.prompts.ids]

    def __repr__(self) -> str:
        shortest, longest = min(self.lengths), max(self.lengths)
        tokens = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        return f"Traces({len(self)} prompts of {tokens} tokens, {self.gpt.config.n_layer} layers)"

    def measure(
        self,
        metric: Any,
        answer: Answers | None = None,
        *,
        minus: Answers | None = None,
        continuation: Any = None,
        position: Positions = -1,
        progress: Progress = no_progress,
    ) -> NamedArray:
        """A metric of every prompt: "logit", "logit_diff", "probability", "log_probability", "loss", or a
        function of logits (B, V) that returns (B,)."""
        found = make_metric(metric, answer, minus, continuation)
        score = found.bind(self.prompts)
        following = found.continuations(self.prompts)
        self.prompts.followed_by(following)
        positions = self.prompts.positions(position)
        values = np.full(len(self), np.nan)
        with progress(f"measuring {found.name}", len(self)) as advance:
            for number in range(len(self)):
                logits = self._logits(found, number, positions[number], following[number])
                values[number] = float(score(logits[None], [number])[0])
                advance(1)
        return NamedArray(values, ("prompt",), {"prompt": numbered(len(self))}, found.name)

    def _logits(self, metric: Metric, number: int, position: int, following: list[int]) -> np.ndarray:
        """The logits (P, V) that a metric reads."""
        if not following:
            return self[number].logits_at(position)[None]
        if position != len(self.prompts.ids[number]) - 1:
            raise SettingError(f"{metric.name} is of what follows the prompt. Leave out position.")
        longer = Trace.from_tokens(self.gpt, [*self.prompts.ids[number], *following])
        return np.stack([longer.logits_at(i) for i in range(position, len(longer))])

    def logit_diff(self, answer: Answers, minus: Answers, position: Positions = -1) -> NamedArray:
        """The logit of one token less that of another, for each prompt. Answers are a token, or a list with
        one for each prompt."""
        return self.measure("logit_diff", answer, minus=minus, position=position)

    def decompose(self, position: Positions = -1, memory: float = MEMORY) -> Decomposition:
        """The residual stream after the last block at one position of each prompt, as a sum: embeddings,
        every head, every MLP, biases. In float64 it sums to the stream exactly."""
        from glassgpt.inspect.batches.decompose import decompose

        return decompose(self, self.prompts.positions(position), as_bytes(memory))

    def attribute_logits(
        self, answer: Answers, minus: Answers | None = None, position: Positions = -1
    ) -> LogitAttribution:
        """Direct logit attribution: what each part of that sum adds to the logit of a token, or to the
        difference of two."""
        from glassgpt.inspect.batches.decompose import attribute_logits

        answers = self.prompts.answers("answer", answer)
        others = None if minus is None else self.prompts.answers("minus", minus)
        return attribute_logits(self, answers, others, self.prompts.positions(position))


def as_bytes(memory: float) -> int:
    """A bound on memory, given in GiB."""
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 < memory < float("inf"):
        raise SettingError(f"memory is {memory!r}; give the GiB to use, such as memory=2.")
    return int(memory * 2**30)
