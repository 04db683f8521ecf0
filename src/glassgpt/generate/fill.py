"""`gpt.fill("The ___ sat on the mat.")`: the most likely tokens for the blanks of a text.

A bidirectional model reads the whole text with its mask token in the blanks, and fills all of them at once.
A causal model fills them from left to right. It guesses from the text before a blank and reranks its most
likely guesses by the probability of the text after it ("rescored" in recipes/attention/bidirectional.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.errors import SettingError
from glassgpt.generate.prompt import usable_vocab_size
from glassgpt.ranges import check_whole
from glassgpt.tokenizer.events import NamedTokenizer

if TYPE_CHECKING:
    from glassgpt.generate.language_model import LanguageModel
    from glassgpt.tokenizer import Tokenizer

GUESSES = 64  # of a causal model; with 20, "A robot must ___ the orders" has no "obey" among them
FOLLOWING = 32  # tokens after a blank that rerank the guesses
BLANK = re.compile("(?:___)+")  # three underscores for each token


@dataclass(frozen=True)
class Blank:
    position: int  # index among the tokens
    candidates: list[tuple[str, float]]  # as text, with their probabilities, most likely first
    tokens: list[int]  # their ids, since a part of a character has no text


@dataclass(frozen=True)
class Filled:
    text: str  # with the most likely candidate in each blank
    tokens: list[int]
    blanks: list[Blank]


def fill(gpt: LanguageModel, text: str, k: int = 5) -> Filled:
    check_whole("k", k, 1, usable_vocab_size(gpt.backend, gpt.tokenizer))
    tokenizer = gpt.require_tokenizer("a text with blanks")
    ids = encode_blanks(tokenizer, text)
    places = [place for place, token in enumerate(ids) if token is None]
    if not places:
        raise SettingError("the text has no blank. Write ___ for each token to fill in.")
    if len(ids) > gpt.backend.context:
        raise SettingError(
            f"{len(ids):,} tokens are more than the model's {gpt.backend.context:,}. Shorten the text."
        )
    mask = gpt.config.mask_token_id
    if mask is None and places[0] == 0:
        raise SettingError(
            "a causal model guesses from what precedes a blank, and nothing precedes the first. "
            "Put text before it, or use a model with attention 'bidirectional'."
        )
    filled = [0 if token is None else token for token in ids]
    blanks = []
    if mask is not None:
        read = [mask if token is None else token for token in ids]
        logits = gpt.logits([read])[0][places]  # (blanks, V)
    for number, place in enumerate(places):
        row = gpt.logits([filled[:place]])[0, -1] if mask is None else logits[number]
        row = row[: usable_vocab_size(gpt.backend, gpt.tokenizer)]
        if mask is None and (after := until_blank(ids[place + 1 :])):
            candidates = rescore(gpt, filled[:place], most_likely(row, max(k, GUESSES)), after)[:k]
        else:
            candidates = most_likely(row, k)
        filled[place] = candidates[0][0]
        texts = [(tokenizer.decode([token]), p) for token, p in candidates]
        blanks.append(Blank(place, texts, [token for token, _ in candidates]))
    return Filled(tokenizer.decode(filled), filled, blanks)


def encode_blanks(tokenizer: Tokenizer, text: str) -> list[int | None]:
    """The ids of a text; None for each blank.

    Where tokens begin with the space before a word, as GPT-2's do, so does a blank.
    """
    joins = isinstance(tokenizer, NamedTokenizer) or (
        len(tokenizer.encode(" a")) < len(tokenizer.encode(" ")) + len(tokenizer.encode("a"))
    )
    ids: list[int | None] = []
    end = 0
    for blank in BLANK.finditer(text):
        before = text[end : blank.start()]
        ids += tokenizer.encode(before.removesuffix(" ") if joins else before)
        ids += [None] * (len(blank.group()) // 3)
        end = blank.end()
    return ids + tokenizer.encode(text[end:])


def until_blank(ids: Sequence[int | None]) -> list[int]:
    """The tokens up to the next blank, at most FOLLOWING."""
    end = ids.index(None) if None in ids else len(ids)
    return [token for token in ids[: min(end, FOLLOWING)] if token is not None]


def rescore(
    gpt: LanguageModel, before: list[int], guesses: Sequence[tuple[int, float]], after: list[int]
) -> Sequence[tuple[int, float]]:
    """Rank guesses by the probability of each with the text after it, relative to the other guesses."""
    texts = [np.array([*before, token, *after], np.int64) for token, _ in guesses]
    scores = np.zeros(len(guesses))
    requests = [ScoreRequest(ids, len(before)) for ids in texts]
    with gpt.lock.hold(), closing(gpt.backend.score([requests])) as batches:
        for places, token_scores in batches:
            for (_, place), scored in zip(places, token_scores, strict=True):
                scores[place] = scored.logprobs.sum()
    return [(guesses[place][0], p) for place, p in most_likely(scores, len(guesses))]


def most_likely(logits: np.ndarray, k: int) -> Sequence[tuple[int, float]]:
    p = np.exp(logits - logits.max(), dtype=np.float64)
    p /= p.sum()
    best = np.argsort(-p, kind="stable")[:k]
    return [(int(token), float(p[token])) for token in best]
