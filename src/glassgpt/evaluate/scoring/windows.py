"""Windows: sequences of tokens that fit the context, as the requests of a backend's `score`.

Every metric is computed from the log-probabilities of a window's last tokens, each given all tokens before it
in the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import ScoreRequest

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

Group = list[ScoreRequest]  # the windows of one document, which may share a prefix


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokenize a context and its continuation together.

    The rule of lm-evaluation-harness: trailing spaces of the context move to the continuation, and the
    continuation is what remains of the tokens of both after as many as the context alone has.
    """
    kept = context.rstrip()
    continuation, context = context[len(kept) :] + continuation, kept
    before = tokenizer.encode(context)
    return before, tokenizer.encode(context + continuation)[len(before) :]


def continuation_windows(
    context: Sequence[int], continuation: Sequence[int], n_positions: int, exclude: bool = False
) -> list[ScoreRequest]:
    """Windows that score each token of a continuation once; a long context is truncated on the left.

    One window, unless the continuation alone exceeds the context length. The context must not be empty.
    """
    ids = np.array([*context, *continuation], np.int64)
    first = len(context)
    windows = []
    for start in range(first, len(ids), n_positions):
        end = min(start + n_positions, len(ids))
        begin = max(0, end - n_positions - 1)
        windows.append(ScoreRequest(ids[begin:end], start - begin, exclude and start == first))
    return windows


def rolling_windows(
    ids: Sequence[int], n_positions: int, stride: int, prefix: int | None
) -> Iterator[ScoreRequest]:
    """Score every token of a text once, `stride` tokens per window, with as much context as fits.

    With `stride` equal to the context length the windows do not overlap, which is the rule of
    lm-evaluation-harness. The first token follows `prefix` (end-of-text); without one it is not scored.
    """
    full = np.array(ids if prefix is None else [prefix, *ids], np.int64)
    start = 1
    while start < len(full):
        end = min(start + (n_positions if start == 1 else stride), len(full))
        begin = max(0, end - n_positions - 1)
        yield ScoreRequest(full[begin:end], start - begin)
        start = end


def strided_windows(ids: Sequence[int], n_positions: int, stride: int) -> Iterator[ScoreRequest]:
    """The rule of the `transformers` documentation: a window starts every `stride` tokens and scores the
    tokens that no earlier window contained. There is no prefix, so the first token of a window that scores
    all its tokens is not predicted."""
    full = np.array(ids, np.int64)
    scored = 0
    for begin in range(0, len(full), stride):
        end = min(begin + n_positions, len(full))
        first = max(scored - begin, 1)
        if end - begin > first:
            yield ScoreRequest(full[begin:end], first)
        scored = end
        if end == len(full):
            return
