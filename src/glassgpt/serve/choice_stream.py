"""A choice that is streamed: pieces of text, each with the tokens that begin in it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from glassgpt.generate.generation import Alternatives, Event
from glassgpt.serve.logprobs import TokenOffsets, TokenTexts, make_logprobs


class ChoiceDelta(NamedTuple):
    """The next part of a choice: text, and the tokens that begin in it."""

    text: str
    tokens: list[int]
    logprobs: dict[str, Any] | None
    finish_reason: str | None = None


class ChoiceStream:
    """A choice as it grows. A token comes with the text in which it begins, never before it.

    The engine holds text back while it may be a stop string; the tokens of that text wait with it.
    """

    def __init__(self, texts: TokenTexts, start: int, with_logprobs: bool) -> None:
        self.texts = texts
        self.with_logprobs = with_logprobs
        self._offsets = TokenOffsets(texts, start)
        self._pending: deque[tuple[int, float | None, Alternatives | None, int]] = deque()
        self._length = start  # of the text so far
        self._released = 0

    def push(self, event: Event) -> ChoiceDelta:
        if event.token is not None:
            offset = self._offsets.push(event.token)
            self._pending.append((event.token, event.logprob, event.alternatives, offset))
        self._length += len(event.text)
        done = event.generation
        if done is None:
            count = sum(offset < self._length for *_, offset in self._pending)
        else:
            count = len(done.tokens) - self._released
        parts = [self._pending.popleft() for _ in range(count)]
        self._released += count
        tokens = [token for token, *_ in parts]
        logprobs = None
        if self.with_logprobs:
            columns = ([part[i] for part in parts] for i in (1, 2, 3))
            logprobs = make_logprobs(self.texts, tokens, *columns)  # type: ignore[arg-type]
        return ChoiceDelta(event.text, tokens, logprobs, None if done is None else done.finish_reason)
