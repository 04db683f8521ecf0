"""What is drawn on a terminal: color, tables and bars (progress_bar.py has the progress bar and the spinner).

Results go to stdout, everything else to stderr. Color and cursor movement are for terminals only (and color
not with NO_COLOR); what goes to a pipe or a file is plain, aligned and never truncated.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from glassgpt.cli.wrap import NoWrap, WordWrap

PIPE_WIDTH = 1000  # nothing is wrapped or truncated in a pipe
MIN_WIDTH = 20  # COLUMNS may be 1 or 0
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

ANSI = {"title": (1, 22), "quiet": (2, 22), "accent": (36, 39)}  # the codes that begin and end a style

# Black on pastel is legible on dark and light terminals. Adjacent tokens get different colors.
TOKEN_STYLES = tuple(f"black on color({n})" for n in (153, 223, 151, 183, 229))


def console(stream: TextIO | None = None) -> Console:
    """A new console on `stream` (default stdout): tests and pipes replace the stream."""
    from rich.console import Console
    from rich.theme import Theme

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this inside its except block; `main` handles the closed pipe

    stream = sys.stdout if stream is None else stream
    target = PipedConsole(
        file=stream,
        theme=Theme(STYLES),
        highlight=False,
        markup=False,
        emoji=False,
        width=None if is_terminal(stream) else PIPE_WIDTH,
    )
    target.width = min(PIPE_WIDTH, max(MIN_WIDTH, target.width))
    return target


def is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def supports_unicode(stream: TextIO) -> bool:
    """Whether the stream can encode block characters and arrows."""
    try:
        "█▏→·…×".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show(*items: RenderableType, stream: TextIO | None = None) -> None:
    """Print tables and text, without the trailing spaces that rich adds."""
    stream = sys.stdout if stream is None else stream
    target = console(stream)
    with ignore_write_errors() if stream is sys.stderr else nullcontext():
        with target.capture() as captured:
            for item in items:
                target.print(item)
        lines = (line.rstrip(" ") for line in captured.get().split("\n"))
        stream.write("\n".join(lines))


def note(message: str) -> None:
    """Print a line to stderr: the seed, the speed, a warning."""
    with ignore_write_errors():
        if is_terminal(sys.stderr):
            console(sys.stderr).print(message, style="quiet")
        else:
            print(message, file=sys.stderr)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print our own warnings as notes, without the source line they come from."""

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
            original(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        original, warnings.showwarning = warnings.showwarning, show
        yield


def supports_color(stream: TextIO) -> bool:
    """Whether to use color: on a terminal that shows it, unless the user disabled it (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str) -> str:
    """Text for stdout in one of STYLES, without rich: for text that it must not reflow, or not wait for."""
    on, off = ANSI[style]
    return f"\x1b[{on}m{text}\x1b[{off}m" if supports_color(sys.stdout) else text


def bold(text: str) -> str:
    """The prompt, to tell it from the model's text."""
    return styled(sanitize(text), "title")


def dim(text: str) -> str:
    return styled(text, "quiet")


def make_wrapper() -> WordWrap | NoWrap:
    """Wraps streamed text between words on a terminal; leaves it alone in a pipe."""
    from glassgpt.cli.wrap import NoWrap, WordWrap

    if not is_terminal(sys.stdout):
        return NoWrap()
    return WordWrap(min(PIPE_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns)))


def write_pieces(pieces: Iterable[str]) -> None:
    """Write a text to stdout as it comes, wrapped, and end its line."""
    wrapper = make_wrapper()
    for piece in pieces:
        sys.stdout.write(wrapper.push(sanitize(piece)))
        sys.stdout.flush()
    sys.stdout.write(wrapper.flush() + "\n")
    sys.stdout.flush()


def sanitize(text: str, stream: TextIO | None = None) -> str:
    """Make control characters visible on a terminal instead of sending them: a model may write any byte."""
    if not is_terminal(sys.stdout if stream is None else stream) or text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else f"<{ord(char):02x}>" for char in text)


def table(*columns: str) -> Table:
    """A table without lines. A column whose heading starts with '>' is right-aligned."""
    from rich.table import Table

    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="head", pad_edge=False, show_edge=False)
    for name in columns:
        right = name.startswith(">")
        grid.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    return grid


def write_plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """What `show(table(...))` writes to a pipe, without importing rich's tables, which takes 20 ms."""
    from rich.cells import cell_len

    lines = [[name.removeprefix(">") for name in columns], *rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = []
        for name, cell, width in zip(columns, line, widths, strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if name.startswith(">") else cell + space)
        sys.stdout.write("  ".join(cells).rstrip(" ") + "\n")


def bar(fraction: float, width: int = BAR_WIDTH, stream: TextIO | None = None, style: str = "bar") -> Text:
    """A bar that fills `fraction` (0 to 1) of `width` characters, to an eighth of a character."""
    from rich.text import Text

    return Text(plain_bar(fraction, width, stream), style=style)


def plain_bar(fraction: float, width: int = BAR_WIDTH, stream: TextIO | None = None) -> str:
    stream = sys.stdout if stream is None else stream
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    if supports_unicode(stream):
        return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
    return "#" * ((eighths + 4) // 8)


def times_sign() -> str:
    """The sign between the dimensions of a shape."""
    return "×" if supports_unicode(sys.stdout) else "x"


def size(n_bytes: float) -> str:
    """A number of bytes for people to read: 474.7 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


def prepare_streams() -> None:
    """Make stdout and stderr accept any text.

    A stream that is not UTF-8 gets `\\u2014` for a letter it cannot encode. A stream that was closed before
    we started (`>&-`) is None in Python; what is written there is discarded.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def ignore_write_errors() -> Iterator[None]:
    """For writing to stderr: a closed pipe or a full disk there must not spoil the result."""
    try:
        yield
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(sys.stderr)


def flush_streams(interrupted: bool = False) -> None:
    """Flush both streams, so that Python has no error to report at exit.

    After Ctrl-C, the shell's prompt starts on a new line.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        discard(sys.stdout)
    with ignore_write_errors():
        sys.stderr.write("\n" if interrupted else "")


def discard(stream: TextIO) -> None:
    """After a closed pipe or a full disk: send what is still buffered to the null device."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
