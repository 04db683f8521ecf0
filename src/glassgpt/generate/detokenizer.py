"""Tokens to text, one at a time: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassgpt.tokenizer import DecodeStream, Tokenizer


class IdStream:
    """The text of a model without a tokenizer: its ids, each after a space."""

    def push(self, token_id: int, /) -> str:
        return f" {token_id}"

    def finish(self) -> str:
        return ""


class Detokenizer:
    """The text of one sequence. A possible beginning of a stop string is held back until it is decided."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._stream: DecodeStream | IdStream = IdStream() if tokenizer is None else tokenizer.stream()
        self._stops = stops
        self._unstoppable = min_tokens  # tokens still to come before a stop string counts
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
        matches = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if matches:
            text = self._give(min(matches)[1])
            self._held = ""
            return text, True
        return self._give(len(self._held) - self._undecided()), False

    def _undecided(self) -> int:
        """The length of the longest suffix of the held text that could begin a stop string."""
        longest = min(len(self._held), max((len(stop) for stop in self._stops), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if self._begins_stop(self._held[-n:])), 0)

    def _begins_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)

    def _give(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._pieces.append(text)
        return text


def tokens_covering(text: str, tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """The number of tokens needed to write a text that was cut at a stop string."""
    kept = len(tokens)
    while kept and len(tokenizer.decode(tokens[: kept - 1])) >= len(text):
        kept -= 1
    return kept
