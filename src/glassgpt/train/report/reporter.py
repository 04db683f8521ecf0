"""What a run reports while it goes. The command line shows it; a call from Python is silent by default."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from glassgpt.progress import Advance, no_progress

if TYPE_CHECKING:
    from glassgpt.train.estimate import Estimate
    from glassgpt.train.trainer import Trainer


class Reporter:
    """Override what should be seen. Only the main process of a distributed run reports."""

    def progress(
        self, description: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]:
        """While data is checked: a `glassgpt.progress.Progress`."""
        return no_progress(description, total, unit=unit)

    def estimating(self) -> AbstractContextManager[object]:
        """While a few passes are tried."""
        return nullcontext()

    def show_estimate(self, estimate: Estimate | None, trainer: Trainer) -> None:
        """Before the first step. A distributed run has no estimate."""

    def training(self, steps: int) -> AbstractContextManager[object]:
        """While the loop runs."""
        return nullcontext()

    def log(self, record: Mapping[str, Any]) -> None:
        """After each step; a record with `val_loss` is an evaluation."""

    def show_sample(self, text: str) -> None:
        """After an evaluation: what the model generates now."""

    def info(self, message: str) -> None: ...

    def warn(self, message: str) -> None:
        warnings.warn(message, stacklevel=2)
