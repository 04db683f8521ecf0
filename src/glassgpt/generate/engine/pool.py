"""The engines of a loaded model: one per call, reused where possible, and its service, if one was started."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
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

# The default batch sizes: how many sequences have a row of the cache; the others wait.
MAX_BATCH_SIZE = 64
CPU_SERVICE_BATCH_SIZE = 16
CACHE_BYTES = 4 * 2**30  # fewer, where the cache would take more than this
BEAM_BYTES = 4 * CACHE_BYTES  # beams cannot wait: each of a search needs a row


class EnginePool:
    """A thread holds `lock` while it computes: others would compete for the same cores."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer | None, *, prefix_cache: bool = True) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.prefix_cache = prefix_cache
        self.lock = FairLock()
        self.idle: dict[int, Engine] = {}  # by number of rows
        self._spare: Backend | None = backend  # the model's own backend, while no engine uses its cache
        self._draft: Backend | None = None
        self.service: Service | None = None
        self._close_service: Callable[[], object] = lambda: None

    def use_draft(self, draft: Backend) -> None:
        with self.lock.hold():
            self.idle.clear()
            self._spare = self.backend
            self._draft = draft

    def open(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingParams | Sequence[SamplingParams],
        rule: MakeRule | None = None,
    ) -> RequestHandle:
        """Start generating after some prompts: in the service if there is one, else in their own engine.

        `settings` are for all prompts, or a list with those of each.
        """
        each = [settings] * len(prompts) if isinstance(settings, SamplingParams) else settings
        requests = list(zip(prompts, each, strict=True))
        if self.service is not None:
            from glassgpt.generate.service.handle import ServiceHandle

            return ServiceHandle(self.service, requests, rule)
        sequences = sum(settings.candidates for _, settings in requests)
        engine = self._acquire(min(sequences, self.max_batch_size()))
        handle = EngineHandle(engine, self.lock, self.release)
        try:
            handle.add(requests, rule)
        except BaseException:
            handle.close()
            raise
        return handle

    def start_service(self, rows: int | None, limits: QueueLimits | None) -> Service:
        from glassgpt.generate.service.fair_queue import UNLIMITED
        from glassgpt.generate.service.service import Service

        check_can_continue(self.backend.config)
        if self.service is not None:
            raise UserError("this model has a service already. Use it, or stop it first.")
        if rows is None:
            device = getattr(getattr(self.backend, "device", None), "type", "cpu")
            rows = min(CPU_SERVICE_BATCH_SIZE if device == "cpu" else MAX_BATCH_SIZE, self.max_batch_size())
        check_whole("max_batch_size", rows, 1, 4096)
        engine = self._make_engine(self.backend.with_rows(rows))
        self.service = Service(engine, UNLIMITED if limits is None else limits, self.lock)
        # Also when Python exits: threads that still compute would crash it.
        self._close_service = weakref.finalize(self, self.service.close)
        return self.service

    def stop_service(self) -> None:
        self.service = None
        self._close_service()

    def acquire_all(self, beams: int) -> Engine:
        """An engine with a row for every beam."""
        most = max(1, BEAM_BYTES // self._row_bytes)
        check_whole("beams", beams, 1, most, "what memory allows here")
        return self._acquire(beams)

    def _acquire(self, sequences: int) -> Engine:
        """An engine for this many sequences, rounded up to a power of two.

        One for single texts and one of the size last used are kept. Larger ones are not reused for fewer
        sequences: a captured step computes every row of its cache, used or not.
        """
        check_can_continue(self.backend.config)
        rows = 1
        while rows < sequences:
            rows *= 2
        with self.lock.hold():  # allocating a cache occupies the device
            for other in [other for other in list(self.idle) if other not in (1, rows)]:
                self._drop(self.idle.pop(other))
            engine = self.idle.pop(rows, None)
            if engine is None:
                if self._spare is not None and self._spare.rows == rows:
                    backend, self._spare = self._spare, None
                else:
                    backend = self.backend.with_rows(rows)
                engine = self._make_engine(backend)
            return engine

    def _make_engine(self, backend: Backend) -> Engine:
        return Engine(backend, self.tokenizer, prefix_cache=self.prefix_cache, draft=self._draft)

    def release(self, engine: Engine) -> None:
        """Keep an engine for the next call of its size, unless one is kept already.

        Takes no lock: garbage collection may close a stream in a thread that holds it.
        """
        engine.clear()
        if self.idle.setdefault(engine.backend.rows, engine) is not engine:
            self._drop(engine)

    def _drop(self, engine: Engine) -> None:
        """Forget an engine. This frees its cache, unless it is that of the model's own backend."""
        if engine.backend is self.backend:
            self._spare = self.backend

    def max_batch_size(self) -> int:
        return max(1, min(MAX_BATCH_SIZE, CACHE_BYTES // self._row_bytes))

    @property
    def _row_bytes(self) -> int:
        """Bytes of one row of the cache, at most: as float32."""
        return self.backend.config.kv_bytes(self.backend.context)
