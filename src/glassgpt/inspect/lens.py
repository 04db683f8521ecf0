"""What a trace says about a text: how surprising each token was, what each layer would say, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassgpt.inspect.indexing import Array


@dataclass(frozen=True)
class Surprise:
    """How each token came: all (T,), and NaN for the first token, which nothing predicted."""

    p: Array  # the probability it was given, 0 to 1
    rank: Array  # its place among all tokens, 1 for the one held most likely
    entropy: Array  # how undecided the model was before it came, in nats

    @property
    def nats(self) -> Array:
        """-log p."""
        found: Array = -np.log(self.p)
        return found


@dataclass(frozen=True)
class Lens:
    """What each layer would say, if it were the last: row 0 after the embedding, row i after i blocks."""

    ids: Array  # (n_layer + 1, T), or (n_layer + 1, T, k), likeliest first
    p: Array  # their probabilities
    texts: Array  # the same ids as text


Tops = tuple[Array, Array]  # ids and probabilities, (n_layer + 1, T, k) each


def joined(one: Tops, other: Tops, axis: int) -> Tops:
    return np.concatenate([one[0], other[0]], axis), np.concatenate([one[1], other[1]], axis)


def surprised(log_ps: Iterable[Tensor], tokens: Sequence[int]) -> Array:
    """The rows of `Surprise`, (3, tokens), from the log-probabilities before each token, in pieces."""
    found = np.full((3, len(tokens)), np.nan, np.float32)
    at = 0
    for log_p in log_ps:
        log_p = log_p[: len(tokens) - at]  # nothing comes after the last position
        part = slice(at, at + len(log_p))
        came = torch.tensor(tokens[part], dtype=torch.long, device=log_p.device)[:, None]  # (rows, 1)
        # An id beyond the vocabulary's texts has no probability; it can only be in ids given by hand.
        known = came < log_p.shape[1]
        own = log_p.gather(1, came.clamp(max=log_p.shape[1] - 1)).masked_fill(~known, -torch.inf)
        found[0, part] = own[:, 0].exp().cpu().numpy()
        found[1, part] = 1 + (log_p > own).sum(dim=1).cpu().numpy()
        found[2, part] = torch.special.entr(log_p.exp()).sum(dim=1).cpu().numpy()
        at += len(log_p)
    return found


class Vocabulary:
    """The ids that stand for text, and that text."""

    def __init__(self, size: int, tokenizer: Any) -> None:
        self.size = size
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token: int) -> str:
        """The text of an id (U+FFFD for a part of a character); without a tokenizer, the number."""
        token = int(token)
        if token not in self._known:
            readable = self._tokenizer is not None and token < self._tokenizer.vocab_size
            self._known[token] = self._tokenizer.decode([token]) if readable else str(token)
        return self._known[token]

    def learn(self, texts: Mapping[int, str]) -> None:
        """Texts that are known without a tokenizer, from a file."""
        self._known.update(texts)

    def texts(self, ids: Array) -> Array:
        return np.array([self.text(token) for token in ids.ravel()], dtype=object).reshape(ids.shape)
