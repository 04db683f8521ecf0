"""How library code reports the progress of long work.

A `Progress` opens one task and yields a function that advances it. Library functions take one as an argument
and are silent by default; the command line passes its progress bar (`glassgpt.cli.progress_bar`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Advance = Callable[[int], None]  # called with the number of units done since the last call


class Progress(Protocol):
    """Opens a task. `total` is None where it is not known; `unit` "bytes" is displayed as such."""

    def __call__(
        self, description: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]: ...


def no_progress(
    description: str, total: int | None = None, *, unit: str = ""
) -> AbstractContextManager[Advance]:
    """Displays nothing."""
    return nullcontext(lambda n: None)
