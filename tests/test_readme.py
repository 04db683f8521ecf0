"""README.md and docs/*.md are true: commands and Python blocks print what is shown, every option exists, and
links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import glassgpt
from glassgpt.backends import native
from glassgpt.cli import COMMANDS, main
from glassgpt.cli.commands.music import SUBCOMMANDS as MUSIC
from glassgpt.cli.parser.parse import parse
from glassgpt.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


def load_script() -> ModuleType:
    """`docs/readme_outputs.py`, which parses the pages and updates the output they show."""
    spec = importlib.util.spec_from_file_location("readme_outputs", ROOT / "docs" / "readme_outputs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pages = load_script()
TEXTS = {page.name: page.read_text("utf-8") for page in pages.PAGES}
README = TEXTS["README.md"]
needs_native = pytest.mark.skipif(
    not native.is_available(), reason="the outputs shown are the native engine's, which was not built here"
)
PYTHON = {name: pages.blocks(text, "python") for name, text in TEXTS.items() if pages.blocks(text, "python")}
SKIPPED = [
    (name, code.splitlines()[0])
    for name, text in TEXTS.items()
    for code in [*pages.blocks(text, "python"), *(command for command, _ in pages.commands(text))]
    if pages.is_marked(code)
]

# `verify` prints rounding errors, which differ between machines.
NOT_COMPARED = ("verify",)


@pytest.fixture
def use_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output shown was computed on a CPU in float32; on a GPU it would be bfloat16."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


# The comparison itself.


@pytest.mark.parametrize(
    ("displayed", "printed"),
    [
        ("[918, 11] [-2.09..., -1.01...]", "[918, 11] [-2.0951, -1.0143]"),
        ("[0.   0.1  0.87]", "[0.   0.09 0.88]"),
        ("[-0.27  0.28]", "[-0.26  0.29]"),
        ("KL 0.5262 nats, ' door' 12.3%", "KL 0.5261 nats, ' door' 12.4%"),
        ("2  ␣end  10.72%  ███▉  868", "2  ␣end  10.72%  ████  868"),
        ("[' the' ' same'\n ' foot']", "[' the' ' same'\n ' foot']"),
    ],
)
def test_equal_outputs_are_equal(displayed: str, printed: str) -> None:
    assert pages.is_same(displayed, printed)


@pytest.mark.parametrize(
    ("displayed", "printed"),
    [
        ("[918, 11]", "[919, 11]"),
        ("[-2.09...]", "[-2.1151]"),
        ("[-2.09...]", "[2.0951]"),
        ("[0.   0.09 0.87]", "[0.02 0.09 0.87]"),
        ("[0.1  0.09 0.87]", "[0.14 0.09 0.87]"),
        ("' door'", "' foot'"),
        ("12.3%", "12.5%"),
        ("[' the' ' end']", "[' the' ' same' ' end']"),
    ],
)
def test_different_outputs_are_not(displayed: str, printed: str) -> None:
    assert not pages.is_same(displayed, printed)


def test_outputs_are_updated_in_place() -> None:
    code = (
        "def show(x):\n    print(x)     # 1\n\nshow(2)\nprint([0.123456, 'a'])   # [0.12..., 'a']\n"
        "print([7.891234])\n# [0.123...]\n# more\nprint('two\\nlines')   # one\n"
    )
    printed = pages.run_python(code, "block", {})
    assert pages.with_outputs(code, printed) == (
        "def show(x):\n    print(x)     # 2\n\nshow(2)\nprint([0.123456, 'a'])   # [0.12..., 'a']\n"
        "print([7.891234])\n# [7.891...]\nprint('two\\nlines')\n# two\n# lines\n"
    )


# Commands.


def assert_output(displayed: list[str], printed: str) -> None:
    """Every line shown is printed, in order; a line of three dots stands for any number of lines."""
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    at, skip = 0, False
    for line in displayed:
        if line.strip() == pages.DOTS:
            skip = True
            continue
        rest = range(at, len(lines)) if skip else range(at, min(at + 1, len(lines)))
        where = next((i for i in rest if pages.is_same(line, lines[i])), None)
        assert where is not None, f"{line!r} is not in {lines[at:]}"
        at, skip = where + 1, False
    assert skip or at == len(lines)


def test_the_readme_shows_commands_and_outputs() -> None:
    names = {command.split()[1] for command, _ in pages.commands(README)}
    assert {"generate", "next", "tokens", "info", "convert", "verify"} <= names
    assert {"README.md", "inspect.md", "model.md", "generation.md"} <= PYTHON.keys()
    assert sum(len(pages.outputs(code)) for code in PYTHON["README.md"]) > 8


@pytest.mark.slow
@needs_native
@pytest.mark.usefixtures("use_cpu")
@pytest.mark.parametrize("page", [name for name, text in TEXTS.items() if pages.commands(text)])
def test_commands_print_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In order, since a command may use what an earlier one wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for command, displayed in pages.commands(TEXTS[page]):
        if pages.is_marked(command):
            continue
        arguments = shlex.split(command, comments=True)[1:]
        assert main(arguments) == 0, command
        printed = capfd.readouterr().out
        assert printed.strip(), command
        if displayed and arguments[0] not in NOT_COMPARED:
            assert_output(displayed, printed)


@pytest.mark.parametrize(("page", "line"), SKIPPED)
def test_skipped_blocks(page: str, line: str) -> None:
    pytest.skip(f"{page}: not run here: {line}")


# Python blocks.


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    return {}


@pytest.mark.slow
@needs_native
@pytest.mark.usefixtures("use_cpu")
@pytest.mark.parametrize("page", PYTHON)
def test_python_blocks_print_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]
) -> None:
    """The blocks of a page share a namespace, and the shipped model is loaded once.

    A page without outputs runs with the small model: it only has to run.
    """
    monkeypatch.chdir(tmp_path)
    pages.make_example_files(tmp_path)
    monkeypatch.setattr(glassgpt, "load", cached_load(loaded, any(map(pages.outputs, PYTHON[page]))))
    namespace: dict[str, Any] = {}
    for number, code in enumerate(PYTHON[page], start=1):
        if pages.is_marked(code):
            continue
        printed = pages.run_python(code, f"{page}, Python block {number}", namespace)
        for output in pages.outputs(code):
            found = printed.get(output.line, "nothing")
            where = f"{page}, Python block {number}, line {output.line}"
            assert pages.is_same(output.displayed, found), (
                f"{where} shows {output.displayed} and prints {found}"
            )


def cached_load(loaded: dict[str, Any], shows: bool) -> Callable[..., Any]:
    load = glassgpt.load

    def once(name: str, **options: Any) -> Any:
        name = "tiny" if name == "default" and not shows else name
        key = f"{name} {sorted(options.items())}"
        if key not in loaded:
            loaded[key] = load(name, **options)
        return loaded[key]

    return once


# Flags and links.


def find_command_lines() -> list[tuple[str, str]]:
    """Every `glassgpt COMMAND ...` in --help and in blocks other than Python, without the shell syntax."""
    lines = [
        (name, line)
        for name, text in TEXTS.items()
        for language, block in pages.BLOCK.findall(text)
        if language != "python"
        for line in re.sub(r"\\\n", " ", block).splitlines()
    ]
    lines += [(f"{name} --help", line) for name, entry in COMMANDS.items() for line in entry.examples]
    lines += [(f"music {name} --help", line) for name, (_, e) in MUSIC.items() for line in e.examples]
    before = r"(?:\$ )?(?:eval \"\$\()?(?:torchrun .* -m )?"
    after = r"(?:\s#.*|\s[<>|].*|\)\".*)?"
    found = [(name, re.fullmatch(rf"{before}glassgpt (?!-)(\S.*?){after}", line)) for name, line in lines]
    return [(name, command[1]) for name, command in found if command is not None]


def test_every_command_line_parses() -> None:
    """Nothing is run: every option exists, and takes the value."""
    typed = find_command_lines()
    assert len(typed) > 80
    assert {command.split()[0] for _, command in typed} == set(COMMANDS)
    for page, command in typed:
        name, *args = shlex.split(command)
        if pages.DOTS in args:  # abbreviated
            continue
        if name == "train" and "--resume" in args:  # there is no run to resume, which would know its steps
            args = [arg for arg in args if arg != "--resume"] + ["--steps", "2"] * ("--steps" not in args)
        try:
            parse(name, COMMANDS[name], args)
        except UserError as error:
            pytest.fail(f"{page}: glassgpt {command}: {error}")


SUBCOMMANDS = {"music": MUSIC}


@pytest.fixture(scope="module")
def help_pages() -> dict[str, str]:
    found = {}
    for name, entry in COMMANDS.items():
        with contextlib.redirect_stdout(io.StringIO()) as page:
            parse(name, entry, ["--help"])()
        found[name] = page.getvalue()
        for action in SUBCOMMANDS.get(name, ()):
            with contextlib.redirect_stdout(io.StringIO()) as page:
                parse(name, entry, [action, "--help"])()
            found[f"{name} {action}"] = page.getvalue()
    return found


@pytest.fixture(scope="module")
def every_option(help_pages: dict[str, str]) -> set[str]:
    both = [re.sub(r"--\[no-\]([\w-]+)", r"--\1, --no-\1", page) for page in help_pages.values()]
    lines = re.findall(r"^  -.*$", "\n".join(both), re.M)
    return {"--help", "--version"}.union(*(re.findall(r"(?<=[ ,])--[a-z][\w-]*", line) for line in lines))


def test_help_has_no_leftovers_of_the_parser(help_pages: dict[str, str]) -> None:
    assert [name for name, page in help_pages.items() if re.search(r"%%|%\(|PEP 604|<class", page)] == []


def test_every_command_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `(\w+)", TEXTS["cli.md"], re.M)) >= set(COMMANDS)


def test_options_of_scripts_exist() -> None:
    """`python benchmarks/taps.py --size gpt2`: the script has that option."""
    typed = [
        found
        for text in TEXTS.values()
        for found in re.findall(r"python ((?:benchmarks|docs|recipes)/[^`#]*)", text)
    ]
    assert len(typed) > 15
    for command in typed:
        script, *words = command.split(" -- ")[0].split()
        source = (ROOT / script).read_text("utf-8")
        flags = [word for word in words if word.startswith("--")]
        assert [flag for flag in flags if f'"{flag}"' not in source] == [], command


@pytest.mark.parametrize("page", TEXTS)
def test_options_named_in_prose_exist(page: str, every_option: set[str]) -> None:
    """An option in `code` that no command has belongs to another program, or is wrong."""
    spans = re.findall(r"`([^`\n]+)`", pages.BLOCK.sub("", TEXTS[page]))
    ours = [span for span in spans if not span.startswith(OTHER_PROGRAMS)]
    named = {flag for span in ours for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
    assert named - every_option <= OTHER_OPTIONS


OTHER_PROGRAMS = ("python ", "pytest ", "pip ", "torchrun ", "tensorboard ")
OTHER_OPTIONS = {"--nproc-per-node", "--max-restarts", "--num_fewshot", "--gen_kwargs", "--log_samples",
                   "--model_args", "--batch_size", "--documents", "--batch", "--find-links"}  # fmt: skip


@pytest.mark.parametrize("page", [*TEXTS, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_and_named_files_exist(page: str) -> None:
    path = next((one for one in pages.PAGES if one.name == page), ROOT / page)
    prose = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", prose)
    for target in (a if a else b for a, b in links):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = path if not file else path.parent / file
        assert linked.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(linked.read_text("utf-8")), f"{page} links to {target}"
    quoted = re.findall(r"`(?:python )?([\w./-]+)(?: [^`]*)?`", prose)
    folders = ("src/", "docs/", "tests/", "benchmarks/", "recipes/", "examples/")
    named = {name for name in quoted if name.startswith(folders)}
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing


@pytest.mark.parametrize("page", [*TEXTS, "CONTRIBUTING.md"])
def test_quoted_source_files_tests_and_names_exist(page: str) -> None:
    """`graph.py`, `evaluate/lambada.py`, `test_the_masked_softmax_table`, `glassgpt.tally`"""
    path = next((one for one in pages.PAGES if one.name == page), ROOT / page)
    quoted = re.findall(r"`([^`\n]+)`", path.read_text("utf-8"))
    files = {name for span in quoted for name in re.findall(r"[\w./-]+\.(?:py|ipynb|mjs|sh)\b", span)}
    missing = [name for name in files if not any(f"/{one}".endswith(f"/{name}") for one in SOURCES)]
    tests = {name for span in quoted for name in re.findall(r"^test_\w+$", span)}
    missing += [name for name in tests if not any(f"def {name}(" in text for text in SOURCES.values())]
    names = {name for span in quoted for name in re.findall(r"^glassgpt(?:\.\w+)+", span)}
    missing += [name for name in names if not exists(name)]
    assert missing == []


SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8") if path.suffix == ".py" else ""
    for folder in ("src", "tests", "docs", "benchmarks", "recipes", "examples", "release", "course")
    for path in (ROOT / folder).rglob("*.*")
    if "node_modules" not in path.parts
}


def exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def anchors(text: str) -> set[str]:
    """Of headings, as GitHub and MyST make them, and explicit ones: `(name)=`."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\((\S+)\)=$", text, re.M))
