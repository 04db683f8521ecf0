"""The engines of one loaded model: each call has one of its own, and the last ones used are kept."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgpt.backends.protocol import Backend
from glassgpt.config import check_can_continue
from glassgpt.errors import UserError
from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.engine.handle import EngineHandle, RequestHandle
from glassgpt.generate.sampling.logits_processors import MakeRule
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.generate.service.fair_queue import QueueLimits
    from glassgpt.generate.service.service import Service
    from glassgpt.tokenizer import Tokenizer

# The cache has a row for each sequence of a call, but takes no more memory than this: the others wait.
CACHE_BYTES = 4 * 2**30
MAX_BATCH_SIZE = 64
SERVICE_ROWS = 16
BEAM_BYTES = 4 * CACHE_BYTES  # beams cannot wait: all of a search need a row


class EnginePool:
    """`lock` is held by whoever computes: other threads would compete for the same cores."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer | None) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.lock = FairLock()
        self.idle: dict[int, Engine] = {}  # by rows
        self._spare: Backend | None = backend  # while no engine has its cache
        self._draft: Backend | None = None
        self.service: Service | None = None

    def use_draft(self, draft: Backend) -> None:
        with self.lock.hold():
            self.idle.clear()
            self._spare = self.backend
            self._draft = draft

    def open(
        self, prompts: Sequence[Sequence[int]], settings: SamplingParams, rule: MakeRule | None = None
    ) -> RequestHandle:
        """Begin with some prompts: in the service where there is one, else in an engine for them alone."""
        if self.service is not None:
            from glassgpt.generate.service.handle import ServiceHandle

            return ServiceHandle(self.service, prompts, settings, rule)
        source = EngineHandle(self.acquire(len(prompts) * settings.candidates), self.lock, self.release)
        try:
            source.add(prompts, settings, rule)
        except BaseException:
            source.close()
            raise
        return source

    def acquire(self, sequences: int) -> Engine:
        """An engine for the caller alone until it is released; sequences beyond its rows wait."""
        return self._acquire(min(sequences, self.max_batch_size()))

    def start_service(self, rows: int | None, limits: QueueLimits | None) -> Service:
        from glassgpt.generate.service.fair_queue import UNLIMITED
        from glassgpt.generate.service.service import Service

        check_can_continue(self.backend.config)
        if self.service is not None:
            raise UserError("this model has a service already. Use it, or stop it first.")
        rows = min(SERVICE_ROWS, self.max_batch_size()) if rows is None else rows
        check_whole("max_batch_size", rows, 1, 4096)
        engine = Engine(self.backend.with_rows(rows), self.tokenizer, draft=self._draft)
        self.service = Service(engine, UNLIMITED if limits is None else limits, self.lock)
        # Also when Python ends: threads that compute would crash it.
        weakref.finalize(self, self.service.close)
        return self.service

    def stop_service(self) -> None:
        service, self.service = self.service, None
        if service is not None:
            service.close()

    def acquire_all(self, beams: int) -> Engine:
        """An engine in which that many sequences run at once."""
        most = max(1, BEAM_BYTES // self._bytes_per_row)
        check_whole("beams", beams, 1, most, "what memory allows here")
        return self._acquire(beams)

    def _acquire(self, sequences: int) -> Engine:
        """One for single texts and one of the size last asked for are kept: a captured step computes every
        row of its cache, in use or not."""
        check_can_continue(self.backend.config)
        rows = 1
        while rows < sequences:
            rows *= 2
        with self.lock.hold():  # allocating a cache is work for the device, too
            for other in [other for other in list(self.idle) if other not in (1, rows)]:
                self._drop(self.idle.pop(other))
            engine = self.idle.pop(rows, None)
            if engine is None:
                if self._spare is not None and self._spare.rows == rows:
                    backend, self._spare = self._spare, None
                else:
                    backend = self.backend.with_rows(rows)
                engine = Engine(backend, self.tokenizer, draft=self._draft)
            return engine

    def release(self, engine: Engine) -> None:
        """Keep an engine for the next call that needs its size, unless there is one already.

        Takes no lock: a stream may be collected by a thread that has it.
        """
        engine.clear()
        if self.idle.setdefault(engine.backend.rows, engine) is not engine:
            self._drop(engine)

    def _drop(self, engine: Engine) -> None:
        """Its cache is freed with it, unless it is the one that the model came with."""
        if engine.backend is self.backend:
            self._spare = self.backend

    def max_batch_size(self) -> int:
        return max(1, min(MAX_BATCH_SIZE, CACHE_BYTES // self._bytes_per_row))

    @property
    def _bytes_per_row(self) -> int:
        """Keys and values of one row of the cache, in float32."""
        config = self.backend.config
        return 2 * config.n_layer * self.backend.context * config.n_embd * 4
