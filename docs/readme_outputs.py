"""Run the commands and Python blocks of README.md and docs/*.md, and update the output shown.

    python docs/readme_outputs.py [PAGE.md ...]

In a `console` block, the output of a command is below it; a line of three dots stands for lines left out
(output with several gaps is not updated). In a `python` block, the output of a `print` is the comment beside
it, or the comment lines below it; `-2.09...` are a number's first digits. A block or command with one of
MARKERS is skipped.
tests/test_readme.py compares all of it, with the functions here.
"""

from __future__ import annotations

import ast
import io
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.files import write_text_files

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKERS = ("# needs the network", "# needs a GPU", "# takes long")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d*)?(?:e[+-]?\d+)?(?:\.\.\.)?")
DOTS = "..."


def blocks(text: str, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(text) if found == language]


def is_marked(code: str) -> bool:
    return any(marker in code for marker in MARKERS)


# Comparing what is shown with what was printed.


def is_same(displayed: str, printed: str) -> bool:
    """Text exactly, except for the amount of white space; numbers to the digits shown.

    The last digit may be off by one, since machines round differently. Bars are not compared.
    """
    displayed, printed = (re.sub(r"[█▉▊▋▌▍▎▏]+", "█", text) for text in (displayed, printed))
    if [plain(part) for part in NUMBER.split(displayed)] != [plain(part) for part in NUMBER.split(printed)]:
        return False
    return all(map(is_same_number, with_decimals(displayed), NUMBER.findall(printed)))


def plain(text: str) -> str:
    return re.sub(r"(?<=\[) | (?=\])", "", re.sub(r"\s+", " ", text)).rstrip(" ")


def with_decimals(displayed: str) -> Iterator[tuple[str, int]]:
    """Each number with its decimals; in an array, which drops trailing zeros, the most of any element."""
    for found in NUMBER.finditer(displayed):
        begin, end = displayed.rfind("[", 0, found.start()), displayed.find("]", found.end())
        inside = begin >= 0 and end >= 0 and "]" not in displayed[begin : found.start()]
        array = NUMBER.findall(displayed[begin : end + 1]) if inside else [found[0]]
        yield found[0], max(map(decimals, array))


def decimals(number: str) -> int:
    return len(number.removesuffix(DOTS).partition("e")[0].partition(".")[2])


def is_same_number(displayed: tuple[str, int], printed: str) -> bool:
    text, slots = displayed
    if "." not in text and "e" not in text:
        return text == printed
    size = 10 ** int(text.partition("e")[2].removesuffix(DOTS)) if "e" in text else 1.0
    value, other = (float(number.removesuffix(DOTS).replace(",", "")) for number in (text, printed))
    return abs(value - other) <= 1.001 * size * 10**-slots


# Python blocks.


@dataclass(frozen=True)
class Output:
    """What the comment beside or below a `print` shows. Lines count from 1."""

    line: int  # where the call begins
    last_line: int  # where it ends
    column: int
    is_beside: bool
    n_lines: int  # of comment
    displayed: str


