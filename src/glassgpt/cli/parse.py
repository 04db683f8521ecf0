"""From words on the command line to a function ready to be called. tyro reads the function's signature."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import io
import os
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from glassgpt.cli.paths import checked_paths
from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.cli import Verb

# No --no-json beside every --json; `--top-k None` is not a thing a person types.
# A flag that may be given more than once takes one value each time: `--stop a --stop b`.
PLAIN = (tyro.conf.DisallowNone, tyro.conf.UseAppendAction)
MARKERS = (tyro.conf.FlagCreatePairsOff, *PLAIN)

Peeked = TypeVar("Peeked")

WIDTH = 80  # of a terminal that does not say; complaints are taken apart, so they always have this one
LEAST_WIDTH, MOST_WIDTH = 60, 1000  # of --help: in fewer columns its words would be broken

RULES = ConstructorRegistry()


@RULES.primitive_rule
def number_or_none(wanted: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`--top-k 40`, or `--top-k none` to switch a thing off that is on by default."""
    kinds = set(typing.get_args(wanted.type))
    if kinds not in ({int, NoneType}, {float, NoneType}):
        return None
    kind = int if int in kinds else float

    def read(words: list[str]) -> int | float | None:
        return None if words[0].lower() == "none" else kind(words[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="N" if kind is int else "X",
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, (int, kind)),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def flag(
    help: str, metavar: str | None = None, *, default: str | None = None, short: str | None = None
) -> Any:
    """How one argument looks in --help. `default` replaces the shown default; "" shows none."""
    return tyro.conf.arg(
        help=help,
        metavar=metavar,
        help_behavior_hint=None if default is None else (f"(default: {default})" if default else ""),
        aliases=None if short is None else (short,),
    )


def checked_verb(word: str, verbs: Mapping[str, Verb]) -> str:
    if word in verbs:
        return word
    near = difflib.get_close_matches(word, verbs, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of {', '.join(verbs)}."
    raise UserError(f"there is no command {word!r}. {hint} See glassgpt --help")


def command_of(verb: str) -> Callable[..., int]:
    command: Callable[..., int] = importlib.import_module(f"glassgpt.cli.commands.{verb}").command
    return command


def parse(name: str, verb: Verb, words: Sequence[str]) -> Callable[[], int]:
    """The verb's function with its arguments bound, not yet called: its own exits and prints are its own."""
    command = command_of(name)
    helping = bool({"-h", "--help"} & set(words))

    @functools.wraps(command)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], int]:
        return functools.partial(command, **checked_paths(command, args, kwargs))

    find = getattr(sys.modules[command.__module__], "defaults", None)
    found: Mapping[str, Any] = {} if find is None or helping else find(words)
    bind.__signature__ = _with_defaults(command, found)  # type: ignore[attr-defined]
    # A switch that is on by such a default may still be typed: --compile, and not --no-compile alone.
    markers = PLAIN if found else MARKERS
    said, complaint = _Page(), _Page()
    width = min(MOST_WIDTH, max(LEAST_WIDTH, shutil.get_terminal_size().columns)) if helping else WIDTH
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint), _columns(width):
            bound: Callable[[], int] = tyro.cli(
                bind,
                prog=f"glassgpt {name}",
                args=list(words),
                description=_DESCRIPTION,
                config=markers,
                registry=RULES,
            )
        return bound
    except SystemExit as end:
        if not end.code:
            text = said.getvalue().replace("\n\n\n", "\n\n")  # tyro sets paragraphs wide apart
            text = text.replace(_DESCRIPTION, _description(command, verb, width))
            return functools.partial(_print_page, text)
        said_by_us = _our_error(end)
        what = _first_sentence(complaint.getvalue()) if said_by_us is None else str(said_by_us)
        raise UserError(f"{name}: {what} See glassgpt {name} --help") from None


def _with_defaults(command: Callable[..., int], found: Mapping[str, Any]) -> inspect.Signature:
    """The command's signature with the defaults that its module's `defaults` found for the words, if any.

    So what is typed is never compared with a default: it simply replaces it.
    """
    signature = inspect.signature(command)
    changed = [p.replace(default=found.get(p.name, p.default)) for p in signature.parameters.values()]
    return signature.replace(parameters=changed)


def peek(function: Callable[..., Peeked], words: Sequence[str]) -> Peeked | None:
    """`function` with those of its flags that are among the words; None where they are written wrongly.

    Then `parse`, which comes after it, complains.
    """
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), _columns(WIDTH):
        try:
            found, _ = tyro.cli(
                function, args=list(words), config=MARKERS, registry=RULES, return_unknown_args=True
            )
        except SystemExit:
            return None
    return found


@contextlib.contextmanager
def _columns(width: int) -> Iterator[None]:
    """Let tyro set its boxes in this width. In the 5 or 0 columns that COLUMNS may tell of it cannot."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


_DESCRIPTION = "@description@"  # for tyro, which would break lines of prose and of examples within words


def _description(command: Callable[..., int], verb: Verb, width: int) -> str:
    doc = " ".join((command.__doc__ or verb.does).split())
    prose = textwrap.fill(doc, width)
    return prose + "\n\n" + "\n".join(f"  $ {example}" for example in verb.examples)


class _Page(io.StringIO):
    """Where tyro writes --help or its complaint. It knows whether the real stdout likes colour."""

    encoding = "utf-8"  # so that tyro draws its one kind of box

    def __init__(self) -> None:
        super().__init__()
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def isatty(self) -> bool:
        return self._colour


def _print_page(text: str) -> int:
    from glassgpt.cli.terminal import speaks_unicode

    if not speaks_unicode(sys.stdout):
        text = text.translate(str.maketrans("╭╮╰╯─│•", "++++-|*"))
    sys.stdout.write(text)
    return 0


def _our_error(end: BaseException) -> UserError | None:
    """What a range check said, if that is why tyro gave up: whole, while its box breaks it into lines."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__ if cause.__cause__ is not None else cause.__context__
    return cause


def _first_sentence(box: str) -> str:
    """What tyro says, out of its box: the text above the first rule, and a suggestion if it has one."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip(" │|").rstrip() for line in box.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("╭", "╰", "+"))]
    parts: list[list[str]] = [[]]
    for line in lines:
        if set(line) <= {"─", "-"}:
            parts.append([])
        else:
            parts[-1].append(line)
    said = " ".join(parts[0])
    missing = re.match(r"Missing from .*?: (\S+)", said)
    if missing:
        said = f"{missing[1]} is missing."
    said = re.sub(r"^Error parsing (settings: )?", "", said)
    said = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number", said)
    said = re.sub(r"could not convert string to float: (.*)", r"\1 is not a number", said)
    said = re.sub(r"Exceeds the limit .* has (\d+) digits.*", r"a number of \1 digits is too large", said)
    said = re.sub(r"^Unrecognized options: (?=-)", "there is no option ", said)
    said = re.sub(r"^Unrecognized options: (.*)", r"\1: one word too many (quote a text with spaces)", said)
    said = re.sub(r"^Missing value for argument '(.*)'\. Expected 1 values\.$", r"\1 needs a value.", said)
    choice = re.match(r"invalid choice ('.*') for argument '(.*)'\. Expected one of \((.*)\)\.$", said)
    if choice:
        said = f"{choice[2]}: {choice[1]} is not one of {choice[3].replace(chr(39), '')}."
    guess = next(
        (part[1].split()[0] for part in parts if len(part) > 1 and part[0].startswith("Perhaps")), None
    )
    if guess is not None:
        said += f". Did you mean {guess}?"
    return said if said.endswith((".", "?", "!")) else said + "."
