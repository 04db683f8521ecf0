"""Where the lessons are, and copying one to the reader's folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import glassgpt
from glassgpt.errors import SettingError, UserError
from glassgpt.files import atomic_write, check_target, read_bytes

NAME = re.compile(r"(\d\d)-([a-z0-9-]+)\.ipynb")
LIMIT = 4 << 20  # bytes of a notebook: the largest has a tenth of it


@dataclass(frozen=True)
class Lesson:
    number: int
    path: Path
    title: str

    @property
    def name(self) -> str:
        return self.path.name


def folder() -> Path:
    """The notebooks: in the installed package, or in a checkout."""
    package = Path(glassgpt.__file__).resolve().parent
    for candidate in (package / "course" / "notebooks", package.parents[1] / "course"):
        if any(candidate.glob("*.ipynb")):
            return candidate
    raise UserError("the notebooks are not installed. Type: pip install --force-reinstall glassgpt")


def lessons() -> list[Lesson]:
    """All lessons in order."""
    found = []
    for path in sorted(folder().glob("*.ipynb")):
        match = NAME.fullmatch(path.name)
        if match is not None:
            found.append(Lesson(int(match[1]), path, title_of(path)))
    return found


def title_of(path: Path) -> str:
    """The first heading of a notebook, without its number."""
    cells = json.loads(read_bytes(path, LIMIT))["cells"]
    heading = "".join(cells[0]["source"]).splitlines()[0]
    return re.sub(r"^#\s*(\d+\.\s*)?", "", heading)


def find_lesson(number: int) -> Lesson:
    every = lessons()
    for lesson in every:
        if lesson.number == number:
            return lesson
    raise SettingError(f"there is no lesson {number}. Lessons are 1 to {every[-1].number}: glassgpt course")


def copy_lesson(lesson: Lesson, to: Path) -> tuple[Path, bool]:
    """Copy a notebook into a folder. A copy that is there already has the reader's work in it, and stays.
    Returns its path, and whether it is new."""
    if to.exists() and not to.is_dir():
        raise SettingError(f"{to} is a file. Name a folder for the lessons.")
    target = to / lesson.name
    if target.exists() or target.is_symlink():
        return target, False
    check_target(target)
    data = read_bytes(lesson.path, LIMIT)
    with atomic_write(target, needs=len(data)) as part:
        part.write_bytes(data)
    return target, True
