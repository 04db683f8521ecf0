"""The numbers of a text's next-token distributions, with a window that slides over long texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.generate.prompt import usable_vocab_size
from glassgpt.progress import Advance

if TYPE_CHECKING:
    from glassgpt.generate.language_model import LanguageModel

BATCH_LOGITS = 2**26  # that are held at a time
CHUNK_LOGITS = 2**23  # of these, in float64
SPACES = b" \t\n\r\v\f"  # what a word begins after


@dataclass(frozen=True)
class Window:
    """A part of a text that is computed together, and which of its positions count."""

    text: int
    begin: int  # the index of its first token, in the text with its prefix
    ids: list[int]
    first: int  # positions before this one were computed in an earlier window, with more context


@dataclass
class Distributions:
    """Of one text of N tokens: what the distribution at each of its N + 1 places says. Natural logarithms.

    Place i is the one before token i. At place 0 there is nothing to predict from, unless a prefix stands
    before the text: the values are NaN. The last place is that after the text.
    """

    target: np.ndarray  # (N,) log-probability of the token that comes
    rank: np.ndarray  # (N,) of that token, 1 is the most likely one; 0 if nothing predicted it
    entropy: np.ndarray  # (N + 1,)
    new_word: (
        np.ndarray
    )  # (N + 1,) log-probability that a token follows which begins with white space, or the end
    same_word: np.ndarray = field(default_factory=lambda: np.empty(0))  # (N + 1,) that another token follows


def starts_word(gpt: LanguageModel) -> np.ndarray:
    """Which tokens begin with white space, or end the text: after these a word is over. (V,)"""
    tokenizer = gpt.require_tokenizer("scoring words")
    size = usable_vocab_size(gpt.backend, tokenizer)
    starts = np.zeros(size, bool)
    for token in range(size):
        starts[token] = tokenizer.token_bytes(token)[:1] in (bytes([space]) for space in SPACES)
    for token in tokenizer.special_tokens.values():
        if token < size:
            starts[token] = True
    return starts


def sliding_windows(text: int, ids: Sequence[int], length: int, stride: int) -> Iterator[Window]:
    """Windows in which every token is given at least `length` - `stride` tokens of context, if it can be."""
    done = 0
    while done < len(ids):
        end = min(len(ids), length if done == 0 else done + stride)
        begin = max(0, end - length)
        yield Window(text, begin, list(ids[begin:end]), done - begin)
        done = end


def compute_distributions(
    gpt: LanguageModel,
    texts: Sequence[Sequence[int]],
    prefix: int | None,
    starts: np.ndarray,
    context: int,
    stride: int,
    advance: Advance = lambda n: None,
) -> Iterator[Distributions]:
    """Those of each text, in order."""
    results = [_empty(len(ids)) for ids in texts]
    given = [list(ids) if prefix is None else [prefix, *ids] for ids in texts]
    windows = [
        window for text, ids in enumerate(given) for window in sliding_windows(text, ids, context, stride)
    ]
    finished = 0
    for batch in _batches(windows, gpt.config.vocab_size):
        logits = gpt.logits([window.ids for window in batch])  # (B, longest, V)
        for window, values in zip(batch, logits, strict=True):
            _read(window, values, given[window.text], prefix is not None, starts, results[window.text])
            advance(len(window.ids) - window.first)
        while finished < batch[-1].text:
            yield results[finished]
            finished += 1
    yield from results[finished:]


def _empty(n: int) -> Distributions:
    return Distributions(
        np.full(n, np.nan), np.zeros(n, np.int64), *(np.full(n + 1, np.nan) for _ in range(3))
    )


def _batches(windows: Sequence[Window], vocab_size: int) -> Iterator[list[Window]]:
    """Windows whose logits fit into memory together, padded to the longest."""
    batch: list[Window] = []
    for window in windows:
        longest = max([len(window.ids), *(len(other.ids) for other in batch)])
        if batch and (len(batch) + 1) * longest * vocab_size > BATCH_LOGITS:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _read(
    window: Window,
    logits: np.ndarray,
    ids: Sequence[int],
    has_prefix: bool,
    starts: np.ndarray,
    result: Distributions,
) -> None:
    """Note what the logits (longest, V) of a window say about its positions."""
    step = max(1, CHUNK_LOGITS // len(starts))
    shift = 0 if has_prefix else 1  # position 0 predicts the first token of the text, or the second
    for first in range(window.first, len(window.ids), step):
        some = slice(first, min(first + step, len(window.ids)))
        log_p = logits[some, : len(starts)].astype(np.float64)
        log_p -= log_p.max(-1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
        p = np.exp(log_p)
        where = np.arange(some.start, some.stop) + window.begin  # in the text with its prefix
        places = where + shift
        result.entropy[places] = -(p * np.where(p > 0, log_p, 0)).sum(-1)
        with np.errstate(divide="ignore"):
            result.new_word[places] = np.log(p[:, starts].sum(-1))
            result.same_word[places] = np.log(p[:, ~starts].sum(-1))
        known = where + 1 < len(ids)
        targets = np.array(ids)[where[known] + 1]
        own = log_p[known][np.arange(len(targets)), targets][:, None]
        result.target[places[known]] = own[:, 0]
        result.rank[places[known]] = 1 + (log_p[known] > own).sum(-1)
