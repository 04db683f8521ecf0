"""The page stays small: all of it is read at once, by browsers and by people."""

import re
from pathlib import Path

import glassgpt

PAGE = Path(glassgpt.__file__).parent / "explorer" / "page"


def code(file: Path) -> str:
    """A file without its comments and empty lines."""
    text = file.read_text("utf-8")
    if file.suffix in (".js", ".css"):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    if file.suffix == ".js":
        text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n\s*\n+", "\n", text)


def files() -> list[Path]:
    return sorted(file for file in PAGE.rglob("*") if file.is_file())


def test_the_whole_page_is_at_most_200_kb_of_code() -> None:
    assert sum(len(code(file).encode()) for file in files()) <= 200_000


def test_no_file_is_too_long_to_keep_in_mind() -> None:
    long = {file.name: len(file.read_text("utf-8").splitlines()) for file in files() if file.suffix == ".js"}
    assert {name: lines for name, lines in long.items() if lines > 350} == {}


def test_no_address_outside_is_named() -> None:
    """Only the name of SVG's own vocabulary, which nobody ever asks for, looks like an address."""
    for file in files():
        found = re.findall(r"https?://[^\"'\s)]+", file.read_text("utf-8"))
        assert set(found) <= {"http://www.w3.org/2000/svg"}, file.name
