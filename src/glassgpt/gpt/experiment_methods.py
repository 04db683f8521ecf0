"""The methods of `GPT` for experiments on many texts. `glassgpt.inspect` does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.batches.traces import Traces
    from glassgpt.inspect.traceable_model import TraceableModel


class ExperimentMethods:
    def traces(self: TraceableModel, prompts: Any, memory: float = 1.0) -> Traces:
        """The traces of many prompts of any lengths, made when they are read: `traces[i]` is that of one.

        Prompts are a list of texts or of token ids, or the `Path` of a file of records (.jsonl, .parquet; of
        a .txt, its lines). Rows that are kept take at most `memory` GiB.
        """
        from glassgpt.inspect.batches.traces import Traces

        return Traces(self, prompts, memory)
