"""The page as files: small, and it names no place outside itself."""

from __future__ import annotations

import re
from pathlib import Path

import glassgpt

PAGE = Path(glassgpt.__file__).parent / "explorer" / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg"))
CODE_LIMIT = 200_000  # bytes before compression; the comments, a sixth of it, are not code
LINES = 350


def code(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^\s*(//.*)?\n", "", text, flags=re.MULTILINE)


def test_the_page_is_small() -> None:
    assert len(FILES) > 20
    assert sum(len(code(path.read_text("utf-8")).encode()) for path in FILES) < CODE_LIMIT
    long = [
        path.name for path in FILES if path.suffix == ".js" and path.read_text("utf-8").count("\n") > LINES
    ]
    assert long == []


def test_it_names_no_other_place() -> None:
    for path in FILES:
        named = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w./-]+", code(path.read_text("utf-8"))))
        assert named <= {"http://www.w3.org/2000/svg"}, path.name
