"""An iterator over the pieces of a text while it is generated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from glassgpt.generate.engine.handle import PromptEvent, RequestHandle
from glassgpt.generate.engine.pool import EnginePool
from glassgpt.generate.generation import Event, Generation
from glassgpt.generate.sampling.params import SamplingParams


class TextStream(Iterator[str]):
    """Yields pieces of text as they are generated. Closing or deleting it ends the generation."""

    def __init__(
        self, engines: EnginePool, ids: list[int], settings: SamplingParams, prompt: str | list[int] = ""
    ) -> None:
        self._handle: RequestHandle | None = None  # until the text is finished
        self._lock = engines.lock
        self._prompt = prompt  # as the caller gave it
        self._events: deque[Event] = deque()
        self.notes: list[str] = []
        self.generation: Generation | None = None
        self._handle = engines.open([ids], settings)

    def __next__(self) -> str:
        text: str | None = ""
        while text == "":
            text = self._read()
        if text is None:
            raise StopIteration
        return text

    def _read(self) -> str | None:
        """The text of the next event; None after the last."""
        handle = self._handle
        if handle is None:
            return None
        try:
            if not self._events:
                self._events.extend(event for _, event in handle.read())
            try:
                event = self._events.popleft()
            except IndexError:  # no token yet, or another thread has closed the stream
                return ""
            if event.note is not None:
                self.notes.append(event.note)
            if event.generation is not None:
                self._finish(event.generation)
            return event.text
        except KeyboardInterrupt:
            self._finish_early(handle.stop())
            raise
        except BaseException:
            self._end()
            raise

    def _finish_early(self, last: list[PromptEvent]) -> None:
        for event in (*self._events, *(event for _, event in last)):
            if event.generation is not None:
                self._finish(event.generation)

    def _finish(self, generation: Generation) -> None:
        generation.prompt = self._prompt
        generation.samples = [generation]
        self.generation = generation
        self._end()

    def _end(self) -> None:
        handle, self._handle = self._handle, None
        self._events.clear()
        if handle is not None:
            handle.close()

    def close(self) -> None:
        with self._lock.hold():  # another thread may be reading
            self._end()

    def __del__(self) -> None:
        self._end()  # no lock: no other thread has this stream, and this one may be in a step of another
