"""tyro's part of parse.py: everything but the plainest command lines, all errors and every --help."""

from __future__ import annotations

import contextlib
import functools
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
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from glassgpt.cli.options import OMIT_PREFIX, POSITIONAL, Flag
from glassgpt.cli.paths import resolve_paths
from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.cli import Command

# No `--top-k None`; a repeatable option takes one value each time: `--stop a --stop b`.
BASE_MARKERS = (tyro.conf.DisallowNone, tyro.conf.UseAppendAction)
MARKERS = (tyro.conf.FlagCreatePairsOff, *BASE_MARKERS)  # and no --no-json beside every --json

Parsed = TypeVar("Parsed")

ERROR_WIDTH = 80  # tyro's error boxes are parsed, so they always have this width
MIN_WIDTH, MAX_WIDTH = 60, 1000  # of --help; narrower, tyro would break words

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def optional_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`--top-k 40`, or `--top-k none` to turn off what is on by default."""
    kinds = set(typing.get_args(info.type))
    if kinds not in ({int, NoneType}, {float, NoneType}):
        return None
    kind = int if int in kinds else float

    def read(args: list[str]) -> int | float | None:
        return None if args[0].lower() == "none" else kind(args[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="N" if kind is int else "X",
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, (int, kind)),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


@REGISTRY.primitive_rule
def optional_text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`--regex TEXT`, of which --help says `none` where tyro would say `None`."""
    if set(typing.get_args(info.type)) != {str, NoneType}:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="TEXT",
        instance_from_str=lambda args: args[0],
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: ["none" if value is None else value],
    )


def convert_annotation(hint: Any) -> Any:
    """An annotation of options.py as tyro has them."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    base, *notes = typing.get_args(hint)
    return functools.reduce(_annotate, notes, base)


def _annotate(base: Any, note: Any) -> Any:
    wrappers: dict[Any, Any] = {POSITIONAL: tyro.conf.Positional, OMIT_PREFIX: tyro.conf.OmitArgPrefixes}
    if note in wrappers:
        return wrappers[note][base]
    return Annotated[base, _convert_flag(note) if isinstance(note, Flag) else note]


def _convert_flag(flag: Flag) -> Any:
    default = flag.default
    return tyro.conf.arg(
        help=flag.help,
        metavar=flag.metavar,
        help_behavior_hint=None if default is None else (f"(default: {default})" if default else ""),
        aliases=None if flag.short is None else (flag.short,),
    )


def with_tyro_annotations(command: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
    """`target` with the annotations of `command`, as tyro has them."""
    hints = typing.get_type_hints(command, include_extras=True)
    target.__annotations__ = {name: convert_annotation(hint) for name, hint in hints.items()}
    return target


def parse(
    name: str, entry: Command, command: Callable[..., int], args: Sequence[str], defaults: Mapping[str, Any]
) -> Callable[[], int]:
    """The command's function with its arguments bound, not called yet, so that its output is its own."""
    wants_help = bool({"-h", "--help"} & set(args))

    @functools.wraps(command)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], int]:
        return functools.partial(command, **resolve_paths(command, args, kwargs))

    del bind.__wrapped__  # tyro would read the annotations there
    with_tyro_annotations(command, bind)
    bind.__signature__ = _with_defaults(bind, command, defaults)  # type: ignore[attr-defined]
    # A switch that such a default turns on may still be typed: --compile, not only --no-compile.
    markers = BASE_MARKERS if defaults else MARKERS
    out, err = _Capture(), _Capture()
    width = min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns)) if wants_help else ERROR_WIDTH
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _columns(width):
            bound: Callable[[], int] = tyro.cli(
                bind,
                prog=f"glassgpt {name}",
                args=list(args),
                description=_DESCRIPTION,
                config=markers,
                registry=REGISTRY,
            )
        return bound
    except SystemExit as end:
        if not end.code:
            text = out.getvalue().replace("\n\n\n", "\n\n")  # tyro leaves two blank lines
            for option in getattr(sys.modules[command.__module__], "NOT_REQUIRED", ()):
                text = re.sub(rf"({option} .*?)\(required\)", rf"\1{' ' * 10}", text, count=1, flags=re.S)
            text = text.replace(_DESCRIPTION, _format_description(command, entry, width))
            return functools.partial(_print_help, text)
        user_error = _find_user_error(end)
        message = _extract_message(err.getvalue()) if user_error is None else str(user_error)
        raise UserError(f"{name}: {message} See glassgpt {name} --help") from None