def outputs(code: str) -> list[Output]:
    comments = {
        token.start[0]: token
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    alone = {line for line, token in comments.items() if not token.line[: token.start[1]].strip()}
    found = []
    for node in ast.walk(ast.parse(code)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"):
            continue
        last = node.end_lineno if node.end_lineno is not None else node.lineno
        if last in comments:
            lines = [last]
        else:
            lines = []
            while (line := last + len(lines) + 1) in alone and comments[line].start[1] == node.col_offset:
                lines.append(line)
        if lines:
            displayed = "\n".join(comments[line].string.removeprefix("#").removeprefix(" ") for line in lines)
            found.append(Output(node.lineno, last, node.col_offset, lines == [last], len(lines), displayed))
    return sorted(found, key=lambda output: output.line)


def run_python(code: str, name: str, namespace: dict[str, Any]) -> dict[int, str]:
    """What each `print` printed, by its line."""
    printed: dict[int, io.StringIO] = {}

    def record(*values: object, sep: str = " ", end: str = "\n", flush: bool = False) -> None:
        line = sys._getframe(1).f_lineno
        print(*values, sep=sep, end=end, file=printed.setdefault(line, io.StringIO()))

    namespace |= {"__name__": "__main__", "print": record}
    exec(compile(code, name, "exec"), namespace)
    return {line: text.getvalue().rstrip("\n") for line, text in printed.items()}


def with_outputs(code: str, printed: dict[int, str]) -> str:
    lines = code.split("\n")
    for output in reversed(outputs(code)):
        if is_same(output.displayed, printed[output.line]):
            continue
        new = shortened_numbers(printed[output.line], output.displayed)
        last = lines[output.last_line - 1]
        if output.is_beside and "\n" not in new:
            lines[output.last_line - 1] = last[: last.rindex("# " + output.displayed)] + "# " + new
            continue
        below = [" " * output.column + "# " + line for line in new.split("\n")]
        if output.is_beside:
            lines[output.last_line - 1] = last[: last.rindex("# " + output.displayed)].rstrip()
        first = output.last_line
        lines[first : first + (0 if output.is_beside else output.n_lines)] = below
    return "\n".join(lines)


def shortened_numbers(new: str, old: str) -> str:
    """Numbers with as many digits before the three dots as were shown."""
    cut = re.search(r"\.(\d+)\.\.\.", old)
    if cut is None:
        return new
    slots = len(cut[1])
    return re.sub(rf"(-?\d+\.\d{{{slots}}})\d+", rf"\1{DOTS}", new)


# Commands.


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The `glassgpt` commands in console blocks, each with the output shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(text, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    return [(command, displayed) for command, displayed in found if command.startswith("glassgpt")]


def run_command(command: str, folder: str) -> list[str]:
    words = [sys.executable, "-m", *shlex.split(command, comments=True)]
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")]


def shortened(lines: list[str], displayed: list[str]) -> list[str]:
    """The new lines, with the same gap as the old ones."""
    if displayed.count(DOTS) != 1:
        return displayed if DOTS in displayed else lines
    first = displayed.index(DOTS)
    last = len(displayed) - first - 1
    return [*lines[:first], DOTS, *lines[len(lines) - last :]]


def with_command_outputs(block: str, folder: str) -> str:
    written: list[str] = []
    for part in re.split(r"(?=^\$ )", block, flags=re.MULTILINE)[1:]:
        command, *displayed = part.removesuffix("\n").split("\n")
        if command.startswith("$ glassgpt") and not is_marked(command):
            printed = run_command(command[2:], folder)
            displayed = shortened(printed, displayed) if displayed else displayed
        written += [command, *displayed]
    return "\n".join(written) + "\n"


def refreshed(text: str, name: str, folder: str) -> str:
    """The page with current output; a block may use what an earlier one wrote."""
    namespace: dict[str, Any] = {}
    shows = any(outputs(code) for code in blocks(text, "python"))

    def renew(found: re.Match[str]) -> str:
        language, code = found.groups()
        if language == "console":
            code = with_command_outputs(code, folder)
        elif language == "python" and shows and not is_marked(code):
            code = with_outputs(code, run_python(code, name, namespace))
        return f"```{language}\n{code}```"

    return BLOCK.sub(renew, text)


def make_example_files(folder: Path) -> None:
    """The files that the examples use; `folder` is the current one."""
    import glassgpt
    from glassgpt.cli import main
    from glassgpt.music import Performance
    from glassgpt.music.midi import write_midi

    text = "The old house stood at the end of the lane. " * 400
    (folder / "a.txt").write_text(text, "utf-8")
    with lzma.open(folder / "b.jsonl.xz", "wt") as file:
        file.write(json.dumps({"text": text}) + "\n")
    assert main(["prepare", "a.txt", "-o", "shards", "--tokenizer", "bytes"]) == 0
    glassgpt.load("tiny").tokenizer.save(folder / "folder")
    write_midi(Performance.from_notes([0, 0.5, 1], [1, 1, 2], [60, 64, 67], [80, 80, 80]), folder / "a.mid")


def main() -> None:
    pages = [Path(page).resolve() for page in sys.argv[1:]]
    for page in pages if pages else PAGES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            make_example_files(Path(folder))
            text = refreshed(page.read_text("utf-8"), page.name, folder)
            write_text_files(page.parent, {page.name: text})
            os.chdir(ROOT)


if __name__ == "__main__":
    main()
