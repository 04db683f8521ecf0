"""The one progress bar, and the spinner for work of unknown length."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from glassgpt.cli.terminal import BAR_WIDTH, console, is_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as ProgressBar
    from rich.progress import ProgressColumn

    from glassgpt.progress import Advance

SPINNER_DELAY = 0.3  # seconds: shorter work needs no spinner and should not wait for one to be drawn


@contextmanager
def progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Advance]:
    """Show the progress bar (`glassgpt.progress`): on stderr, on a terminal only, gone when done."""
    if not is_terminal(sys.stderr):
        yield lambda n: None
        return
    from rich.progress import DownloadColumn, TextColumn

    bar = make_progress_bar(DownloadColumn() if unit == "bytes" else TextColumn("{task.percentage:>3.0f}%"))
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda n: bar.advance(task, n)


def make_progress_bar(
    done: ProgressColumn, below: Callable[[], Iterable[RenderableType]] = tuple
) -> ProgressBar:
    """The one progress bar, with `done` after the bar itself and lines below it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    class WithLines(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            yield from below()

    return WithLines(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_WIDTH),
        done,
        TimeRemainingColumn(compact=True),
        console=console(sys.stderr),
        transient=True,
    )


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """The spinner, for work of unknown length: on stderr, on a terminal only, removed when done."""
    if not is_terminal(sys.stderr):
        yield
        return
    stack, lock, done = ExitStack(), threading.Lock(), False

    def start() -> None:
        status = console(sys.stderr).status(description, spinner_style="accent")
        with lock:
            if not done:
                stack.enter_context(status)

    timer = threading.Timer(SPINNER_DELAY, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            done = True
        stack.close()
