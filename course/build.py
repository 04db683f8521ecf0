"""Write the course's notebooks from their readable sources: course/source/NN-name.md -> course/NN-name.ipynb.

    python course/build.py            all of them
    python course/build.py 03 04      some

A ```python fence is a code cell, everything else is text; each ## heading begins a cell. The cells are run
here, in this process and without Jupyter, and their outputs are stored: printed text, and for the last
expression its SVG or its words. tests/course/test_lessons.py runs them again and compares.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import linecache
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parent
FENCE = re.compile(r"^```python\n(.*?)^```\n?", re.M | re.S)


@dataclass
class Cell:
    kind: str  # markdown or code
    source: str
    outputs: list[dict[str, Any]] = field(default_factory=list)


def parse(text: str) -> list[Cell]:
    cells = []
    position = 0
    for fence in FENCE.finditer(text):
        cells += [Cell("markdown", part) for part in sections(text[position : fence.start()])]
        cells.append(Cell("code", fence[1].strip("\n")))
        position = fence.end()
    return cells + [Cell("markdown", part) for part in sections(text[position:])]


def sections(text: str) -> list[str]:
    """A new cell at each ## heading."""
    parts = re.split(r"^(?=## )", text, flags=re.M)
    return [part.strip("\n") for part in parts if part.strip()]


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def execute(cells: list[Cell], name: str = "lesson") -> dict[str, Any]:
    """Run the code cells one after another in one namespace, which is returned; each gets its outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell.kind == "code":
            cell.outputs = run_cell(cell.source, names, f"<{name}, cell {number}>")
    return names


def run_cell(source: str, names: dict[str, Any], file: str) -> list[dict[str, Any]]:
    linecache.cache[file] = (len(source), None, [line + "\n" for line in source.split("\n")], file)
    tree = ast.parse(source, file)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), names)
        if last is not None:
            value = eval(compile(last, file, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_svg_"):
            data = {"image/svg+xml": lines(value._repr_svg_()), **data}
        outputs.append({"output_type": "execute_result", "execution_count": 1, "data": data, "metadata": {}})
    return outputs


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebook(cells: list[Cell]) -> str:
    """The .ipynb file: format 4.5, without times, versions or counts that differ from run to run."""
    written = []
    count = 0
    for number, cell in enumerate(cells):
        entry: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": lines(cell.source),
        }
        if cell.kind == "code":
            count += 1
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = count
            entry |= {"execution_count": count, "outputs": cell.outputs}
        written.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return (
        json.dumps(
            {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5},
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def sources() -> list[Path]:
    return sorted((COURSE / "source").glob("[0-9][0-9]-*.md"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lessons", nargs="*", metavar="NN", help="numbers of lessons; default: all")
    parser.add_argument("-o", "--out", type=Path, default=COURSE, help="the folder for the notebooks")
    given = parser.parse_args()
    from glassgpt.files import write_text_files

    for source in sources():
        if given.lessons and source.name[:2] not in {number.zfill(2) for number in given.lessons}:
            continue
        cells = parse(source.read_text("utf-8"))
        with tempfile.TemporaryDirectory() as folder, inside(Path(folder)):
            execute(cells, source.stem)
        write_text_files(given.out.resolve(), {f"{source.stem}.ipynb": notebook(cells)})
        print(f"{source.stem}.ipynb: {len(cells)} cells")


if __name__ == "__main__":
    main()
