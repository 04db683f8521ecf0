"""What is typed arrives: options, positional arguments, dataclasses, defaults, --help and its errors."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.cli import COMMANDS
from glassgpt.cli.commands import Command
from glassgpt.cli.parser import parse as parser
from glassgpt.cli.parser.help import describe, field_comments, print_help
from glassgpt.cli.parser.options import Flag, OmitArgPrefixes, Positional, read_signature
from glassgpt.cli.parser.parse import build_arguments, check_required, parse, read_words
from glassgpt.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queue:
    """How many may wait."""

    most: int = dataclasses.field(default=5, metadata={"name": "--max-queue"})  # prompts that wait
    seconds: float | None = None  # how long; none: for ever


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    steps: int  # how many steps
    folder: Path | None = dataclasses.field(default=None, metadata={"metavar": "DIR", "short": "-d"})
    # the layers,
    # from below
    layers: tuple[int, ...] = ()
    bias: dict[int, float] = dataclasses.field(default_factory=dict, init=False)
    fast: bool = False  # compile it
    positions: bool | None = None  # use them (default: the run's)
    queue: Queue = dataclasses.field(default_factory=Queue)
    unseen: str = dataclasses.field(default="x", metadata={"option": False})

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"steps is {self.steps}; write a number from 1.")


def command(
    text: Annotated[Positional[str], Flag("the text")],
    words: Annotated[Positional[tuple[str, ...]], Flag("more of it", "[WORD...]")] = (),
    *,
    settings: OmitArgPrefixes[Settings],
    kind: Annotated[Literal["small", "large"], Flag("the kind")] = "small",
    stop: Annotated[tuple[str, ...], Flag("where to stop")] = (),
    limit: Annotated[int | None, Flag("at most", short="-l")] = 7,
    cold: Annotated[bool, Flag("without heat")] = False,
) -> int:
    """Do it."""
    return 0


def arguments(line: str, **bases: Any) -> dict[str, Any]:
    signature = read_signature(command)
    signature.bases.update(bases)
    typed = read_words(signature.options, shlex.split(line))
    check_required(signature, typed)
    return build_arguments(signature, typed)


def test_positional_arguments_and_options_in_any_order() -> None:
    for line in ("a b c --steps 3 --stop x --stop=y", "--stop x a --steps=3 b --stop y c"):
        assert arguments(line) == {
            "text": "a", "words": ("b", "c"), "stop": ("x", "y"), "settings": Settings(steps=3)
        }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-l 3", {"limit": 3}),
        ("-l3", {"limit": 3}),
        ("-l=3", {"limit": 3}),
        ("--limit -3", {"limit": -3}),
        ("--limit none", {"limit": None}),
        ("--limit NONE", {"limit": None}),
        ("--limit 1 --limit 2", {"limit": 2}),
        ("--stop none", {"stop": ("none",)}),
        ("--stop=-x", {"stop": ("-x",)}),
        ("--stop ''", {"stop": ("",)}),
        ("--stop a=b", {"stop": ("a=b",)}),
        ("--stop - --cold", {"stop": ("-",), "cold": True}),
        ("--kind large", {"kind": "large"}),
        ("-- --cold -x", {"words": ("--cold", "-x")}),
        ("-5", {"words": ("-5",)}),
    ],
)
def test_values(words: str, expected: dict[str, Any]) -> None:
    assert arguments(f"text --steps 1 {words}") == {
        "text": "text", "settings": Settings(steps=1), **expected
    }  # fmt: skip


def test_the_fields_of_dataclasses_are_options() -> None:
    assert arguments("t --steps 2 -d there --layers 1 --layers -1 --fast --no-positions")["settings"] == (
        Settings(steps=2, folder=Path("there"), layers=(1, -1), fast=True, positions=False)
    )
    assert arguments("t --steps 2 --max_queue 9 --seconds none")["settings"].queue == Queue(most=9)
    for hidden in ("--most 1", "--unseen y", "--bias 1 2", "--no-cold", "--settings 1"):
        with pytest.raises(UserError, match="unknown option"):
            arguments(f"t --steps 1 {hidden}")


def test_what_is_typed_goes_before_other_defaults_and_the_rest_keeps_them() -> None:
    base = Settings(steps=4, fast=True, layers=(2,), queue=Queue(most=1, seconds=3))
    assert arguments("t", settings=base)["settings"] == base
    for line, changes in {
        "--steps 1": {"steps": 1},
        "--no-fast": {"fast": False},
        "--fast": {},
        "--layers 5": {"layers": (5,)},
        "--max-queue 5": {"queue": Queue(most=5, seconds=3)},
    }.items():
        assert arguments(f"t {line}", settings=base)["settings"] == dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("t", "--steps is missing."),
        ("--steps 1", "TEXT is missing."),
        ("t --steps", "--steps needs a value."),
        ("t --steps 1 --stop --cold", "--stop needs a value."),
        ("t --stop -x", "--stop needs a value. One that begins with a dash is written --stop=-x."),
        ("t --steps five", "--steps: 'five' is not a whole number."),
        ("t --steps none", "--steps: 'none' is not a whole number."),
        ("t --steps 1 --seconds x", "--seconds: 'x' is not a number."),
        ("t --steps " + "9" * 5000, "--steps: a number of 5000 digits is too large."),
        ("t --steps 0", "steps is 0; write a number from 1."),
        ("t --kind lage", "--kind: 'lage' is not one of small, large. Did you mean large?"),
        ("t --cold=false", "--cold is a switch and takes no value, but has 'false'."),
        ("t --stp x", "unknown option --stp. Did you mean --stop?"),
        ("t --max-q 1", "unknown option --max-q. Did you mean --max-queue?"),
        ("t --COLD", "unknown option --COLD. Did you mean --cold?"),
        ("t -x", "unknown option -x."),
        ("t --folder ''", "--folder is empty; is a shell variable unset?"),
    ],
)  # fmt: skip
def test_errors_name_the_value_and_the_next_step(line: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        arguments(line)
    assert str(raised.value) == message


def test_an_argument_too_many(glassgpt) -> None:
    answer = glassgpt("tokens", "two", "words")
    assert answer.is_one_line_error("unexpected argument words (quote text", "glassgpt tokens --help")


def test_the_comment_beside_or_above_a_field_is_its_help() -> None:
    assert field_comments(Settings) == {
        "steps": "how many steps", "folder": "", "layers": "the layers, from below", "bias": "",
        "fast": "compile it", "positions": "use them (default: the run's)", "queue": "", "unseen": "",
    }  # fmt: skip


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_help_shows_types_choices_and_defaults(capsys, monkeypatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    entry = Command("do it", ("glassgpt do it",))
    assert print_help("do", entry, command, read_signature(command), {}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    page = " ".join(" ".join(lines).split())
    for text in (
        "usage: glassgpt do [OPTIONS] TEXT [WORD...]",
        "Do it. $ glassgpt do it",
        "arguments: TEXT the text [WORD...] more of it options: -h, --help",
        "--kind NAME the kind (small or large; default: small)",
        "--stop TEXT where to stop (repeatable)",
        "-l, --limit N at most (default: 7)",
        "--cold without heat settings: --steps N how many steps",
        "-d, --folder DIR",
        "--layers N the layers, from below (repeatable)",
        "--fast compile it",
        "--[no-]positions use them (default: the run's)",
        "queue: How many may wait. --max-queue N prompts that wait (default: 5)",
        "--seconds X how long; none: for ever (default: none)",
    ):
        assert text in page


def test_help_lists_the_actions_of_a_command(glassgpt) -> None:
    page = " ".join(glassgpt("music", "--help").out.split())
    assert "actions: sample compose from nothing continue continue a MIDI file accompany" in page


def test_help_for_a_command_in_other_words(glassgpt) -> None:
    page = glassgpt("next", "--help").out
    assert glassgpt("help", "next").out == glassgpt("--help", "next").out == page
    assert glassgpt("next", "--stop", "-h").out == page
    assert glassgpt("help", "nxet").is_one_line_error("Did you mean 'next'?")
    assert glassgpt("help", "music", "roll").out == glassgpt("music", "roll", "--help").out


WORDS = st.sampled_from(
    """hello - -- -x --json --top-k --top-k=3 --seed 5 -1 0.5 none None --stop a= --stop=-b --samples --beams
    --model tiny --ids=1 --temperature --min-p 1e3 nan inf 1_0 --Seed --see --ignore-eot --no-json
    --logit-bias --no-ignore-eot -k -h --=""".split()
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=6))
def test_any_words_are_read_or_refused_in_one_line(words: list[str]) -> None:
    try:
        answer = parse("generate", COMMANDS["generate"], words)
    except UserError as error:
        answer = str(error)
    assert callable(answer) or re.fullmatch(r"generate: .* See glassgpt generate --help", answer)


def test_every_command_has_help_for_every_option() -> None:
    for name in COMMANDS:
        command = parser.load_command(name)
        for option in read_signature(command).options:
            assert not describe(option).startswith(("(", " (")), (name, option.name)
            assert describe(option), (name, option.name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(glassgpt, tmp_path, shell: str) -> None:
    script = glassgpt("completion", shell)
    assert script.code == 0
    for word in ("generate", "max-new-tokens", "accompany", "without-melody", "gguf"):
        assert word in script.out
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script.out)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ge", "generate"),
        ("generate --json-", "--json-schema"),
        ("music acc", "accompany"),
        ("music sample --se", "--seconds --seed"),
        ("convert a b --format g", "gguf"),
        ("completion f", "fish"),
        ("nonsense --js", ""),
    ],
)
def test_bash_completion(glassgpt, tmp_path, line: str, offered: str) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    (tmp_path / "script").write_text(glassgpt("completion", "bash").out)
    words = ["glassgpt", *line.split()]
    code = f'source "$0"; COMP_WORDS=("$@"); COMP_CWORD={len(words) - 1}; _glassgpt; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(["bash", "-c", code, tmp_path / "script", *words], capture_output=True, text=True)
    assert done.stdout.strip() == offered, done.stderr


def test_the_man_page_has_every_command_and_option(glassgpt, tmp_path) -> None:
    import shutil
    import subprocess

    from glassgpt.cli.commands import COMMANDS
    from glassgpt.cli.parser.options import read_signature
    from glassgpt.cli.parser.parse import load_command

    page = glassgpt("completion", "man").out
    plain = page.replace("\\-", "-").replace("\\(dq", '"').replace("--[no-]", "--")
    for name in COMMANDS:
        assert f'.SS "glassgpt {name} ' in plain
        for option in read_signature(load_command(name)).options:
            assert all(word in plain or option.is_positional for word in option.names), option.name
    if shutil.which("groff") is not None:
        (tmp_path / "glassgpt.1").write_text(page)
        command = ["groff", "-man", "-Tutf8", "-ww", str(tmp_path / "glassgpt.1")]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        assert (done.returncode, done.stderr) == (0, "")
        assert "--max-new-tokens" in done.stdout.replace("\u2010", "-")
