"""The methods of `GPT` for experiments on many texts. `glassgpt.inspect` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.batches.traces import Traces
    from glassgpt.inspect.surprisal.scored_text import SurprisalTexts
    from glassgpt.inspect.traceable_model import TraceableModel


class ExperimentMethods:
    def traces(self: TraceableModel, prompts: Any, memory: float = 1.0) -> Traces:
        """The traces of many prompts of any lengths, made when they are read: `traces[i]` is that of one.

        Prompts are a list of texts or of token ids, or the `Path` of a file of records (.jsonl, .parquet; of
        a .txt, its lines). Rows that are kept take at most `memory` GiB.
        """
        from glassgpt.inspect.batches.traces import Traces

        return Traces(self, prompts, memory)

    def score(
        self: TraceableModel,
        texts: str | Sequence[str],
        *,
        bos: bool = True,
        context: int | None = None,
        stride: int | None = None,
    ) -> SurprisalTexts:
        """Surprisal, entropy and rank of every token and every word of texts.

        With `bos` an end-of-text token stands before each, as in training, which predicts the first token.
        Texts longer than `context` (the model's) are read in windows that advance by `stride` tokens (half
        of it), so that each token is given at least the difference as context.
        """
        from glassgpt.inspect.surprisal.scored_text import SurprisalTexts, score_texts

        several = [texts] if isinstance(texts, str) else list(texts)
        return SurprisalTexts(list(score_texts(self, several, bos=bos, context=context, stride=stride)))
