"""`gpt.fill("The ___ sat on the mat.")`: the likeliest tokens for the blanks of a text.

A bidirectional model reads the whole text with its mask token in the blanks, and fills all of them at once.
A causal model guesses from what stands before a blank, from left to right, and rates its likeliest guesses by
what follows: the one after which that is likeliest wins ("rescored" in recipes/attention/bidirectional.py).
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
FOLLOWING = 32  # tokens after a blank that rate them
BLANK = re.compile("(?:___)+")  # three underscores for each token


@dataclass(frozen=True)
class Blank:
    position: int  # among the tokens
    candidates: list[tuple[str, float]]  # as text, with their probabilities, likeliest first
    tokens: list[int]  # their ids: part of a character has no text of its own


@dataclass(frozen=True)
class Filled:
    text: str  # with the likeliest candidate in each blank
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
            candidates = rescore(gpt, filled[:place], likeliest(row, max(k, GUESSES)), after)[:k]
        else:
            candidates = likeliest(row, k)
        filled[place] = candidates[0][0]
        texts = [(tokenizer.decode([token]), p) for token, p in candidates]
        blanks.append(Blank(place, texts, [token for token, _ in candidates]))
    return Filled(tokenizer.decode(filled), filled, blanks)


def encode_blanks(tokenizer: Tokenizer, text: str) -> list[int | None]:
    """The ids of a text; None for each blank.

    Where tokens begin with the space before a word, as GPT-2's do, a blank does so, too.
    """
    joins = isinstance(tokenizer, NamedTokenizer) or (
        len(tokenizer.encode(" a")) < len(tokenizer.encode(" ")) + len(tokenizer.encode("a"))
    )
    ids: list[int | None] = []
    end = 0
    for found in BLANK.finditer(text):
        before = text[end : found.start()]
        ids += tokenizer.encode(before.removesuffix(" ") if joins else before)
        ids += [None] * (len(found.group()) // 3)
        end = found.end()
    return ids + tokenizer.encode(text[end:])


def until_blank(ids: Sequence[int | None]) -> list[int]:
    """The tokens up to the next blank, or so many as rate a guess."""
    end = ids.index(None) if None in ids else len(ids)
    return [token for token in ids[: min(end, FOLLOWING)] if token is not None]


def rescore(
    gpt: LanguageModel, before: list[int], guesses: Sequence[tuple[int, float]], after: list[int]
) -> Sequence[tuple[int, float]]:
    """The guesses by how likely each is together with what follows; probabilities are among the guesses."""
    texts = [np.array([*before, token, *after], np.int64) for token, _ in guesses]
    scores = np.zeros(len(guesses))
    requests = [ScoreRequest(ids, len(before)) for ids in texts]
    with gpt.lock.hold(), closing(gpt.backend.score([requests])) as batches:
        for places, found in batches:
            for (_, place), one in zip(places, found, strict=True):
                scores[place] = one.logprobs.sum()
    return [(guesses[place][0], p) for place, p in likeliest(scores, len(guesses))]


def likeliest(logits: np.ndarray, k: int) -> Sequence[tuple[int, float]]:
    p = np.exp(logits - logits.max(), dtype=np.float64)
    p /= p.sum()
    best = np.argsort(-p, kind="stable")[:k]
    return [(int(token), float(p[token])) for token in best]
