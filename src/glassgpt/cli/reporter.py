"""Shows a training or tuning run on the terminal, and stops it after Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.dashboard import live_metrics, note_stopping
from glassgpt.progress import Advance
from glassgpt.train.interrupt import StopRequested, stop_on_signals
from glassgpt.train.report.reporter import Reporter


class TerminalReporter(Reporter):
    """`title` is what the run does: training or tuning. A command overrides `show_plan`."""

    title = "training"
    show: Callable[[Mapping[str, Any]], None]

    def progress(
        self, description: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]:
        return progress_bar.progress(description, total, unit=unit)

    def stage(self, description: str) -> AbstractContextManager[object]:
        return progress_bar.spinner(description)

    @contextmanager
    def training(self, steps: int) -> Iterator[None]:
        with live_metrics(self.title, steps) as self.show:
            yield

    def log(self, record: Mapping[str, Any]) -> None:
        self.show(record)

    def show_sample(self, text: str) -> None:
        terminal.note(f"    {terminal.sanitize(' '.join(text.split()), sys.stderr)}")

    def info(self, message: str) -> None:
        terminal.note(message)

    def warn(self, message: str) -> None:
        terminal.note(message)


def stop_and_say_so(alone: bool = True) -> AbstractContextManager[StopRequested]:
    """A `Stopping`: Ctrl-C and SIGTERM finish the step, and a note says so."""
    return stop_on_signals(on_request=note_stopping, alone=alone)
