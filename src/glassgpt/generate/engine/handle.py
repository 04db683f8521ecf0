"""A handle on the texts after some prompts: read their events, stop them, close it.

`EngineHandle` has an engine to itself, which suits a single caller: it starts at once, without a thread, and
speculates on a single text. `ServiceHandle` (service/handle.py) shares a service, which computes the texts of
several threads in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.generation import Event
from glassgpt.generate.sampling.logits_processors import MakeRule
from glassgpt.generate.sampling.params import SamplingParams


class PromptEvent(NamedTuple):
    """An event, and the index of its prompt."""

    prompt: int
    event: Event


class RequestHandle(Protocol):
    def read(self) -> list[PromptEvent]:
        """Return the next events, perhaps none; raise the error of a text that cannot be continued."""
        ...

    def stop(self) -> list[PromptEvent]:
        """End all texts; return their last events, each with the text so far."""
        ...

    def close(self) -> None:
        """Release the engine or the service. Unfinished texts are dropped."""
        ...


class EngineHandle:
    """`release` is called once, when the engine is no longer needed."""

    def __init__(self, engine: Engine, lock: FairLock, release: Callable[[Engine], None]) -> None:
        self._engine = engine
        self._lock = lock
        self._release: Callable[[Engine], None] | None = release
        self._prompts: dict[int, int] = {}  # the engine's request number -> the index of the prompt

    def add(self, requests: Sequence[tuple[Sequence[int], SamplingParams]], rule: MakeRule | None) -> None:
        for index, (ids, settings) in enumerate(requests):
            self._prompts[self._engine.add(ids, settings, rule)] = index

    def read(self) -> list[PromptEvent]:
        with self._lock.hold():
            if self._release is None:  # another thread has closed it
                return []
            events = self._engine.step()
        return raise_error([PromptEvent(self._prompts[event.request], event) for event in events])

    def stop(self) -> list[PromptEvent]:
        for number in self._prompts:
            self._engine.cancel(number)
        return self.read() if self._engine.busy else []

    def close(self) -> None:
        """Take no lock: garbage collection may close a stream in a thread that holds it."""
        release, self._release = self._release, None
        if release is not None:
            release(self._engine)


def raise_error(events: list[PromptEvent]) -> list[PromptEvent]:
    """Raise the error of the first event that has one; return the events if none has."""
    for _, event in events:
        if event.error is not None:
            raise event.error
    return events