def _with_defaults(
    bind: Callable[..., Any], command: Callable[..., int], defaults: Mapping[str, Any]
) -> inspect.Signature:
    """The command's signature with other defaults: what the user types simply replaces them."""
    signature = inspect.signature(command)
    parameters = [
        p.replace(default=defaults.get(p.name, p.default), annotation=bind.__annotations__[p.name])
        for p in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


def parse_known(target: Callable[..., Parsed], args: Sequence[str]) -> Parsed | None:
    """Call `target` with the options it knows and ignore the others; None if one of them is malformed.

    `parse`, which runs afterwards, then reports it.
    """
    ignored = io.StringIO()
    with contextlib.redirect_stdout(ignored), contextlib.redirect_stderr(ignored), _columns(ERROR_WIDTH):
        try:
            parsed, _ = tyro.cli(
                target, args=list(args), config=MARKERS, registry=REGISTRY, return_unknown_args=True
            )
        except SystemExit:
            return None
    return parsed


@contextlib.contextmanager
def _columns(width: int) -> Iterator[None]:
    """Make tyro draw its boxes in this width. It cannot in the 5 or 0 columns that COLUMNS may claim."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


_DESCRIPTION = "@description@"  # replaced afterwards: tyro would break prose and examples within words


def _format_description(command: Callable[..., int], entry: Command, width: int) -> str:
    doc = " ".join((command.__doc__ or entry.summary).split())
    prose = textwrap.fill(doc, width)
    return prose + "\n\n" + "\n".join(f"  $ {example}" for example in entry.examples)


class _Capture(io.StringIO):
    """Captures tyro's --help or its error, in colour if the real stdout shows colour."""

    encoding = "utf-8"  # so that tyro always draws the same box

    def __init__(self) -> None:
        super().__init__()
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def isatty(self) -> bool:
        return self._colour


def _print_help(text: str) -> int:
    from glassgpt.cli.terminal import supports_unicode

    if not supports_unicode(sys.stdout):
        text = text.translate(str.maketrans("╭╮╰╯─│•", "++++-|*"))
    sys.stdout.write(text)
    return 0


def _find_user_error(end: BaseException) -> UserError | None:
    """The error of a range check, if that is why tyro exited; its box would break the message into lines."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__ if cause.__cause__ is not None else cause.__context__
    return cause


# tyro's messages, and ours in their place.
_MESSAGES = (
    (r"^Missing from .*?: (\S+).*", r"\1 is missing."),
    (r"^Error parsing (settings: )?", ""),
    (r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number"),
    (r"could not convert string to float: (.*)", r"\1 is not a number"),
    (r"Exceeds the limit .* has (\d+) digits.*", r"a number of \1 digits is too large"),
    (r"^Unrecognized options: (-[^,=\s]*).*", r"unknown option \1"),  # not the words behind it
    (r"^Unrecognized options: (.*)", r"unexpected argument \1 (quote text that contains spaces)"),
    (r"^Missing value for argument '(.*)'\. Expected 1 values\.$", r"\1 needs a value."),
)


def _extract_message(box: str) -> str:
    """tyro's message out of its box: the text above the first rule, and the suggestion if there is one."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip(" │|").rstrip() for line in box.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("╭", "╰", "+"))]
    parts: list[list[str]] = [[]]
    for line in lines:
        if set(line) <= {"─", "-"}:
            parts.append([])
        else:
            parts[-1].append(line)
    message = " ".join(parts[0])
    for pattern, replacement in _MESSAGES:
        message = re.sub(pattern, replacement, message)
    choice = re.match(r"invalid choice ('.*') for argument '(.*)'\. Expected one of \((.*)\)\.$", message)
    if choice:
        message = f"{choice[2]}: {choice[1]} is not one of {choice[3].replace(chr(39), '')}."
    suggestion = next(
        (part[1].split()[0] for part in parts if len(part) > 1 and part[0].startswith("Perhaps")), None
    )
    if suggestion is not None:
        message += f". Did you mean {suggestion}?"
    return message if message.endswith((".", "?", "!")) else message + "."
