"""One service around the one engine: a thread owns it, and everybody else hands in jobs and gets updates.

    service = Service(engine)
    job = Job(ids, settings, deliver=updates.put)      # any callable that takes a list of updates
    service.submit([job])

Between two steps of the engine the thread drops what was cancelled and takes jobs from a fair queue, as rows
become free. What a job gets does not depend on the others.

The queue is bounded by how long a job would wait (`QueueLimits.max_wait`), and by how much waits. What does
not fit is refused at once.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from glassgpt.errors import QueueFullError, UserError
from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.generation import Event
from glassgpt.generate.sampling.constraints import Constraint
from glassgpt.generate.sampling.logits_processors import MakeRule
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.admission import Ahead, WaitEstimator
from glassgpt.generate.service.fair_queue import FairQueue, QueueLimits

log = logging.getLogger("glassgpt.service")


class Update(NamedTuple):
    """News of a job: an event of the engine, or why the job failed."""

    job: Job
    event: Event | None = None
    error: Exception | None = None  # a UserError, or a bug


@dataclass(eq=False)
class Job:
    """One prompt and what to do with it: `settings.candidates` texts after it, or only its scores."""

    prompt: Sequence[int]
    settings: SamplingParams
    deliver: Callable[[list[Update]], None]  # called by the service's thread: it must not block
    client: str = ""  # clients take turns
    cache_scope: str = ""  # as the engine's
    submitted: float = 0.0  # on time.monotonic's clock
    started: float | None = None  # when it got its first row
    admitted: int = 0  # samples that the engine has got
    cancelled: bool = False
    constraint: Constraint | None = None  # what the settings ask for, compiled
    rule: MakeRule | None = None  # as the engine's

    @property
    def tokens(self) -> int:
        """What it may take, for the bound of the queue."""
        return len(self.prompt) + self.samples * self.settings.max_new_tokens

    @property
    def samples(self) -> int:
        return self.settings.candidates


class Service:
    """`lock` is held during each step, where others compute with the same model."""

    def __init__(
        self, engine: Engine, limits: QueueLimits | None = None, lock: FairLock | None = None
    ) -> None:
        self.engine = engine
        self.lock = lock
        self.steps = 0
        self.speed = WaitEstimator()
        self._queue: FairQueue[Job] = FairQueue(limits)
        self._left: list[int] = []  # tokens that the running sequences may still draw
        self._unread = 0  # tokens of prompts that have a row
        self._changed = threading.Condition()  # guards the queue and the two fields below
        self._cancelled: list[Job] = []
        self._closed = False
        self._requests: dict[int, tuple[Job, int]] = {}  # the engine's number -> job, samples still running
        self._running = 0
        self._updates: dict[Callable[[list[Update]], None], list[Update]] = {}
        self._process = os.getpid()  # a fork has no threads but its own
        self._thread = threading.Thread(target=self._run, name="glassgpt-service", daemon=True)
        self._thread.start()

    @property
    def _is_own(self) -> bool:
        return os.getpid() == self._process

    @property
    def rows(self) -> int:
        return self.engine.backend.rows

    @property
    def running(self) -> int:
        """Sequences that have a row."""
        return self._running

    @property
    def waiting(self) -> int:
        """Jobs that wait for a row."""
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        return self._queue.tokens

    @property
    def idle(self) -> bool:
        return not (self._running or len(self._queue))

    def compile(self, jobs: Sequence[Job]) -> None:
        """Compile the grammars of jobs, here and not in the thread that everybody waits for.

        Raises what is wrong with them. `submit` does it, where it was not done before.
        """
        for job in jobs:
            if job.constraint is None:
                job.constraint = self.engine.compile(job.settings)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs, or raise `QueueFullError`. What the engine refuses, an update tells."""
        if not self._is_own:  # before any lock: a thread that is not here may hold it
            raise UserError("the service runs in the process that forked this one. Start one here.")
        self.compile(jobs)
        with self._changed:
            if self._closed:
                raise UserError("the service is closed.")
            self._check_wait(jobs[0].client)
            now = time.monotonic()
            for job in jobs:
                job.submitted = now
            self._queue.push(jobs, room=max(0, self.rows - self._running))
            self._changed.notify()

    def check_wait(self, client: str = "") -> None:
        """Raise `QueueFullError` if a client's next job, whatever it is, would wait too long."""
        with self._changed:
            self._check_wait(client)

    def expected_wait(self, client: str = "") -> float:
        """Seconds until a client's next job would be read."""
        with self._changed:
            return self._expected_wait(client)

    def _check_wait(self, client: str) -> None:
        wait, most = self._expected_wait(client), self._queue.limits.max_wait
        if wait > most:
            raise QueueFullError(
                f"the first token would take about {wait:.1f} seconds; at most {most:g} are allowed. "
                "Try again later.",
                retry_after=max(1, math.ceil(wait - most)),
            )

    def _expected_wait(self, client: str) -> float:
        jobs = list(self._queue.ahead(client))
        ahead = Ahead(
            samples=sum(job.samples - job.admitted for job in jobs),
            tokens=sum((job.samples - job.admitted) * job.settings.max_new_tokens for job in jobs),
            prompt_tokens=sum(len(job.prompt) for job in jobs if not job.admitted),
        )
        return self.speed.wait(self._left, self.rows - len(self._left), self._unread, ahead)

    def cancel(self, jobs: Sequence[Job], keep: bool = False) -> None:
        """End jobs. Their rows are free before the next step.

        Nothing is delivered for them any more; to `keep` them, their texts so far are.
        """
        with self._changed:
            for job in jobs:
                job.cancelled = not keep
            self._cancelled += jobs
            self._changed.notify()

    def close(self, timeout: float | None = 30) -> None:
        """End the thread. Jobs that are not finished fail."""
        if not self._is_own:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._drop_cancelled()
                self._admit()
                if self.engine.busy:
                    self._step()
            except Exception as error:  # a bug, or a device that is out of memory: fail what runs, go on
                log.error("the engine failed", exc_info=error)
                self._fail_running(error)
            self._deliver()
        closed = UserError("the server was stopped.")
        self._fail_running(closed)
        with self._changed:
            for job in list(self._queue):
                self._queue.remove(job)
                self._tell(job, error=closed)
        self._deliver()

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._closed or self._cancelled or len(self._queue) or self.engine.busy):
                self._changed.wait()
            return not self._closed

    def _drop_cancelled(self) -> None:
        with self._changed:
            cancelled, self._cancelled = self._cancelled, []
            for job in cancelled:
                self._queue.remove(job)
        for job in cancelled:
            if not job.cancelled and job.admitted < job.samples:  # what has not begun ends without text
                self._start(job, job.samples - job.admitted)
            for number in [n for n, (owner, _) in self._requests.items() if owner is job]:
                self.engine.cancel(number)

    def _admit(self) -> None:
        """Fill the free rows, one client's turn after the other."""
        with self._changed:
            while self._running < self.rows and (job := self._queue.peek()) is not None:
                # A quarter at most for one job in one turn: a hundred samples do not take all rows at once.
                room = min(self.rows - self._running, max(1, self.rows // 4))
                self._start(job, min(room, job.samples - job.admitted))
                self._queue.end_turn(remove=job.admitted == job.samples)
            self._note_load()

    def _start(self, job: Job, count: int) -> None:
        settings = dataclasses.replace(job.settings, samples=count, best_of=None)
        if job.started is None:
            job.started = time.monotonic()
        else:
            settings = dataclasses.replace(settings, prompt_logprobs=None)  # the first samples had them
        try:
            number = self.engine.add(
                job.prompt,
                settings,
                job.rule,
                first_sample=job.admitted,
                constraint=job.constraint,
                cache_scope=job.cache_scope,
            )
        except UserError as error:
            job.admitted = job.samples
            self._tell(job, error=error)
            return
        job.admitted += count
        self._requests[number] = (job, count)
        self._running += count

    def _step(self) -> None:
        begun, read = time.perf_counter(), self.engine.stats.read_tokens
        with nullcontext() if self.lock is None else self.lock.hold():
            events = self.engine.step()
            self._note_load()
        self.steps += 1
        self._measure(time.perf_counter() - begun, self.engine.stats.read_tokens - read)
        for event in events:
            job, left = self._requests[event.request]
            if event.generation is not None:
                self._running -= 1
                self.speed.note_finished(len(event.generation.tokens), job.settings.max_new_tokens)
                if left == 1:
                    del self._requests[event.request]
                else:
                    self._requests[event.request] = (job, left - 1)
            self._tell(job, event)

    def _measure(self, seconds: float, read: int) -> None:
        if read:
            self.speed.note_reading(seconds, read)
        else:
            self.speed.note_decode(seconds)

    def _note_load(self) -> None:
        """Keep what the expected wait is made of, for other threads."""
        self._left, self._unread = self.engine.tokens_left, self.engine.unread_tokens

    def _fail_running(self, error: Exception) -> None:
        self.engine.clear()
        jobs = {job for job, _ in self._requests.values()}
        self._requests.clear()
        self._running, self._left, self._unread = 0, [], 0
        with self._changed:
            for job in jobs:
                self._queue.remove(job)  # where some of its samples still wait
                self._tell(job, error=error)

    def _tell(self, job: Job, event: Event | None = None, error: Exception | None = None) -> None:
        if not job.cancelled:
            self._updates.setdefault(job.deliver, []).append(Update(job, event, error))

    def _deliver(self) -> None:
        """Hand over a step's updates, all that go to one place together: it is woken once a step."""
        updates, self._updates = self._updates, {}
        for deliver, news in updates.items():
            deliver(news)
