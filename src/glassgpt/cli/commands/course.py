"""`glassgpt course [LESSON]`: the lessons, as notebooks in the reader's folder."""

from __future__ import annotations

import subprocess
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from glassgpt.cli import terminal
from glassgpt.cli.parser.options import Flag, Positional


def command(
    lesson: Annotated[
        Positional[int | None], Flag("the number of a lesson", "[LESSON]", default="list them")
    ] = None,
    *,
    to: Annotated[Path, Flag("the folder for your copy of the lesson", "DIR")] = Path("glassgpt-course"),
    no_open: Annotated[bool, Flag("copy the notebook without opening it")] = False,
) -> int:
    """List the lessons of the course, or copy one and open it in Jupyter; without Jupyter, in the browser. If
    you have a copy already, it stays as it is."""
    from glassgpt.course.lessons import copy_lesson, find_lesson, lessons

    if lesson is None:
        for each in lessons():
            print(f"{each.number:>2}  {each.title}")
        terminal.note("to begin: glassgpt course 1")
        return 0
    copy, new = copy_lesson(find_lesson(lesson), to)
    print(copy)
    terminal.note("your copy of the lesson" if new else "you had it already: it stays as it is")
    if no_open:
        return 0
    if find_spec("jupyterlab") is not None:
        terminal.note("Jupyter opens it in the browser; stop it with Ctrl-C")
        return subprocess.run([sys.executable, "-m", "jupyterlab", str(copy)], check=False).returncode
    return open_page(copy)


def open_page(notebook: Path) -> int:
    from glassgpt.course.page import page
    from glassgpt.files import write_text_files

    target = notebook.with_suffix(".html")
    write_text_files(target.parent, {target.name: page(notebook)})
    print(target)
    terminal.note("Jupyter runs the lesson's cells: pip install jupyterlab. Until then, this page shows them")
    webbrowser.open(target.resolve().as_uri())
    return 0
