"""Run the README's commands again and put what they print now below them.

    python docs/readme_outputs.py

A line of three dots stands for what is left out: before it the first lines are shown, after it the last ones.
Where there are several, and in comments of Python code, a person has to look; tests/test_readme.py compares.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
DOTS = "..."


def printed(command: str, folder: str) -> list[str]:
    words = [sys.executable, "-m", *shlex.split(command, comments=True)]
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")]


def shortened(lines: list[str], shown: list[str]) -> list[str]:
    """The new lines, left out where the old ones were."""
    if shown.count(DOTS) != 1:
        return shown if DOTS in shown else lines
    first = shown.index(DOTS)
    last = len(shown) - first - 1
    return [*lines[:first], DOTS, *lines[len(lines) - last :]]


def refreshed(block: str, folder: str) -> str:
    written: list[str] = []
    for part in re.split(r"(?=^\$ )", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.removesuffix("\n").split("\n")
        if command.startswith("$ glassgpt") and shown:
            shown = shortened(printed(command[2:], folder), shown)
        written += [command, *shown]
    return "\n".join(written) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # a later command may use what an earlier one wrote
        text = CONSOLE.sub(lambda block: refreshed(block[0], folder), README.read_text("utf-8"))
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
