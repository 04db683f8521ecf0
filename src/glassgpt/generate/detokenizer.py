"""Tokens to text, one at a time: never half a character, never a part of a stop string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassgpt.generate.sampling.params import SamplingParams
    from glassgpt.tokenizer import DecodeStream, Tokenizer


class IdStream:
    """The text of a model without a tokenizer: its ids, each after a space."""

    def push(self, token_id: int, /) -> str:
        return f" {token_id}"

    def finish(self) -> str:
        return ""


# The end of a sentence: its last sign with closing quotes, then white space and the beginning of another. An
# initial, a title or "no." before a capital is no end.
_SENTENCE = re.compile(
    r"""(?<!\b[A-Z])(?<!\b(?:Mr|Ms|Dr|St|No|vs))(?<!\bMrs)(?<!\bProf)[.!?…]+["'”’)\]]*(?=\s+["'“‘(\[]*[A-Z0-9À-ÞĀ-ſ])"""
)
# What may still become one, at the end of a text: the sign and what follows it.
_PERHAPS_SENTENCE = re.compile(r"""[.!?…]+["'”’)\]]*\s*["'“‘(\[]*$""")


class Detokenizer:
    """The text of one sequence. A possible beginning of a stop string is held back until it is decided."""

    def __init__(self, tokenizer: Tokenizer | None, settings: SamplingParams) -> None:
        self._stream: DecodeStream | IdStream = IdStream() if tokenizer is None else tokenizer.stream()
        # Each with whether the text keeps it.
        self._kept = {
            **dict.fromkeys(settings.stop, settings.stop_keep),
            **dict.fromkeys(settings.until_suffix, True),
        }
        if settings.stop_at == "line":
            self._kept.setdefault("\n", False)
        self._stops = tuple(self._kept)
        self._at_sentence = settings.stop_at == "sentence"
        self._before = ""  # the end of the text given out, for what a sentence's end looks back at
        self._unstoppable = settings.min_new_tokens  # tokens still to come before a stop string counts
        self._held = ""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All text returned so far."""
        return "".join(self._pieces)

    def push(self, token: int) -> tuple[str, bool]:
        """Append a token; return the text that became certain, and whether a stop string was completed."""
        piece = self._stream.push(token)
        if self._unstoppable:
            self._unstoppable -= 1
            self._held += piece
            return self._give(len(self._held)), False
        return self._scan(piece)

    def finish(self) -> str:
        """The text held back, when no more tokens come."""
        piece, stopped = self._scan(self._stream.finish())
        return piece if stopped else piece + self._give(len(self._held))

    def _scan(self, piece: str) -> tuple[str, bool]:
        self._held += piece
        # The stop string that is complete first wins, so that the cut does not depend on how the text is
        # divided into tokens.
        matches = [
            (at + len(stop), at + len(stop) * self._kept[stop])
            for stop in self._stops
            if (at := self._held.find(stop)) >= 0
        ]
        if self._at_sentence and (end := self._sentence_end()) is not None:
            matches.append((end, end))
        if matches:
            text = self._give(min(matches)[1])
            self._held = ""
            return text, True
        return self._give(len(self._held) - self._undecided()), False

    def _sentence_end(self) -> int | None:
        """Where in the held text a sentence ends, if one does."""
        found = _SENTENCE.search(self._before + self._held, len(self._before))
        return None if found is None else found.end() - len(self._before)

    def _undecided(self) -> int:
        """The length of the longest suffix of the held text that could begin a stop string."""
        longest = min(len(self._held), max((len(stop) for stop in self._stops), default=1) - 1)
        begun = next((n for n in range(longest, 0, -1) if self._begins_stop(self._held[-n:])), 0)
        perhaps = _PERHAPS_SENTENCE.search(self._held) if self._at_sentence else None
        return begun if perhaps is None else max(begun, len(self._held) - perhaps.start())

    def _begins_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)

    def _give(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._pieces.append(text)
            self._before = (self._before + text)[-8:]
        return text


def tokens_covering(text: str, tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """The number of tokens needed to write a text that was cut at a stop string."""
    kept = len(tokens)
    while kept and len(tokenizer.decode(tokens[: kept - 1])) >= len(text):
        kept -= 1
    return kept
