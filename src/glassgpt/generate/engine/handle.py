"""Where the events of some prompts come from: an engine of their own, or a service that others use as well.

An engine of its own is what suits a single caller: it starts at once, without a thread, and a text by itself
guesses ahead. With a service, the texts of several threads are computed in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.generation import Event
from glassgpt.generate.sampling.logits_processors import TokenRule
from glassgpt.generate.sampling.params import SamplingParams

Rule = Callable[[], TokenRule]  # makes one for each text


class PromptEvent(NamedTuple):
    """An event, and the number of the prompt that it belongs to."""

    prompt: int
    event: Event


class RequestHandle(Protocol):
    def read(self) -> list[PromptEvent]:
        """What there is next; it may be nothing. Raises the error of a text that cannot go on."""
        ...

    def stop(self) -> list[PromptEvent]:
        """End all texts; their last events, each with the text so far."""
        ...

    def close(self) -> None:
        """Give back what it holds. Texts that are not finished are dropped."""
        ...


class EngineHandle:
    """`release` is called once, when the engine is not needed any more."""

    def __init__(self, engine: Engine, lock: FairLock, release: Callable[[Engine], None]) -> None:
        self._engine = engine
        self._lock = lock
        self._release: Callable[[Engine], None] | None = release
        self._prompts: dict[int, int] = {}  # the engine's number -> that of the prompt

    def add(self, prompts: Sequence[Sequence[int]], settings: SamplingParams, rule: Rule | None) -> None:
        for number, ids in enumerate(prompts):
            self._prompts[self._engine.add(ids, settings, rule)] = number

    def read(self) -> list[PromptEvent]:
        with self._lock.hold():
            if self._release is None:  # another thread has closed it
                return []
            events = self._engine.step()
        return checked([PromptEvent(self._prompts[event.request], event) for event in events])

    def stop(self) -> list[PromptEvent]:
        for number in self._prompts:
            self._engine.cancel(number)
        return self.read() if self._engine.busy else []

    def close(self) -> None:
        """Takes no lock: a stream may be collected by a thread that has it."""
        release, self._release = self._release, None
        if release is not None:
            release(self._engine)


def checked(found: list[PromptEvent]) -> list[PromptEvent]:
    """The same, unless one is an error."""
    for _, event in found:
        if event.error is not None:
            raise event.error
    return found
