"""The README is true: its commands and Python blocks run, and the files it names are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from glassgpt.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
NETWORK = "# needs the network"

# Verbs that print no result of floating-point arithmetic: what the README shows must come out to the letter.
TO_THE_LETTER = ("tokens", "info", "convert", "--version")


def commands() -> list[tuple[str, list[str]]]:
    """The README's shell lines that start with `glassgpt`, each with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for language, block in BLOCKS:
        if language != "console":
            continue
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    return [(command, shown) for command, shown in found if command.startswith("glassgpt")]


def assert_shown(shown: list[str], printed: str) -> None:
    """Every line of the README is printed, in order; a line of three dots stands for any number of lines."""
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    at, skip = 0, False
    for line in shown:
        if line.strip() == "...":
            skip = True
            continue
        where = lines.index(line.rstrip(), at) if skip else at
        assert lines[where] == line.rstrip()
        at, skip = where + 1, False
    assert skip or at == len(lines)


def test_the_readme_has_what_is_tested_here() -> None:
    verbs = {command.split()[1] for command, _ in commands()}
    assert {"generate", "next", "tokens", "info", "convert", "verify"} <= verbs
    assert any(language == "python" for language, _ in BLOCKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def test_commands(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """One after the other, since a later one may use what an earlier one wrote."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    for command, shown in commands():
        if NETWORK in command:
            continue
        arguments = shlex.split(command, comments=True)[1:]
        assert main(arguments) == 0, command
        printed = capfd.readouterr().out
        assert printed.strip(), command
        if shown and arguments[0] in TO_THE_LETTER:
            assert_shown(shown, printed)


@pytest.mark.parametrize("command", [command for command, _ in commands() if NETWORK in command])
def test_commands_on_the_network(command: str) -> None:
    pytest.skip(f"not run here, it needs the network: {command}")


@pytest.mark.parametrize("number", range(sum(language == "python" for language, _ in BLOCKS)))
def test_python_blocks(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    block = [code for language, code in BLOCKS if language == "python"][number]
    exec(compile(block, f"README.md, Python block {number}", "exec"), {"__name__": "__main__"})


def test_files_that_are_named_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", README)
    named = {a if a else b for a, b in links if "://" not in a + b}
    quoted = re.findall(r"`([\w./-]+)`", README)
    named |= {
        name for name in quoted if name.startswith(("src/", "docs/", "tests/", "benchmarks/", "recipes/"))
    }
    named |= {name for name in quoted if re.fullmatch(r"[\w.-]+\.(md|toml)|Makefile", name)}
    assert len(named) > 5
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing
