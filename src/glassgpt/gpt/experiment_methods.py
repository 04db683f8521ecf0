"""The methods of `GPT` for experiments on many texts. `glassgpt.inspect` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.progress import Progress, no_progress

if TYPE_CHECKING:
    import numpy as np

    from glassgpt.gpt.gpt import GPT
    from glassgpt.inspect.batches.traces import Traces
    from glassgpt.inspect.components.head_scores import HeadScores
    from glassgpt.inspect.experiments.contrast import SteeringVector
    from glassgpt.inspect.experiments.pairs import Into
    from glassgpt.inspect.experiments.sites import Head
    from glassgpt.inspect.experiments.sweep_result import SweepResult
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

    def sweep(
        self: TraceableModel,
        clean: Any,
        corrupted: Any,
        patch: str = "resid_post",
        metric: Any = "logit_diff",
        *,
        answer: Any = None,
        minus: Any = None,
        continuation: Any = None,
        layers: int | Sequence[int] | None = None,
        positions: Any = None,
        into: Into = "corrupted",
        memory: float = 1.0,
        save: str | Path | None = None,
        progress: Progress = no_progress,
    ) -> SweepResult:
        """Activation patching: run the corrupted prompts with one activation of the clean ones, for each.

        `patch` is "resid_pre", "resid_mid", "resid_post", "attn" or "mlp" (layer x position), or "head", "q",
        "k", "v", "pattern" or "neuron" (layer x head or neuron, at all positions; with `positions="each"` or
        a list of positions, at each of these). A position is an index, the text of a token, or a function of
        the tokens' texts. `metric` is a name ("logit_diff" with `answer` and `minus`, "logit", "probability",
        "log_probability", "kl", "loss" with `continuation`), an object of `glassgpt.inspect`, or a function
        of logits (B, V). `into="clean"` patches the other way round. With `save`, a file, a sweep that was
        interrupted goes on where it stopped.
        """
        from glassgpt.inspect.experiments.sweep import sweep

        return sweep(
            self, clean, corrupted, patch, metric, answer=answer, minus=minus, continuation=continuation,
            layers=layers, positions=positions, into=into, memory=memory, save=save, progress=progress,
        )  # fmt: skip

    def path_patch(
        self: TraceableModel,
        clean: Any,
        corrupted: Any,
        sender: Head | Sequence[Head] | None = None,
        receivers: Head | Sequence[Head] | None = None,
        metric: Any = "logit_diff",
        *,
        answer: Any = None,
        minus: Any = None,
        continuation: Any = None,
        position: Any = None,
        freeze_mlps: bool = False,
        separately: bool = False,
        into: Into = "clean",
        memory: float = 1.0,
        progress: Progress = no_progress,
    ) -> SweepResult:
        """Path patching: run the clean prompts with the corrupted output of a head, `sender=Head(5, 5)`, only
        along the paths to the inputs of `receivers=[Head(8, 6, "v")]`.

        Without `sender`, every head before the last receiver is one, each by itself; without `receivers`, the
        paths lead to the logits. All other heads keep their output. Paths lead through MLPs as well (Wang et
        al. 2022), unless `freeze_mlps`. The receivers get their inputs together, or each in a run of its own
        (`separately`). `position` is the sender's, by default all.
        """
        from glassgpt.inspect.experiments.path_patch import path_patch

        return path_patch(
            self, clean, corrupted, sender, receivers, metric, answer=answer, minus=minus,
            continuation=continuation, position=position, freeze_mlps=freeze_mlps, separately=separately,
            into=into, memory=memory, progress=progress,
        )  # fmt: skip

    def attribution_patch(
        self: TraceableModel,
        clean: Any,
        corrupted: Any,
        patch: str = "resid_post",
        metric: Any = "logit_diff",
        *,
        answer: Any = None,
        minus: Any = None,
        continuation: Any = None,
        layers: int | Sequence[int] | None = None,
        positions: Any = None,
        into: Into = "corrupted",
        memory: float = 1.0,
        progress: Progress = no_progress,
    ) -> SweepResult:
        """What `sweep` would find, estimated by gradients: two forward passes and one backward instead of one
        run for each patch. For small changes; verify what matters by `sweep`. Needs PyTorch."""
        from glassgpt.inspect.experiments.attribution_patch import attribution_patch

        return attribution_patch(
            self, clean, corrupted, patch, metric, answer=answer, minus=minus, continuation=continuation,
            layers=layers, positions=positions, into=into, memory=memory, progress=progress,
        )  # fmt: skip

    def contrast(
        self: TraceableModel, positive: Any, negative: Any, layer: int, pool: str = "last"
    ) -> SteeringVector:
        """A steering vector from two lists of texts: the difference of their mean streams after a block, at
        the last token of each (`pool="mean"`: over all its tokens). `.edit(strength)` is the edit."""
        from glassgpt.inspect.experiments.contrast import contrast

        return contrast(self, positive, negative, layer, pool)

    def embed(
        self: TraceableModel,
        texts: Any,
        layer: int = -1,
        pool: str = "mean",
        progress: Progress = no_progress,
    ) -> np.ndarray:
        """A vector for each text, (texts, C): the residual stream after a block, as the mean over its tokens
        or at the "last" or "first"."""
        from glassgpt.inspect.experiments.embed import embed

        return embed(self, texts, layer, pool, progress=progress)

    def heads(
        self: TraceableModel, texts: Any = None, *, length: int = 50, sequences: int = 10, seed: int = 0
    ) -> HeadScores:
        """What every head does, as scores by kind, layer and head: the fraction of its attention that it
        gives to the previous token, to an earlier copy of the token (duplicate_token), to the token after
        an earlier copy (induction), to the first and to the current token; and how far it writes what it
        reads (copying).

        Measured on `sequences` of `length` random tokens, each repeated once; or on `texts`.
        """
        from glassgpt.inspect.components.head_scores import score_heads

        return score_heads(self, texts, length=length, sequences=sequences, seed=seed)

    def to_transformers(self: GPT) -> tuple[Any, Any]:  # type: ignore[misc]
        """The same weights as a GPT2LMHeadModel of `transformers`, and its tokenizer (None if there is none):
        for TransformerLens, nnsight, peft, minicons and others. The weights are a copy."""
        from glassgpt.gpt.to_transformers import to_transformers

        return to_transformers(self)
