"""One text, as it is generated: an iterator of its pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from glassgpt.generate.engine.handle import PromptEvent, RequestHandle
from glassgpt.generate.engine.pool import EnginePool
from glassgpt.generate.generation import Event, Generation
from glassgpt.generate.sampling.params import SamplingParams


class TextStream(Iterator[str]):
    """Pieces of text as they come. Closing it, or dropping it, ends the generation."""

    def __init__(
        self, engines: EnginePool, ids: list[int], settings: SamplingParams, prompt: str | list[int] = ""
    ) -> None:
        self._source: RequestHandle | None = None  # until the text is finished
        self._lock = engines.lock
        self._prompt = prompt  # as it was given
        self._events: deque[Event] = deque()
        self.notes: list[str] = []
        self.generation: Generation | None = None
        self._source = engines.open([ids], settings)

    def __next__(self) -> str:
        text: str | None = ""
        while text == "":
            text = self._read()
        if text is None:
            raise StopIteration
        return text

    def _read(self) -> str | None:
        """The text of the next event; None after the last."""
        source = self._source
        if source is None:
            return None
        try:
            if not self._events:
                self._events.extend(event for _, event in source.read())
            try:
                event = self._events.popleft()
            except IndexError:  # a device is a step ahead, or another thread has closed the stream
                return ""
            if event.note is not None:
                self.notes.append(event.note)
            if event.generation is not None:
                self._finish(event.generation)
            return event.text
        except KeyboardInterrupt:
            self._finish_early(source.stop())
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
        source, self._source = self._source, None
        self._events.clear()
        if source is not None:
            source.close()

    def close(self) -> None:
        with self._lock.hold():  # another thread may be reading
            self._end()

    def __del__(self) -> None:
        self._end()  # without waiting: nobody else has it, and this thread may be in a step of another stream
