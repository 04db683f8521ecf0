"""Speculative decoding: guess the next tokens, check all guesses in one pass, keep those that are right.

Reading five tokens takes little longer than reading one, since all weights are read once either way. So a
cheap guess at the next few tokens pays if it is often right: in text that repeats itself, quotes its prompt
or fills in a form. Guesses come from the text (`PromptLookup`: what followed the same tokens before) or from
a smaller model with the same vocabulary (`DraftModel`).

It is exact. Every token is drawn from the model's own logits, with the random number that belongs to it
whether anything was guessed or not. A guess is kept if it is the token that was drawn; at the first that is
not, the drawn token takes its place. So a seed gives the same text with and without speculation, up to the
rounding of logits that were computed for several tokens at once. (Rejection sampling, arXiv:2211.17192, would
accept a sampled draft more often, but make a text depend on the length of the guesses.)

Whether and how far to guess is decided by counting, not by the clock, so that it is repeatable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from glassgpt.backends.protocol import Array, Backend
from glassgpt.errors import SettingError

if TYPE_CHECKING:
    from glassgpt.generate.engine.request import Sample

NGRAM = 2  # tokens that must match before their continuation is a guess
MAX_MATCH = 12
RECENT = 4  # latest places with the same n-gram that are compared
START, INCOME, MAX_BALANCE = 1.0, 0.02, 12.0  # in decoding steps; the income is per token


class Cost(NamedTuple):
    """The time to read n tokens at once, in decoding steps: base + each * n.

    A backend may have its own as `verify_cost`. These are torch's on two cores, for the shipped model: 1.4
    for 5 tokens, 1.6 for 8, 2.0 for 16, but 1.9 for 3 or 4. In a batch a step costs each sequence less, while
    torch still reads them one at a time: `crowd` for each neighbor.
    """

    base: float = 1.25
    each: float = 0.045
    fewest: int = 4  # guesses that are worth a check
    most: int = 15
    crowd: float = 0.25
    draft: float = 0.2  # for each token that a draft model guesses (`tiny` for `default`)


class Speculator:
    """Decides whether to guess ahead in one sequence, and how far.

    It keeps a balance: each right guess earns a step, each check costs its time beyond a step, and every
    token brings a small income. Nothing is guessed while the balance does not cover a check: where guesses
    fail, this loses about the income, and no more.
    """

    def __init__(self, cost: Cost, prompt: Sequence[int]) -> None:
        self.cost = cost
        self.lookup = PromptLookup(prompt)
        self._balance = START
        self._length = cost.fewest
        self._min_match = NGRAM

    def length(self, room: int, neighbors: int = 0, by_model: bool = False) -> int:
        """The number of tokens to guess, at most `room`; 0 for none."""
        length = min(self._length, room)
        if length < self.cost.fewest or self._balance < self._price(length, neighbors, by_model):
            return 0
        return length

    def look_up(self, tokens: Sequence[int], room: int, neighbors: int = 0) -> list[int]:
        """A guess from the text itself; `tokens` are those generated so far."""
        self.lookup.read(tokens)
        length = self.length(room, neighbors)
        return self.lookup.guess(length, self._min_match) if length else []

    def settle(self, drafted: int, accepted: int, neighbors: int = 0, by_model: bool = False) -> None:
        """Update the balance after a check in which `accepted` of `drafted` guesses were right."""
        gain = accepted - self._price(drafted, neighbors, by_model)
        self._balance = min(MAX_BALANCE, self._balance + gain)
        if accepted == drafted:
            self._length = min(self.cost.most, 2 * self._length + 1)
        else:
            self._length = max(self.cost.fewest, accepted)
        if gain > 0:
            self._min_match = NGRAM
        elif not by_model:
            self._min_match = min(MAX_MATCH, self._min_match + 1)

    def earn(self) -> None:
        """Update the balance after a step without a guess."""
        self._balance = min(MAX_BALANCE, self._balance + INCOME)

    def _price(self, drafted: int, neighbors: int, by_model: bool) -> float:
        """The cost of guessing and checking beyond the step that is computed anyway."""
        check = (self.cost.base + self.cost.each * (drafted + 1)) * (1 + self.cost.crowd * neighbors)
        return check - 1 + (self.cost.draft * drafted if by_model else 0.0)


class PromptLookup:
    """Guesses what followed the last tokens at an earlier place in the text, prompt included."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> places after it
        self._prompt = len(prompt)
        self._append(prompt)

    def read(self, tokens: Sequence[int]) -> None:
        """Append the tokens generated since the last call."""
        self._append(tokens[len(self._text) - self._prompt :])

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            if len(self._text) >= NGRAM:
                self._ends[tuple(self._text[-NGRAM:])].append(len(self._text))

    def guess(self, length: int, min_match: int) -> list[int]:
        """The guessed next tokens; none if fewer than `min_match` tokens match anywhere."""
        text = self._text
        places = self._ends.get(tuple(text[-NGRAM:]), [])[-1 - RECENT : -1]  # the last one is the end itself
        best, match = 0, min_match - 1
        for place in reversed(places):
            agree = self._agreement(place)
            if agree > match:
                best, match = place, agree
        if not best:
            return []
        draft: list[int] = []
        for i in range(best, best + length):  # beyond the end of the text, continue with the guess itself
            draft.append(text[i] if i < len(text) else draft[i - len(text)])
        return draft

    def _agreement(self, place: int) -> int:
        """The number of tokens before a place that equal those before the end."""
        text, count = self._text, NGRAM
        while count < min(MAX_MATCH, place) and text[place - count - 1] == text[-count - 1]:
            count += 1
        return count


