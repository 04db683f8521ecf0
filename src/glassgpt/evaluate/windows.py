"""From documents to rows: what the model reads, and which of its tokens count.

A row is a stretch of tokens that fits the context. Everything that is measured comes down to the
log-probability of a row's last tokens, each given all that stand before it in the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from glassgpt.generate.text import Tokenizer

Ids = np.ndarray  # of int64


class Row(NamedTuple):
    ids: Ids  # at most one more than the context: the last is only a target
    first: int  # ids[first:] are scored; at least 1
    barred: bool = False  # also say whether the first is the likeliest among the tokens that are not barred

    @property
    def n_scored(self) -> int:
        return len(self.ids) - self.first


Group = list[Row]  # rows of one document: their scores belong together, and they may begin alike


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The tokens of a context and of what follows it, cut as they are cut when written in one piece.

    The rule of lm-evaluation-harness: blanks at the end of the context belong to what follows, and the
    continuation is what is left of the whole after as many tokens as the context alone has.
    """
    kept = context.rstrip()
    continuation, context = context[len(kept) :] + continuation, kept
    before = tokenizer.encode(context)
    return before, tokenizer.encode(context + continuation)[len(before) :]


def continuation_rows(
    context: Sequence[int], continuation: Sequence[int], n_positions: int, barred: bool = False
) -> list[Row]:
    """Rows that score a continuation once each token; a context that is too long loses its beginning.

    One row, unless the continuation alone is longer than the model can read. The context must not be empty.
    """
    ids = np.array([*context, *continuation], np.int64)
    first = len(context)
    rows = []
    for start in range(first, len(ids), n_positions):
        end = min(start + n_positions, len(ids))
        begin = max(0, end - n_positions - 1)
        rows.append(Row(ids[begin:end], start - begin, barred and start == first))
    return rows


def rolling_rows(ids: Sequence[int], n_positions: int, stride: int, prefix: int | None) -> Iterator[Row]:
    """Every token of a text once, `stride` at a time, each with as much before it as the window holds.

    With `stride` as large as the window the windows do not overlap, which is the rule of
    lm-evaluation-harness. The first token follows `prefix` (end-of-text); without one it is not scored.
    """
    whole = np.array(ids if prefix is None else [prefix, *ids], np.int64)
    start = 1
    while start < len(whole):
        end = min(start + (n_positions if start == 1 else stride), len(whole))
        begin = max(0, end - n_positions - 1)
        yield Row(whole[begin:end], start - begin)
        start = end


def strided_rows(ids: Sequence[int], n_positions: int, stride: int) -> Iterator[Row]:
    """The rule of the `transformers` documentation: a window begins every `stride` tokens, and scores what
    no window before it had. Nothing stands before the text, so the first token of a window that scores all
    of its own is given, not predicted."""
    whole = np.array(ids, np.int64)
    scored = 0
    for begin in range(0, len(whole), stride):
        end = min(begin + n_positions, len(whole))
        first = max(scored - begin, 1)
        if end - begin > first:
            yield Row(whole[begin:end], first)
        scored = end
        if end == len(whole):
            return
