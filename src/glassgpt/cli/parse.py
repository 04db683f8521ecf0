"""Turns the arguments of a command line into a bound function call, by the function's signature.

The plainest command lines are read here (quick_parse.py). tyro, whose import takes longer than loading a
model, reads all others, reports every mistake and writes every --help (tyro_parse.py).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from glassgpt.cli.options import flag as flag
from glassgpt.cli.paths import resolve_paths
from glassgpt.cli.quick_parse import quick_parse
from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.cli import Command

Parsed = TypeVar("Parsed")


def find_command(name: str, commands: Mapping[str, Command]) -> str:
    """The name itself; raises UserError with a suggestion if there is no such command."""
    if name in commands:
        return name
    matches = difflib.get_close_matches(name, commands, n=1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"Choose one of {', '.join(commands)}."
    raise UserError(f"unknown command {name!r}. {hint} See glassgpt --help")


def load_command(name: str) -> Callable[..., int]:
    command: Callable[..., int] = importlib.import_module(f"glassgpt.cli.commands.{name}").command
    return command


def parse(name: str, entry: Command, args: Sequence[str]) -> Callable[[], int]:
    """The command's function with its arguments bound, not called yet, so that its output is its own.

    A module with `SUBCOMMANDS` has commands of its own: `glassgpt music sample`.
    """
    command = load_command(name)
    subcommands = getattr(sys.modules[command.__module__], "SUBCOMMANDS", {})
    if args and args[0] in subcommands:
        command, entry = subcommands[args[0]]
        name, args = f"{name} {args[0]}", args[1:]
    wants_help = bool({"-h", "--help"} & set(args))
    # A module's `defaults(args)` may change defaults depending on what was typed (a recipe, a resumed run).
    find_defaults = getattr(sys.modules[command.__module__], "defaults", None)
    defaults: Mapping[str, Any] = {} if find_defaults is None or wants_help else find_defaults(args)
    if not defaults and not wants_help:
        try:
            arguments = quick_parse(command, args)
            if arguments is not None:
                return functools.partial(command, **resolve_paths(command, (), arguments))
        except (UserError, ValueError, TypeError):  # tyro finds the same mistake again, and says where it is
            pass
    from glassgpt.cli import tyro_parse

    return tyro_parse.parse(name, entry, command, args, defaults)


def parse_known(target: Callable[..., Parsed], args: Sequence[str]) -> Parsed | None:
    """Call `target` with the options it knows and ignore the others; None if one of them is malformed.

    `parse`, which runs afterwards, then reports it.
    """
    from glassgpt.cli import tyro_parse

    return tyro_parse.parse_known(target, args)
