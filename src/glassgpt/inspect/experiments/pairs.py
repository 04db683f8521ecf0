"""Clean and corrupted prompts side by side, with the metric that compares their runs.

Pairs are computed together with others of the same length, so that no row has padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.inspect.arrays import AnyArray, to_float64
from glassgpt.inspect.batches.metrics import Metric
from glassgpt.inspect.batches.prompts import Prompts
from glassgpt.inspect.forward import Forward, make_forward
from glassgpt.inspect.traces.activations import Activations

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

Into = Literal["clean", "corrupted"]
Array = np.ndarray

TOKENS = 2048  # of a batch: more make no product faster on a CPU


@dataclass(frozen=True)
class PairRuns:
    """The plain passes over both texts of a pair."""

    base: Activations  # of the text that values are patched into
    other: Activations  # of the text that they come from


class Pairs:
    """Checked pairs of prompts; `values` computes the metric of a batch of final streams."""

    def __init__(
        self, gpt: TraceableModel, clean: Any, corrupted: Any, metric: Metric, into: Into, memory_bytes: int
    ) -> None:
        if into not in ("clean", "corrupted"):
            raise SettingError(f"into is {into!r}; use 'clean' or 'corrupted': the text to patch into.")
        self.gpt = gpt
        self.into = into
        self.memory_bytes = memory_bytes
        self.clean, self.corrupted = Prompts(gpt, clean, "clean"), Prompts(gpt, corrupted, "corrupted")
        self._check_lengths()
        self.metric = metric
        following = metric.continuations(self.clean)
        self.clean_ids = self.clean.followed_by(following)
        self.corrupted_ids = self.corrupted.followed_by(following)
        self.base_ids, self.other_ids = self.corrupted_ids, self.clean_ids
        if into == "clean":
            self.base_ids, self.other_ids = self.other_ids, self.base_ids
        self.forward: Forward = make_forward(gpt.model).at_least_float32()
        self.score = metric.bind(self.clean, lambda pair: self.clean_logits[pair])
        self.clean_logits: dict[int, AnyArray] = {}  # (V,) at the last position, if the metric reads them
        self.clean_values = np.full(len(self), np.nan)
        self.corrupted_values = np.full(len(self), np.nan)

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def base_prompts(self) -> Prompts:
        return self.clean if self.into == "clean" else self.corrupted

    @property
    def base_values(self) -> Array:
        return self.clean_values if self.into == "clean" else self.corrupted_values

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt."""
        return max(map(len, self.clean.ids))

    def _check_lengths(self) -> None:
        if len(self.clean) != len(self.corrupted):
            raise SettingError(
                f"clean has {len(self.clean)} prompts and corrupted {len(self.corrupted)}. "
                "Give one corrupted prompt for each clean one."
            )
        for number, (ids, others) in enumerate(zip(self.clean.ids, self.corrupted.ids, strict=True)):
            if len(ids) != len(others):
                raise SettingError(
                    f"clean[{number}] has {len(ids)} tokens and corrupted[{number}] {len(others)}. "
                    f"Give texts of as many tokens each: gpt.traces(clean).texts[{number}] shows them."
                )

    def measure_both(self) -> None:
        """The metric of the clean and of the corrupted texts, without patches."""
        both = (self.clean_ids, self.clean_values), (self.corrupted_ids, self.corrupted_values)
        for ids, values in both:
            for pair in range(len(self)):
                run = Activations(self.forward, ids[pair])
                stream = run.residuals()[-1][None]
                if self.metric.reads_clean and ids is self.clean_ids:
                    last = self.forward.final_norm(stream[:, len(self.clean.ids[pair]) - 1])
                    self.clean_logits[pair] = self.forward.head(last)[0]
                values[pair] = self.values(stream, [pair])[0]

    def groups(self, pairs: Sequence[int]) -> Iterator[list[int]]:
        """Pairs of one length, as many as fit into the memory with their streams."""
        by_shape: dict[tuple[int, int], list[int]] = {}
        for pair in pairs:
            by_shape.setdefault((len(self.base_ids[pair]), len(self.clean.ids[pair])), []).append(pair)
        config = self.gpt.config
        for (tokens, _), same in sorted(by_shape.items()):
            # Streams, heads and MLPs of both texts, and all steps of one block.
            per_pair = (
                8
                * tokens
                * (3 * (config.n_layer + 1) * config.n_embd + 2 * config.d_mlp + 4 * config.n_head * tokens)
            )
            count = max(1, self.memory_bytes // 2 // per_pair)
            yield from (same[start : start + count] for start in range(0, len(same), count))

    def run(self, pair: int) -> PairRuns:
        """The plain passes over a pair's texts; their streams are kept, and nothing else."""
        base = Activations(self.forward, self.base_ids[pair])
        other = Activations(self.forward, self.other_ids[pair])
        for each in (base, other):
            each.residuals()
            each.clear_cache()
        return PairRuns(base, other)

    def rows_at_once(self, tokens: int) -> int:
        """How many texts of this length to compute together."""
        config = self.gpt.config
        widest = 3 * config.d_mlp + 8 * config.n_embd + 5 * config.n_head * tokens
        per_row = 4 * (tokens * widest + 3 * config.vocab_size)
        return int(max(1, min(self.memory_bytes // 2 // per_row, TOKENS // tokens)))

    def values(self, streams: AnyArray, pairs: Sequence[int]) -> Array:
        """The metric of streams (B, T, C) that leave the last block, (B,), in float64."""
        first = len(self.clean.ids[pairs[0]]) - 1  # the same for all rows of a group
        logits = self.forward.head(self.forward.final_norm(streams[:, first:]))  # (B, P, V)
        return to_float64(self.score(logits, list(pairs)))

    def ids(self, pairs: Sequence[int]) -> list[list[int]]:
        return [self.base_ids[pair] for pair in pairs]
