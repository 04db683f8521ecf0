"""--help: every command with an example (`glassgpt --help`), or the arguments and options of one.

The page is plain text with a few styles, wrapped between words. rich, which draws the tables, takes longer to
import than all of this.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import shutil
import textwrap
from collections.abc import Callable, Mapping

from glassgpt import __version__
from glassgpt.cli import terminal
from glassgpt.cli.commands import Command
from glassgpt.cli.parser.options import REQUIRED, Option, Signature, choices

MIN_WIDTH, MAX_WIDTH = 20, 100
WIDE = 60  # from here on, names and help are side by side
COLUMN = 28  # where the help begins there


def print_overview(commands: Mapping[str, Command]) -> int:
    width = page_width()
    lines = wrap(f"glassgpt {__version__}  GPT-2 made of glass: run it, look inside it, train it.", width)
    lines = [lines[0].replace("glassgpt", terminal.styled("glassgpt", "title"), 1), *lines[1:], ""]
    for name, command in commands.items():
        lines += entry(name, command.summary, width, column=14)
        indent = " " * (14 if width >= WIDE else 6)
        lines.append(terminal.styled(f"{indent}$ {command.examples[0]}", "quiet"))
    lines += ["", *wrap("glassgpt COMMAND --help lists a command's options, with more examples.", width)]
    lines += wrap("A MODEL is a name (default, tiny, gpt2, owner/name), a folder or a file.", width)
    lines += wrap("Results go to stdout, everything else to stderr; --json is for scripts.", width)
    print("\n".join(lines))
    return 0


def print_help(
    name: str,
    command_entry: Command,
    command: Callable[..., int],
    signature: Signature,
    actions: Mapping[str, Command],
) -> int:
    width = page_width()
    positionals = [option for option in signature.options if option.is_positional]
    lines = wrap(f"usage: glassgpt {name} {usage(signature.options)}", width, indent=7)
    lines += ["", *wrap(inspect.getdoc(command) or command_entry.summary, width), ""]
    lines += [terminal.styled(f"  $ {example}", "quiet") for example in command_entry.examples]
    if positionals and not actions:
        lines += heading("arguments")
        for option in positionals:
            lines += entry(option.metavar, describe(option), width)
    if actions:
        lines += heading("actions")
        for action, action_entry in actions.items():
            lines += entry(action, action_entry.summary, width)
    lines += heading("options")
    lines += entry("-h, --help", "show this help and exit", width)
    group: type | None = None
    for option in sorted(signature.options, key=lambda option: option.owner is not None):
        if option.is_positional:
            continue
        if option.owner is not group:
            group = option.owner
            lines += heading(option.place[-2])
            lines += wrap(own_doc(group), width, indent=2, first=2) if own_doc(group) else []
        lines += entry(spelling(option), describe(option), width)
    print("\n".join(lines))
    return 0


def page_width() -> int:
    return min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns))


def usage(options: list[Option]) -> str:
    required = [option for option in options if option.default is REQUIRED and option.owner is None]
    words = [f"{option.names[0]} {option.metavar}" for option in required if not option.is_positional]
    return " ".join([*words, "[OPTIONS]", *(option.metavar for option in options if option.is_positional)])


def heading(text: str) -> list[str]:
    return ["", terminal.styled(f"{text}:", "title")]


def spelling(option: Option) -> str:
    """`-o, --out DIR`, `--json`, `--[no-]absolute-positions`."""
    names = ", ".join(option.names)
    if not option.is_switch:
        return f"{names} {option.metavar}"
    return names if option.default is False else names.replace("--", "--[no-]", 1)


def describe(option: Option) -> str:
    """The help of an option, with its choices and its default."""
    text = option.flag.help
    if text is None:
        assert option.owner is not None, f"{option.name} has no help"
        text = field_comments(option.owner).get(option.place[-1], "")
    notes = []
    allowed = choices(option.value_types[0])
    if allowed:
        notes.append(" or ".join([", ".join(allowed[:-1]), allowed[-1]]))
    default = describe_default(option) if option.flag.default is None else option.flag.default
    # A dataclass's field need not be typed where the command's `defaults` (a resumed run) give it a value.
    if option.default is REQUIRED and not option.is_positional and option.owner is None:
        notes.append("required")
    elif default and "(default:" not in text:
        notes.append(f"default: {default}")
    if option.is_repeatable and not option.is_positional:
        notes.append("repeatable")
    return f"{text} ({'; '.join(notes)})" if notes else text


def describe_default(option: Option) -> str:
    """The default as one would type it; nothing for what is absent or off unless typed."""
    value = option.default
    if value is None:
        return "none" if option.type in (int, float) else ""
    if value is REQUIRED or value is False:
        return ""
    if option.is_repeatable:
        return ", ".join(map(str, value))
    if value is True:
        return "on"
    return f"{value:g}" if isinstance(value, float) else str(value)


def entry(name: str, text: str, width: int, column: int = COLUMN) -> list[str]:
    """A name in its column and what it means next to it, or below it where there is no room."""
    label = f"  {terminal.styled(name, 'accent')}"
    if width < WIDE:
        return [label, *wrap(text, width, indent=6, first=6)]
    lines = wrap(text, width, indent=column, first=column)
    if len(name) + 4 > column:
        return [label, *lines]
    return [label + lines[0][len(name) + 2 :], *lines[1:]] if lines else [label]


def wrap(text: str, width: int, indent: int = 0, first: int = 0) -> list[str]:
    """Lines of whole words: a word that is longer than a line is not broken."""
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=" " * first, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def own_doc(kind: type | None) -> str:
    """A class's docstring, if it has one: `dataclass` writes one that repeats the signature."""
    doc = "" if kind is None else kind.__doc__ or ""
    return "" if kind is not None and doc.startswith(f"{kind.__name__}(") else doc


@functools.cache
def field_comments(kind: type) -> dict[str, str]:
    """The comment beside each field of a dataclass and of the classes it inherits from, or that above it."""
    comments: dict[str, str] = {}
    for cls in reversed(kind.__mro__[:-1]):
        lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
        (definition,) = ast.parse("\n".join(lines)).body
        assert isinstance(definition, ast.ClassDef)
        for field in definition.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                end = lines[(field.end_lineno or 1) - 1].encode()[field.end_col_offset or 0 :].decode()
                above = itertools.takewhile(is_comment, reversed(lines[: field.lineno - 1]))
                comment = [end] if is_comment(end) else reversed(list(above))
                comments[field.target.id] = " ".join(line.strip(" #") for line in comment)
    return comments


def is_comment(line: str) -> bool:
    return line.strip().startswith("#")
