"""Asynchronous checkpoints: the state is copied, training continues, and a thread writes the copy.

There is one copy, so a save first waits for the previous one to be written. On a GPU training does
not even wait for the copy: it is queued between the steps and goes into pinned memory, which is reused by the
next save (pinning memory takes longer than copying into it).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor

from glassgpt.errors import UserError


class AsyncSaver:
    """One save at a time, in the background. An error there is raised by the next call of any method.

    Leaving its `with` block waits for the last save.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._gpu: torch.device | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def copy(self, name: str, value: Tensor) -> Tensor:
        """The current value, in memory that is not touched until the next `copy` of that name."""
        copy = self._copies.get(name)
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._copies[name] = copy
        if value.is_cuda:
            self._gpu = value.device
        return copy.copy_(value.detach(), non_blocking=value.is_cuda)

    def start(self, write: Callable[[], None]) -> None:
        """Run `write` in a thread, once the copies are complete."""
        self.wait()
        copied = None if self._gpu is None else torch.cuda.current_stream(self._gpu).record_event()

        def work() -> None:
            try:
                if copied is not None:
                    copied.synchronize()
                write()
            except BaseException as error:  # raised in the training loop by `check`
                self._error = error

        self._thread = threading.Thread(target=work, daemon=True, name="saving")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the background thread, if there was one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None and self._thread.is_alive():  # Ctrl-C may have come before its start
            self._thread.join()
        self._thread = None
        self.check()

    def __enter__(self) -> AsyncSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except UserError as failure:
            if kind is None:
                raise
            warnings.warn(str(failure), stacklevel=2)  # the error that ended the run comes first
