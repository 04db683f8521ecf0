"""A handle on prompts in a service, for a thread that waits for their events."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from glassgpt.generate.engine.handle import PromptEvent, raise_error
from glassgpt.generate.sampling.logits_processors import MakeRule
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.service import Job, Service, Update

PATIENCE_S = 0.2  # then Python checks for Ctrl-C, which on Windows does not wake a waiting thread


class ServiceHandle:
    """A `RequestHandle` whose texts are computed together with those of other callers."""

    def __init__(
        self,
        service: Service,
        requests: Sequence[tuple[Sequence[int], SamplingParams]],
        rule: MakeRule | None = None,
    ) -> None:
        self._service = service
        self._updates: queue.SimpleQueue[list[Update]] = queue.SimpleQueue()
        self._jobs = [Job(ids, settings, self._updates.put, rule=rule) for ids, settings in requests]
        self._numbers = {job: number for number, job in enumerate(self._jobs)}
        self._unfinished = sum(job.samples for job in self._jobs)
        service.submit(self._jobs)

    def read(self) -> list[PromptEvent]:
        return raise_error(self._next())

    def _next(self) -> list[PromptEvent]:
        try:
            updates = self._updates.get(timeout=PATIENCE_S)
        except queue.Empty:
            return []
        events = []
        for update in updates:
            if update.error is not None:
                raise update.error
            assert update.event is not None
            self._unfinished -= update.event.generation is not None
            events.append(PromptEvent(self._numbers[update.job], update.event))
        return events

    def stop(self) -> list[PromptEvent]:
        self._service.cancel(self._jobs, keep=True)
        events: list[PromptEvent] = []
        while self._unfinished:
            events += self._next()
        return events

    def close(self) -> None:
        if self._unfinished:
            self._service.cancel(self._jobs)
            self._unfinished = 0

    def __del__(self) -> None:
        if hasattr(self, "_unfinished"):
            self.close()
