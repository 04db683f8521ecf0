"""The one place for looks: colour, bars, tables and the progress bar.

stdout carries the result, stderr everything else. Colour and cursor tricks appear only on a terminal (and not
when NO_COLOR is set); what goes into a pipe or a file is plain, aligned and never cut off.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from glassgpt.cli.wrap import AsItComes, WordWrap
    from glassgpt.progress import Advance

PIPE_WIDTH = 1000  # a pipe has no edge: nothing is wrapped or cut there
LEAST_WIDTH = 20  # COLUMNS may say 1 or 0, where nothing can be shown
BAR_WIDTH = 24

STYLES = {
    "title": "bold",
    "head": "dim",
    "quiet": "dim",
    "accent": "cyan",
    "number": "cyan",
    "total": "bold cyan",
    "prompt": "bold",
    "good": "green",
    "bad": "bold red",
    "bar": "cyan",
    "pick": "bold yellow",
}

# Black on pastel reads on dark and on light terminals alike. Neighbouring tokens get different colours.
TOKEN_STYLES = tuple(f"black on color({n})" for n in (153, 223, 151, 183, 229))


def console(stream: TextIO | None = None) -> Console:
    """A console on `stream` (stdout unless told), made anew because tests and pipes swap the stream."""
    from rich.console import Console
    from rich.theme import Theme

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this inside its handler; `main` decides what a closed pipe means

    stream = sys.stdout if stream is None else stream
    made = PipedConsole(
        file=stream,
        theme=Theme(STYLES),
        highlight=False,
        markup=False,
        emoji=False,
        width=None if is_terminal(stream) else PIPE_WIDTH,
    )
    made.width = min(PIPE_WIDTH, max(LEAST_WIDTH, made.width))
    return made


def is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def speaks_unicode(stream: TextIO) -> bool:
    """Whether block characters and arrows survive on this stream."""
    try:
        "█▏→·…×".encode(
            getattr(stream, "encoding", None) or "ascii"
        )  # an unnamed encoding promises only ASCII
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show(*things: RenderableType, stream: TextIO | None = None) -> None:
    """Print tables and texts, without the padding that rich leaves at the end of lines."""
    stream = sys.stdout if stream is None else stream
    target = console(stream)
    with unimportant() if stream is sys.stderr else nullcontext():
        with target.capture() as captured:
            for thing in things:
                target.print(thing)
        lines = (line.rstrip(" ") for line in captured.get().split("\n"))
        stream.write("\n".join(lines))


def note(message: str) -> None:
    """One remark on stderr: the seed, the speed, a warning."""
    target = console(sys.stderr)
    with unimportant():
        target.print(message, style="quiet", soft_wrap=not is_terminal(sys.stderr))


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Our own warnings are remarks, without the line of code they come from."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if category is UserWarning:
            note(f"warning: {message}")
        else:
            before(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        before, warnings.showwarning = warnings.showwarning, show
        yield


def has_colour(stream: TextIO) -> bool:
    """Colour is for terminals that can show it, unless the user wants none (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def emphasised(text: str) -> str:
    """The prompt, which the user wrote, beside what the model writes. For text that rich must not reflow."""
    return f"\x1b[1m{harmless(text)}\x1b[22m" if has_colour(sys.stdout) else harmless(text)


def faint(text: str) -> str:
    return f"\x1b[2m{text}\x1b[22m" if has_colour(sys.stdout) else text


def lines() -> WordWrap | AsItComes:
    """How running text is set: a terminal gets lines that end between words, a pipe the text as it is."""
    from glassgpt.cli.wrap import AsItComes, WordWrap

    return WordWrap(console().width) if is_terminal(sys.stdout) else AsItComes()


def harmless(text: str, stream: TextIO | None = None) -> str:
    """On a terminal, control characters are shown, not obeyed: a model may write any byte."""
    if not is_terminal(sys.stdout if stream is None else stream) or text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else f"<{ord(char):02x}>" for char in text)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A turning wheel on stderr while something takes its time; on a terminal only."""
    if not is_terminal(sys.stderr):
        yield
        return
    with console(sys.stderr).status(what, spinner_style="accent"):
        yield


def table(*columns: str) -> Table:
    """A table without lines. A column whose head starts with '>' is set to the right."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="head", pad_edge=False, show_edge=False)
    for name in columns:
        right = name.startswith(">")
        made.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    return made


def bar(share: float, width: int = BAR_WIDTH, stream: TextIO | None = None, style: str = "bar") -> Text:
    """A bar of `share` (0 to 1) of `width` characters, drawn to an eighth of a character."""
    from rich.text import Text

    stream = sys.stdout if stream is None else stream
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if speaks_unicode(stream):
        drawn = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
    else:
        drawn = "#" * ((eighths + 4) // 8)
    return Text(drawn, style=style)


def times() -> str:
    """The sign between the sides of a matrix."""
    return "×" if speaks_unicode(sys.stdout) else "x"


def size(n_bytes: float) -> str:
    """Bytes for people: 474.7 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


@contextmanager
def progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Advance]:
    """The one progress bar (`glassgpt.progress`): on stderr, on a terminal only, gone when done."""
    if not is_terminal(sys.stderr):
        yield lambda n: None
        return
    from rich.progress import BarColumn, DownloadColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    done: ProgressColumn = DownloadColumn() if unit == "bytes" else TextColumn("{task.percentage:>3.0f}%")
    progress_bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_WIDTH),
        done,
        TimeRemainingColumn(compact=True),
        console=console(sys.stderr),
        transient=True,
    )
    with progress_bar:
        task = progress_bar.add_task(description, total=total)
        yield lambda n: progress_bar.advance(task, n)


def prepare_streams() -> None:
    """Streams that can be written to whatever they are.

    A terminal that is not UTF-8 shows `\\u2014` where it has no letter. A stream that was closed before we
    began (`>&-`) is None in Python; what is written there goes nowhere, as the user wished.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def unimportant() -> Iterator[None]:
    """What is written to stderr in here. A closed pipe or a full disk there spoils no result."""
    try:
        yield
        sys.stderr.flush()
    except (OSError, ValueError):
        drop(sys.stderr)


def settle_streams(interrupted: bool = False) -> None:
    """Flush what is left, so that Python's own exit has nothing to complain of.

    After Ctrl-C the shell's prompt gets its own line. What was written before stays.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        drop(sys.stdout)
    with unimportant():
        sys.stderr.write("\n" if interrupted else "")


def drop(stream: TextIO) -> None:
    """After a closed pipe or a full disk: send what is still buffered nowhere."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
