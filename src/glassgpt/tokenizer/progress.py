"""The trainer's progress bar, on stderr, only when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    """Shows how far reading and merging are; costs nothing when hidden."""

    def __init__(self, show: bool | None = None) -> None:
        self._bar: RichProgress | None = None
        self._merging: TaskID | None = None
        if sys.stderr.isatty() if show is None else show:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def reading(self, batches: Iterable[list[str]], total: int | None) -> Iterator[list[str]]:
        """Pass the texts on and show how many megabytes went by."""
        if self._bar is None:
            yield from batches
            return
        task = self._bar.add_task("counting words", total=total)
        done = 0
        for batch in batches:
            yield batch
            done += sum(map(len, batch))
            self._bar.update(task, completed=done, description=f"counting words: {done / 1e6:.0f} MB")
        self._bar.update(task, completed=done, total=done)

    def merged(self, done: int, total: int) -> None:
        """Say how many merges are learned."""
        if self._bar is None or (done % 50 and done != total):
            return
        if self._merging is None:
            self._merging = self._bar.add_task("learning merges", total=total)
        self._bar.update(self._merging, completed=done, description=f"learning merges: {done:,} of {total:,}")
