"""The man page: every command, with the same words as its --help."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from glassgpt import __version__
from glassgpt.cli.commands import COMMANDS
from glassgpt.cli.parser.help import describe, own_doc, spelling, usage
from glassgpt.cli.parser.options import Option, read_signature
from glassgpt.cli.parser.parse import load_command


def man_page() -> Iterator[str]:
    """The page in troff, for section 1."""
    yield f'.TH GLASSGPT 1 "" "glassgpt {__version__}" "User Commands"'
    yield ".SH NAME"
    yield escape("glassgpt - GPT-2 made of glass: run it, look inside it, train it")
    yield ".SH SYNOPSIS"
    yield ".B glassgpt"
    yield escape("COMMAND [OPTIONS] [ARGUMENTS]")
    yield ".SH DESCRIPTION"
    yield escape(
        "A MODEL is a name (default, tiny, gpt2, owner/name), a folder or a file. Results go to stdout,"
    )
    yield escape("everything else to stderr; --json is for scripts.")
    yield ".SH COMMANDS"
    for name, entry in COMMANDS.items():
        command = load_command(name)
        signature = read_signature(command)
        yield f".SS {quote(f'glassgpt {name} {usage(signature.options)}')}"
        yield escape(inspect.getdoc(command) or entry.summary)
        actions = getattr(sys.modules[command.__module__], "SUBCOMMANDS", {})
        for action, (_, action_entry) in actions.items():
            yield from item(action, action_entry.summary)
        group: type | None = None
        for option in sorted(signature.options, key=lambda option: option.owner is not None):
            if option.owner is not group and own_doc(option.owner):
                group = option.owner
                yield ".PP"
                yield escape(own_doc(group))
            yield from item(label(option), describe(option))
        yield ".PP"
        yield "Examples:"
        yield ".nf"
        yield from (f"    {escape(example)}" for example in entry.examples)
        yield ".fi"
    yield ".SH EXIT STATUS"
    yield escape("0 is success, 2 a usage or input error, 130 Ctrl-C; docs/cli.md lists the others.")


def label(option: Option) -> str:
    return option.metavar if option.is_positional else spelling(option)


def item(name: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {quote(name)}"
    yield escape(text)


def quote(text: str) -> str:
    """As one argument of a request."""
    return '"' + escape(text).replace('"', "\\(dq") + '"'


def escape(text: str) -> str:
    """Words of a paragraph, in which troff finds nothing to do; a hyphen stays one that can be typed."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text
