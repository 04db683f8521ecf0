"""One text, as it is generated: an iterator of its pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from glassgpt.generate.engine import Engine
from glassgpt.generate.engine_pool import EnginePool
from glassgpt.generate.generation import Event, Generation
from glassgpt.generate.settings import Settings


class TextStream(Iterator[str]):
    """Pieces of text as they come. Closing it, or dropping it, ends the generation."""

    def __init__(
        self, engines: EnginePool, ids: list[int], settings: Settings, prompt: str | list[int] = ""
    ) -> None:
        self._engines = engines
        self._prompt = prompt  # as it was given
        self._engine: Engine | None = None  # until the text is finished
        self._events: deque[Event] = deque()
        self.notes: list[str] = []
        self.generation: Generation | None = None
        self._engine = engines.acquire(1)
        try:
            self._number = self._engine.add(ids, settings)
        except BaseException:
            self._end()
            raise

    def __next__(self) -> str:
        text: str | None = ""
        while text == "":
            with self._engines.lock.hold():
                text = self._read()
        if text is None:
            raise StopIteration
        return text

    def _read(self) -> str | None:
        """The text of the next event; None after the last."""
        engine = self._engine
        if engine is None:
            return None
        try:
            if not self._events:
                self._events.extend(engine.step())
            if not self._events:  # a device is a step ahead
                return ""
            event = self._events.popleft()
            if event.error is not None:
                raise event.error
            if event.note is not None:
                self.notes.append(event.note)
            if event.generation is not None:
                self._finish(event.generation)
            return event.text
        except KeyboardInterrupt:
            engine.cancel(self._number)
            for event in (*self._events, *engine.step()):
                if event.generation is not None:
                    self._finish(event.generation)
            raise
        except BaseException:
            self._end()
            raise

    def _finish(self, generation: Generation) -> None:
        generation.prompt = self._prompt
        generation.samples = [generation]
        self.generation = generation
        self._end()

    def _end(self) -> None:
        engine, self._engine = self._engine, None
        self._events.clear()
        if engine is not None:
            self._engines.release(engine)

    def close(self) -> None:
        with self._engines.lock.hold():  # another thread may be reading
            self._end()

    def __del__(self) -> None:
        self._end()  # without waiting: nobody else has it, and this thread may be in a step of another stream
