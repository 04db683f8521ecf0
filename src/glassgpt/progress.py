"""How library code reports the progress of long work.

A `Progress` opens one task and yields a function that advances it. Library functions take one as an argument
and are silent by default; the command line passes its progress bar (`glassgpt.cli.progress_bar`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from glassgpt.errors import UserError

Advance = Callable[[int], None]  # called with the number of units done since the last call


class Progress(Protocol):
    """Opens a task. `total` is None where it is not known; `unit` "bytes" is displayed as such."""

    def __call__(
        self, description: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]: ...


@contextmanager
def notebook_progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Advance]:
    """A progress bar that is a widget in a notebook (with ipywidgets); it goes when the work is done.

    `glassgpt.load("gpt2", progress=notebook_progress)`, and wherever else a function takes `progress`.
    """
    try:
        import ipywidgets  # type: ignore[import-not-found, unused-ignore]
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        raise UserError(
            "notebook_progress needs ipywidgets. Install it with: pip install ipywidgets"
        ) from None
    bar = ipywidgets.IntProgress(
        value=0, min=0, max=1 if total is None else max(1, total), bar_style="" if total else "info"
    )
    label = ipywidgets.Label(description)
    box = ipywidgets.HBox([bar, label])
    display(box)  # type: ignore[no-untyped-call, unused-ignore]
    done, shown = 0, -1

    def advance(n: int) -> None:
        nonlocal done, shown
        done += n
        percent = done if total is None else 100 * done // max(1, total)
        if percent == shown:  # a message to the page for each percent, not for each unit
            return
        shown = percent
        if total is not None:
            bar.value = min(done, total)
        count = f"{done / 1e6:,.1f} MB" if unit == "bytes" else f"{done:,}"
        label.value = f"{description}: {count}" if total is None else f"{description}: {min(percent, 100)}%"

    try:
        yield advance
    finally:
        box.close()


def no_progress(
    description: str, total: int | None = None, *, unit: str = ""
) -> AbstractContextManager[Advance]:
    """Displays nothing."""
    return nullcontext(lambda n: None)