@dataclass
class Guess:
    """A guess at the next tokens of a sequence."""

    sample: Sample
    tokens: list[int]
    neighbors: int  # sequences computed in the same batch
    by_model: bool = False
    right: int = 0  # tokens that turned out to be right

    def was_right(self) -> bool:
        """Whether the token just drawn is the one guessed, so that the next guess is still valid."""
        sample = self.sample
        if sample.finished or self.right == len(self.tokens) or sample.tokens[-1] != self.tokens[self.right]:
            return False
        self.right += 1
        return True

    def settle(self) -> None:
        assert self.sample.speculator is not None
        self.sample.speculator.settle(len(self.tokens), self.right, self.neighbors, self.by_model)


def guess_ahead(samples: Sequence[Sample], context: int, draft: DraftModel | None) -> list[Guess]:
    """Guesses for the sequences of a batch: from the text, else from the draft model if that is allowed."""
    guesses: list[Guess] = []
    asked: list[tuple[Sample, int]] = []  # for the draft model, and how many tokens to guess
    neighbors = len(samples) - 1
    for sample in samples:
        if sample.speculator is None:
            continue
        room = min(sample.limit - sample.drawn, context - sample.length) - 1  # one more is drawn than guessed
        tokens = sample.speculator.look_up(sample.tokens, room, neighbors)
        if tokens:
            guesses.append(Guess(sample, tokens, neighbors))
            continue
        length = 0
        if draft is not None and sample.request.settings.speculate != "lookup":
            room = min(room, draft.backend.context - sample.length - 1)
            length = sample.speculator.length(room, neighbors, by_model=True)
        if length:
            asked.append((sample, length))
        else:
            sample.speculator.earn()
    if draft is not None and asked:
        texts = [sample.history[sample.offset :] for sample, _ in asked]
        lengths = [length for _, length in asked]
        drafts = draft.guess([sample.row for sample, _ in asked], texts, max(lengths))
        for (sample, length), tokens in zip(asked, drafts, strict=True):
            guesses.append(Guess(sample, tokens[:length], neighbors, by_model=True))
    return guesses


def verify(guesses: Sequence[Guess], backend: Backend, draw: Callable[[list[Sample], Array], None]) -> None:
    """Read all guesses together, then draw token after token as long as each is the one guessed.

    `draw` appends to each sample the token drawn from its row of the logits.
    """
    texts = [[guess.sample.history[-1], *guess.tokens] for guess in guesses]
    rows, starts = [guess.sample.row for guess in guesses], [guess.sample.length for guess in guesses]
    logits = backend.extend(rows, texts, starts, "all")  # (N, V), one text after the other
    firsts = np.cumsum([0, *map(len, texts)]).tolist()
    places = list(zip(guesses, firsts, strict=False))  # the last of the firsts is the end
    while places:
        now = [first + guess.right for guess, first in places]
        # A slice copies nothing.
        which = slice(now[0], now[0] + 1) if len(now) == 1 else backend.array(np.array(now))
        draw([guess.sample for guess, _ in places], logits[which])
        places = [(guess, first) for guess, first in places if guess.was_right()]
    for guess in guesses:
        guess.settle()


class DraftModel:
    """A small model that guesses for a large one. Its cache has the same rows."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._held: list[list[int]] = [[] for _ in range(backend.rows)]

    def guess(self, rows: Sequence[int], texts: Sequence[list[int]], length: int) -> list[list[int]]:
        """The most likely next tokens of each text, greedily. A text is the whole content of its row."""
        starts, unread = [], []
        for row, text in zip(rows, texts, strict=True):
            start = min(_common(self._held[row], text), len(text) - 1)
            starts.append(start)
            unread.append(text[start:])
        last = self._best(self.backend.extend(rows, unread, starts))
        drafts = [[token] for token in last]
        for i in range(1, length):
            positions = [len(text) + i - 1 for text in texts]
            last = self._best(self.backend.decode(rows, self.backend.array(np.array(last)), positions))
            for draft, token in zip(drafts, last, strict=True):
                draft.append(token)
        for row, text, draft in zip(rows, texts, drafts, strict=True):
            self._held[row] = text + draft[:-1]
        return drafts

    def _best(self, logits: object) -> list[int]:
        host = self.backend.fetch(logits)()  # (B, V)
        return [int(token) for token in host.argmax(axis=-1)]


def _common(held: list[int], text: list[int]) -> int:
    """The length of the longest common prefix."""
    shorter = min(len(held), len(text))
    if held[:shorter] == text[:shorter]:
        return shorter
    return next(i for i in range(shorter) if held[i] != text[i])


def check_draft(draft: Backend, backend: Backend) -> None:
    """Refuse a draft model with another vocabulary."""
    if draft.config.vocab_size != backend.config.vocab_size:
        raise SettingError(
            f"the draft model has a vocabulary of {draft.config.vocab_size:,} tokens and the model one of "
            f"{backend.config.vocab_size:,}. Take one that was trained with the same tokenizer."
        )
