"""`gpt.heads()`: which heads attend to the previous token, to copies of the token, to what followed a copy;
which copy.

The scores are those of Elhage et al. (2021) and Olsson et al. (2022): attention on random tokens that are
repeated once, where nothing but the repetition can be known, and the eigenvalues of what a head writes for
what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.generate.prompt import usable_vocab_size
from glassgpt.inspect.batches.named_array import NamedArray, numbered
from glassgpt.inspect.components.attention_kinds import KINDS, KindMeans, key_masks
from glassgpt.inspect.traces.trace import Trace
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

LENGTH = 50  # random tokens, which are then repeated
SEQUENCES = 10
COPYING = "copying"


class HeadScores(NamedArray):
    """Scores by kind, layer and head: `.at(kind="induction")` is a heat map, `.strongest("induction", 5)` a
    list."""

    def strongest(self, kind: str, k: int = 5) -> list[tuple[int, int, float]]:
        """The k heads with the highest score: layer, head, score."""
        scores = self.values[self.index_of("kind", kind)]
        order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=None, kind="stable")[:k]
        return [
            (int(layer), int(head), float(scores[layer, head]))
            for layer, head in zip(*np.unravel_index(order, scores.shape), strict=True)
        ]

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.labels["kind"]


def score_heads(
    gpt: TraceableModel,
    texts: Any = None,
    *,
    length: int = LENGTH,
    sequences: int = SEQUENCES,
    seed: int = 0,
    progress: Progress = no_progress,
) -> HeadScores:
    """See `GPT.heads`."""
    config = gpt.config
    check_whole("sequences", sequences, 1)
    check_whole("length", length, 3)
    prompts = repeated_tokens(gpt, length, sequences, seed) if texts is None else token_lists(gpt, texts)
    means = KindMeans(config.n_layer, config.n_head)
    with progress("reading texts", len(prompts)) as advance:
        for ids in prompts:
            masks = key_masks(ids)
            if texts is None:  # only the repetition counts; the first half has no copies but by chance
                masks = {kind: mask & second_half(len(ids), length, kind) for kind, mask in masks.items()}
            trace = Trace.from_tokens(gpt, ids)
            for layer in range(config.n_layer):
                means.add(layer, trace[f"h.{layer}.attn.weights"], masks)
                trace.clear_cache()
            means.count(masks)
            advance(1)
    scores = np.concatenate([means.means, copying_scores(gpt)[None]])
    labels = {
        "kind": (*KINDS, COPYING), "layer": numbered(config.n_layer), "head": numbered(config.n_head)
    }  # fmt: skip
    return HeadScores(scores, ("kind", "layer", "head"), labels, "score")


def repeated_tokens(gpt: TraceableModel, length: int, sequences: int, seed: int) -> list[list[int]]:
    """End of text, then random tokens of the vocabulary, then the same again."""
    tokenizer = gpt.tokenizer
    eot = [] if tokenizer is None or tokenizer.eot_id is None else [tokenizer.eot_id]
    special = set() if tokenizer is None else set(tokenizer.special_tokens.values())
    usable = np.array([i for i in range(usable_vocab_size(gpt.backend, tokenizer)) if i not in special])
    if len(eot) + 2 * length > gpt.config.n_positions:
        raise SettingError(
            f"length {length}, repeated, does not fit into this model's context of {gpt.config.n_positions} "
            f"tokens. Use at most {(gpt.config.n_positions - len(eot)) // 2}."
        )
    if length > len(usable):
        raise SettingError(f"length {length} is more than the {len(usable)} tokens there are. Use fewer.")
    random = np.random.default_rng(seed)
    prompts = []
    for _ in range(sequences):
        tokens = random.choice(usable, length, replace=False).tolist()  # no copies but the repetition
        prompts.append([*eot, *tokens, *tokens])
    return prompts


def second_half(n: int, length: int, kind: str) -> np.ndarray:
    """The queries that see the repetition, as a column (n, 1); those before it tell the other kinds as
    well."""
    queries = np.arange(n)[:, None]
    return queries >= n - length if kind in ("duplicate_token", "induction") else queries >= 0


def token_lists(gpt: TraceableModel, texts: Any) -> list[list[int]]:
    from glassgpt.inspect.batches.prompts import Prompts

    return [list(ids) for ids in Prompts(gpt, [texts] if isinstance(texts, str) else texts, "texts").ids]


def copying_scores(gpt: TraceableModel) -> np.ndarray:
    """How far a head writes what it reads, (L, H): the sum of the eigenvalues of W_E W_V W_O W_U over the
    sum of their sizes, from -1 (it takes the token away) to 1 (it copies it).

    That matrix is V x V, and has the eigenvalues of the D x D matrix W_O W_U W_E W_V (and zeros).
    """
    weights = gpt.weights
    through = (weights.W_U @ weights.W_E).astype(np.float64)  # (C, C): from what is written to what is read
    scores = np.zeros((gpt.config.n_layer, gpt.config.n_head))
    for layer in range(gpt.config.n_layer):
        W_V, W_O = (each[layer].astype(np.float64) for each in (weights.W_V, weights.W_O))
        for head, values in enumerate(np.linalg.eigvals(W_O @ through @ W_V)):  # (H, D, D) -> (D,) each
            size = np.abs(values).sum()
            scores[layer, head] = values.real.sum() / size if size else 0.0
    return scores


def named_heads(scores: HeadScores, kinds: Sequence[str] | None = None, k: int = 5) -> list[dict[str, Any]]:
    """A row for each kind and each of its strongest heads."""
    return [
        {"kind": kind, "layer": layer, "head": head, "score": score}
        for kind in (scores.kinds if kinds is None else kinds)
        for layer, head, score in scores.strongest(kind, k)
    ]
