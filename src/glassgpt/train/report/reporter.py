"""Reports of a training or tuning run. The command line shows them; a Python call is silent by default."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from glassgpt.progress import Advance, no_progress


class Reporter:
    """Override the methods whose reports you want. Only the main process of a distributed run reports."""

    def progress(
        self, description: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]:
        """While data is checked: a `glassgpt.progress.Progress`."""
        return no_progress(description, total, unit=unit)

    def stage(self, description: str) -> AbstractContextManager[object]:
        """While a longer stage lasts, such as trying a few steps or reading the text."""
        return nullcontext()

    def show_plan(self, run: Any) -> None:
        """Once, before the first step: a `trainer.Trainer` or a `finetune.run.FinetuneRun`."""

    def training(self, steps: int) -> AbstractContextManager[object]:
        """While the loop runs."""
        return nullcontext()

    def log(self, record: Mapping[str, Any]) -> None:
        """After each step; a record with `val_loss` is an evaluation."""

    def show_sample(self, text: str) -> None:
        """After an evaluation: a text that the model generated."""

    def info(self, message: str) -> None: ...

    def warn(self, message: str) -> None:
        warnings.warn(message, stacklevel=2)
