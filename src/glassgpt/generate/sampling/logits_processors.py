"""Logits processors: penalties, bias, banned and required words, n-grams that must not repeat.

All of them are changes to single logits (`sampler.LogitEdits`). Fixed ones (a bias, a ban on one token) are
known in advance; the others depend on the text so far, so the engine must read each token before it can draw
the next one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from glassgpt.backends.protocol import Array
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.sampling.constraints import Constraint
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import LogitEdits

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

Change = tuple[float, float]  # scale, shift
KEEP: Change = (1.0, 0.0)


class TokenRule(Protocol):
    """The caller's own code that decides what may follow; `glassgpt.music.generate` has an example."""

    def push(self, token: int) -> None:
        """Append a generated token."""

    def changes(self) -> Mapping[int, Change]:
        """The changes to the next token's logits, by id: (1, -inf) bans one."""


MakeRule = Callable[[], TokenRule]  # called once for each text


class LogitsProcessor:
    """The changes to the logits of one sequence; `push` appends a generated token."""

    def __init__(
        self,
        settings: SamplingParams,
        prompt: Sequence[int],
        word_biases: WordBiases,
        vocab_size: int,
        stop_tokens: Iterable[int] = (),
        constraint: Constraint | None = None,
        rule: TokenRule | None = None,
    ) -> None:
        self._settings = settings
        self.constraint = constraint
        self.rule = rule
        # Stop tokens are banned before `min_new_tokens` others were generated.
        self._too_early = [token for token in stop_tokens if token < vocab_size]
        self._until = len(prompt) + settings.min_new_tokens if self._too_early else 0
        self._fixed: dict[int, float] = defaultdict(float)
        for token, bias in settings.logit_bias.items():
            if token >= vocab_size:
                raise SettingError(
                    f"logit_bias names token {token}; this vocabulary ends at {vocab_size - 1}. Leave it out."
                )
            self._fixed[token] += bias
        self._longer: list[tuple[tuple[int, ...], float]] = []  # words of several tokens, and their bias
        for spelling, bias in word_biases.spellings:
            if max(spelling, default=0) >= vocab_size:
                raise SettingError(
                    f"a banned or required word is spelled with token {max(spelling)}; this model's "
                    f"vocabulary ends at {vocab_size - 1}. Leave it out."
                )
            if len(spelling) == 1 or bias > -math.inf:
                self._fixed[spelling[0]] += bias
            if len(spelling) > 1:
                self._longer.append((spelling, bias))
        self._text = list(prompt)
        self._seen = set(prompt)
        self._generated: Counter[int] = Counter()
        self._followers: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for end in range(1, len(prompt) + 1):
            self._remember_ngram(end)
        s = settings
        penalties = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty, s.no_repeat_ngram)
        # Whether the changes never depend on the text, and whether there are any: read for every token.
        changing = (
            rule is not None
            or bool(self._longer)
            or self._until > len(prompt)
            or any(setting is not None for setting in penalties)
        )
        self.fixed = not changing and constraint is None
        self.any = bool(self._fixed) or changing

    def push(self, token: int) -> None:
        if self.constraint is not None:
            self.constraint.push(token)
        if not self.any:
            return
        if self.rule is not None:
            self.rule.push(token)
        self._text.append(token)
        self._seen.add(token)
        self._generated[token] += 1
        self._remember_ngram(len(self._text))

    def _remember_ngram(self, end: int) -> None:
        n = self._settings.no_repeat_ngram
        if n is not None and end >= n:
            self._followers[tuple(self._text[end - n : end - 1])].add(self._text[end - 1])

    def changes(self) -> dict[int, Change]:
        """The changes to the next token's logits, by id."""
        s = self._settings
        shift = dict(self._fixed)
        if s.presence_penalty is not None or s.frequency_penalty is not None:
            once = 0.0 if s.presence_penalty is None else s.presence_penalty
            each = 0.0 if s.frequency_penalty is None else s.frequency_penalty
            for token, count in self._generated.items():
                shift[token] = shift.get(token, 0.0) - once - each * count
        for spelling, bias in self._longer:
            for done in range(1, len(spelling)):
                ban_only_the_end = bias == -math.inf and done < len(spelling) - 1
                if not ban_only_the_end and self._ends_with(spelling[:done]):
                    shift[spelling[done]] = shift.get(spelling[done], 0.0) + bias
        n = s.no_repeat_ngram
        if n is not None and len(self._text) >= n - 1:
            recent = tuple(self._text[len(self._text) - n + 1 :])
            shift.update(dict.fromkeys(self._followers.get(recent, ()), -math.inf))
        if len(self._text) < self._until:
            shift.update(dict.fromkeys(self._too_early, -math.inf))
        scale = 1.0 if s.repetition_penalty is None else s.repetition_penalty
        changes: dict[int, Change] = {token: (1.0, value) for token, value in shift.items()}
        if scale != 1.0:
            changes.update({token: (scale, shift.get(token, 0.0)) for token in self._seen})
        if self.rule is not None:
            changes = join_changes(changes, self.rule.changes())
        return changes

    def _ends_with(self, ids: tuple[int, ...]) -> bool:
        return tuple(self._text[-len(ids) :]) == ids


def join_changes(first: dict[int, Change], second: Mapping[int, Change]) -> dict[int, Change]:
    """Apply both changes, one after the other."""
    for token, (scale, shift) in second.items():
        before = first.get(token, KEEP)
        first[token] = (before[0] * scale, before[1] + shift)
    return first


class WordBiases:
    """The token spellings of a request's banned and required words.

    A word is spelled with and without a space before it, since a BPE vocabulary has a token for each; the
    other spellings that a vocabulary allows ("c" + "at") are not covered. A ban of a spelling of several
    tokens takes effect at its last one.
    """

    def __init__(self, settings: SamplingParams, tokenizer: Tokenizer | None) -> None:
        self.spellings: list[tuple[tuple[int, ...], float]] = []
        if not settings.banned_words and not settings.required_words:
            return
        if tokenizer is None:
            raise UserError(
                "words need a tokenizer, and this model came without one; use logit_bias with ids."
            )
        for words, bias in (
            (settings.banned_words, -math.inf),
            (settings.required_words, settings.required_bias),
        ):
            for spelling in sorted({spelling for word in words for spelling in _spellings(word, tokenizer)}):
                self.spellings.append((spelling, bias))


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    spellings = [tuple(tokenizer.encode(word))]
    if not word[0].isspace():
        with suppress(UserError):  # an alphabet without a space has no second spelling
            spellings.append(tuple(tokenizer.encode(" " + word)))
    return spellings


def collect_edits(
    processors: Sequence[LogitsProcessor], array: Callable[[np.ndarray], Array]
) -> LogitEdits | None:
    """The changes of a batch; None if there are none."""
    rows = [list(processor.changes().items()) if processor.any else [] for processor in processors]
    most = max(len(row) for row in rows)
    if most == 0:
        return None
    width = 1 << (most - 1).bit_length()  # few different widths: CUDA graphs are captured by shape
    ids = np.zeros((len(rows), width), np.int64)
    scale = np.ones((len(rows), width), np.float32)
    shift = np.zeros((len(rows), width), np.float32)
    for i, row in enumerate(rows):
        padded = (row if row else [(0, KEEP)]) * (width // max(len(row), 1) + 1)
        ids[i] = [token for token, _ in padded[:width]]
        scale[i] = [change[0] for _, change in padded[:width]]
        shift[i] = [change[1] for _, change in padded[:width]]
    return LogitEdits(array(ids), array(scale), array(shift))
