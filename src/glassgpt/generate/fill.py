"""`gpt.fill("The ___ sat on the mat.")`: the likeliest tokens for the blanks of a text.

A bidirectional model reads the whole text with its mask token in the blanks, and fills all of them at once.
A causal model has only what stands before a blank: it guesses, from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.generate.prompt import usable_vocab_size
from glassgpt.ranges import check_whole
from glassgpt.tokenizer.events import NamedTokenizer

if TYPE_CHECKING:
    from glassgpt.generate.text import Tokenizer
    from glassgpt.gpt import GPT

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


def fill(gpt: GPT, text: str, k: int = 5) -> Filled:
    check_whole("k", k, 1, usable_vocab_size(gpt.backend, gpt.tokenizer))
    tokenizer = gpt._need_tokenizer("a text with blanks")
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
        candidates = likeliest(row[: usable_vocab_size(gpt.backend, gpt.tokenizer)], k)
        filled[place] = candidates[0][0]
        texts = [(tokenizer.decode([token]), p) for token, p in candidates]
        blanks.append(Blank(place, texts, [token for token, _ in candidates]))
    return Filled(tokenizer.decode(filled), filled, blanks)


def encode_blanks(tokenizer: Tokenizer, text: str) -> list[int | None]:
    """The ids of a text; None for each blank.

    Where tokens begin with the space before a word, as GPT-2's do, a blank does so, too.
    """
    names: object = tokenizer  # of events
    joins = isinstance(names, NamedTokenizer) or (
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


def likeliest(logits: np.ndarray, k: int) -> Sequence[tuple[int, float]]:
    p = np.exp(logits - logits.max(), dtype=np.float64)
    p /= p.sum()
    best = np.argsort(-p, kind="stable")[:k]
    return [(int(token), float(p[token])) for token in best]
