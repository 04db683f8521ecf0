"""Reading a trace as text: the loss of each token, and the logit lens (nostalgebraist 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassgpt.backends.protocol import array_namespace
from glassgpt.inspect.arrays import AnyArray, to_numpy
from glassgpt.inspect.traces.indexing import Array


@dataclass(frozen=True)
class TokenLoss:
    """How well each token was predicted: all (T,), and NaN for the first token, which nothing predicts."""

    p: Array  # the probability that the model gave it, 0 to 1
    rank: Array  # its rank among all tokens, 1 for the most likely
    entropy: Array  # of the distribution that predicted it, in nats

    @property
    def nats(self) -> Array:
        """The loss of each token: its negative log-likelihood, -log p."""
        found: Array = -np.log(self.p)
        return found


@dataclass(frozen=True)
class Lens:
    """The logit lens: layer 0 is after the embedding, layer i after i blocks."""

    ids: Array  # (n_layer + 1, T), or (n_layer + 1, T, k), most likely first
    p: Array  # their probabilities
    texts: Array  # the same ids as text


TopK = tuple[Array, Array]  # ids and probabilities, (n_layer + 1, T, k) each


def concat_top_k(first: TopK, second: TopK, axis: int) -> TopK:
    return np.concatenate([first[0], second[0]], axis), np.concatenate([first[1], second[1]], axis)


def compute_token_loss(log_ps: Iterable[AnyArray], tokens: Sequence[int]) -> Array:
    """The fields of `TokenLoss`, (3, tokens), from chunks of the log-probabilities of each token."""
    found = np.full((3, len(tokens)), np.nan, np.float32)
    start = 0
    for log_p in log_ps:
        log_p = log_p[: len(tokens) - start]  # nothing follows the last position
        xp = array_namespace(log_p)
        part = slice(start, start + len(log_p))
        targets = np.array(tokens[part], np.int64)  # (chunk,)
        # An id beyond the tokenizer's has no probability; it can only come from a list of ids.
        known = targets < log_p.shape[1]
        own = log_p[np.arange(len(log_p)), np.where(known, targets, 0)][:, None]  # (chunk, 1)
        found[0, part] = np.where(known, to_numpy(xp.exp(own))[:, 0], 0.0)
        larger = to_numpy(xp.sum(xp.astype(log_p > own, xp.int64), axis=1))
        found[1, part] = 1 + np.where(known, larger, log_p.shape[1])
        p = xp.exp(log_p)
        with np.errstate(invalid="ignore"):  # 0 times infinity, which where() drops
            found[2, part] = to_numpy(-xp.sum(xp.where(p > 0, p * log_p, xp.zeros_like(p)), axis=1))
        start += len(log_p)
    return found


class TokenStrings:
    """The ids that have text, and the text of each."""

    def __init__(self, size: int, tokenizer: Any) -> None:
        self.size = size
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token: int) -> str:
        """The text of an id (U+FFFD for part of a character); without a tokenizer, the id itself."""
        token = int(token)
        if token not in self._texts:
            readable = self._tokenizer is not None and token < self._tokenizer.vocab_size
            self._texts[token] = self._tokenizer.decode([token]) if readable else str(token)
        return self._texts[token]

    def update(self, texts: Mapping[int, str]) -> None:
        """Add texts that are known without a tokenizer, from a file."""
        self._texts.update(texts)

    def texts(self, ids: Array) -> Array:
        return np.array([self.text(token) for token in ids.ravel()], dtype=object).reshape(ids.shape)
