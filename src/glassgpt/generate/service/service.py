"""A service: one thread owns an engine, and all other threads submit jobs and receive updates.

    service = Service(engine)
    job = Job(ids, settings, deliver=updates.put)      # any callable that takes a list of updates
    service.submit([job])

Between two steps of the engine the thread drops cancelled jobs and takes jobs from a fair queue as rows
become free. A job's texts do not depend on the other jobs.

`QueueLimits` bound the number of waiting requests and tokens and the expected wait. A job that exceeds them
is refused immediately.
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

from glassgpt.errors import QueueFullError, ServiceStoppedError, UserError
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
    """A message about a job: an event of the engine, or the error that ended the job."""

    job: Job
    event: Event | None = None
    error: Exception | None = None  # a UserError, or a bug


@dataclass(eq=False)
class Job:
    """One prompt, for `settings.candidates` texts after it, or only for its scores."""

    prompt: Sequence[int]
    settings: SamplingParams
    deliver: Callable[[list[Update]], None]  # called by the service's thread: it must not block
    client: str = ""  # clients take turns in the queue
    cache_scope: str = ""  # see `Engine.add`
    submitted: float = 0.0  # on time.monotonic's clock
    started: float | None = None  # when it got its first row
    admitted: int = 0  # samples handed to the engine
    cancelled: bool = False
    constraint: Constraint | None = None  # compiled from the settings
    rule: MakeRule | None = None  # see `Engine.add`
    row_setup: object = None  # see `Engine.add`
    adapter: int = 0  # see `Engine.add`

    @property
    def tokens(self) -> int:
        """The most tokens it may need, for the limits of the queue."""
        return len(self.prompt) + self.samples * self.settings.max_new_tokens

    @property
    def samples(self) -> int:
        return self.settings.candidates


class Service:
    """`lock` is held during each step, for others who compute with the same model."""

    def __init__(
        self, engine: Engine, limits: QueueLimits | None = None, lock: FairLock | None = None
    ) -> None:
        self.engine = engine
        self.lock = lock
        self.steps = 0
        self.speed = WaitEstimator()
        self._queue: FairQueue[Job] = FairQueue(limits)
        self._tokens_left: list[int] = []  # that each running sequence may still draw
        self._unread = 0  # unread prompt tokens
        self._changed = threading.Condition()  # guards the queue and the two fields below
        self._cancelled: list[Job] = []
        self._closed = False
        self._requests: dict[int, tuple[Job, int]] = {}  # the engine's request number -> job, running samples
        self._running = 0
        self._updates: dict[Callable[[list[Update]], None], list[Update]] = {}
        self._process = os.getpid()  # a forked process does not have this thread
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
        """The number of sequences that have a row."""
        return self._running

    @property
    def waiting(self) -> int:
        """The number of jobs waiting for a row."""
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        return self._queue.tokens

    @property
    def idle(self) -> bool:
        return not (self._running or len(self._queue))

    def compile(self, jobs: Sequence[Job]) -> None:
        """Compile the grammars of jobs in the calling thread, not in the one that all jobs wait for.

        Raises an error for a bad grammar. `submit` calls this for jobs not compiled yet.
        """
        for job in jobs:
            if job.constraint is None:
                job.constraint = self.engine.compile(job.settings)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all jobs, or raise `QueueFullError`. Jobs that the engine rejects are reported as updates."""
        if not self._is_own:  # before any lock: a thread of the parent may hold it
            raise UserError("the service runs in the process that forked this one. Start one here.")
        self.compile(jobs)
        with self._changed:
            if self._closed:
                raise ServiceStoppedError("the service is closed.")
            self._check_wait(jobs[0].client)
            now = time.monotonic()
            for job in jobs:
                job.submitted = now
            self._queue.push(jobs, room=max(0, self.rows - self._running))
            self._changed.notify()

    def check_wait(self, client: str = "") -> None:
        """Raise `QueueFullError` if a client's next job would wait too long."""
        with self._changed:
            self._check_wait(client)

    def expected_wait(self, client: str = "") -> float:
        """Seconds until a client's next job would have been read."""
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
        return self.speed.wait(self._tokens_left, self.rows - len(self._tokens_left), self._unread, ahead)

    def cancel(self, jobs: Sequence[Job], keep: bool = False) -> None:
        """End jobs. Their rows are free before the next step.

        No more updates are delivered for them, unless `keep` asks for their texts so far.
        """
        with self._changed:
            for job in jobs:
                job.cancelled = not keep
            self._cancelled += jobs
            self._changed.notify()

    def close(self, timeout: float | None = 30) -> None:
        """End the thread. Unfinished jobs fail."""
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
            except Exception as error:  # a bug, or a device out of memory: fail the running jobs, continue
                log.error("the engine failed", exc_info=error)
                self._fail_running(error)
            self._deliver()
        closed = ServiceStoppedError("the server was stopped.")
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
            if not job.cancelled and job.admitted < job.samples:  # samples not started end without text
                self._start(job, job.samples - job.admitted)
            for number in [n for n, (owner, _) in self._requests.items() if owner is job]:
                self.engine.cancel(number)

    def _admit(self) -> None:
        """Fill the free rows; clients take turns."""
        with self._changed:
            while self._running < self.rows and (job := self._queue.peek()) is not None:
                # At most a quarter of the rows in one turn: a hundred samples must not occupy all at once.
                room = min(self.rows - self._running, max(1, self.rows // 4))
                self._start(job, min(room, job.samples - job.admitted))
                self._queue.end_turn(remove=job.admitted == job.samples)
            self._note_load()

    def _start(self, job: Job, count: int) -> None:
        settings = dataclasses.replace(job.settings, samples=count, best_of=None)
        if job.started is None:
            job.started = time.monotonic()
        else:
            settings = dataclasses.replace(settings, prompt_logprobs=None)  # reported with the first samples
        try:
            number = self.engine.add(
                job.prompt,
                settings,
                job.rule,
                first_sample=job.admitted,
                constraint=job.constraint,
                cache_scope=job.cache_scope,
                row_setup=job.row_setup,
                adapter=job.adapter,
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
            job, running = self._requests[event.request]
            if event.generation is not None:
                self._running -= 1
                self.speed.note_finished(len(event.generation.tokens), job.settings.max_new_tokens)
                if running == 1:
                    del self._requests[event.request]
                else:
                    self._requests[event.request] = (job, running - 1)
            self._tell(job, event)

    def _measure(self, seconds: float, read: int) -> None:
        if read:
            self.speed.note_reading(seconds, read)
        else:
            self.speed.note_decode(seconds)

    def _note_load(self) -> None:
        """Record the load of the engine, from which other threads estimate the wait."""
        self._tokens_left, self._unread = self.engine.tokens_left, self.engine.unread_tokens

    def _fail_running(self, error: Exception) -> None:
        self.engine.clear()
        jobs = {job for job, _ in self._requests.values()}
        self._requests.clear()
        self._running, self._tokens_left, self._unread = 0, [], 0
        with self._changed:
            for job in jobs:
                self._queue.remove(job)  # if some of its samples still wait
                self._tell(job, error=error)

    def _tell(self, job: Job, event: Event | None = None, error: Exception | None = None) -> None:
        if not job.cancelled:
            self._updates.setdefault(job.deliver, []).append(Update(job, event, error))

    def _deliver(self) -> None:
        """Deliver a step's updates, all for one receiver in one call."""
        updates, self._updates = self._updates, {}
        for deliver, news in updates.items():
            deliver(news)
