"""Turns the words of a command line into a bound function call, by the function's signature (`options.py`).

Words are read from left to right: `--name value`, `--name=value`, `-k 5`, switches, and positional arguments.
A value may begin with a dash if it is a number, or after `=`; words after `--` are never options. `--top_k`
is `--top-k`. The last value of an option wins, unless the option is repeatable: then all its values count.
A typed value replaces the default, which comes from the signature or from the command's own `defaults` (a
recipe, a resumed run). The two are kept apart until then, so that a typed value is never taken for a default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassgpt.cli.commands import Command
from glassgpt.cli.parser.options import REQUIRED, Option, Signature, choices, read_signature
from glassgpt.cli.parser.paths import PATH_METAVARS, resolve_path
from glassgpt.errors import UserError, short_repr

HELP = {"-h", "--help"}

Typed = dict[tuple[str, ...], Any]  # what was typed, by the option's place


def find_command(name: str, commands: Mapping[str, Command]) -> str:
    """The name itself; raises UserError with a suggestion if there is no such command."""
    if name in commands:
        return name
    matches = difflib.get_close_matches(name, commands, n=1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"Choose one of {', '.join(commands)}."
    raise UserError(f"unknown command {short_repr(name)}. {hint} See glassgpt --help")


def load_command(name: str) -> Callable[..., int]:
    command: Callable[..., int] = importlib.import_module(f"glassgpt.cli.commands.{name}").command
    return command


def parse(name: str, entry: Command, args: Sequence[str]) -> Callable[[], int]:
    """The command's function with its arguments bound, not called yet, so that its output is its own.

    `SUBCOMMANDS` in a command's module are its own commands: `glassgpt music sample`. `defaults` there gets
    the typed values, by the names of parameters and fields, and may return other defaults for the parameters
    that are dataclasses.
    """
    command = load_command(name)
    module = sys.modules[command.__module__]
    subcommands = getattr(module, "SUBCOMMANDS", {})
    if args and args[0] in subcommands:
        command, entry = subcommands[args[0]]
        name, args = f"{name} {args[0]}", args[1:]
    signature = read_signature(command)
    if HELP & set(args[: args.index("--")] if "--" in args else args):
        from glassgpt.cli.parser.help import print_help

        actions = {} if " " in name else {action: subentry for action, (_, subentry) in subcommands.items()}
        return functools.partial(print_help, name, entry, command, signature, actions)
    with errors_of(name):
        typed = read_words(signature.options, args)
    find_defaults = getattr(module, "defaults", None)
    if find_defaults is not None:
        signature.bases.update(find_defaults({place[-1]: value for place, value in typed.items()}))
    with errors_of(name):
        check_required(signature, typed)
        return functools.partial(command, **build_arguments(signature, typed))


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Say which command's --help explains the error."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error} See glassgpt {name} --help") from None


def read_words(options: Iterable[Option], args: Sequence[str]) -> Typed:
    """The value of everything that was typed."""
    typed: Typed = {}
    positionals = [option for option in options if option.is_positional]
    named = {name: option for option in options if not option.is_positional for name in option.names}
    words = iter(args)
    for word in words:
        if word == "--":
            for rest in words:
                read_positional(positionals, typed, rest)
        elif not looks_like_option(word):
            read_positional(positionals, typed, word)
        else:
            read_option(named, typed, word, words)
    return typed


def looks_like_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not is_number(word)


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_positional(positionals: list[Option], typed: Typed, word: str) -> None:
    for option in positionals:
        if option.is_repeatable or option.place not in typed:
            add_value(option, typed, [word])
            return
    raise UserError(f"unexpected argument {shorten(word)} (quote text that contains spaces).")


def read_option(named: Mapping[str, Option], typed: Typed, word: str, words: Iterator[str]) -> None:
    """Read an option and the words that belong to it."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
    else:  # -k 5, -k5, -k=5
        name, value = word[:2], word[2:].removeprefix("=")
        equals = word[2:]
    option = named.get(name)
    if option is None:
        switch = named.get("--" + name.removeprefix("--no-")) if name.startswith("--no-") else None
        if switch is None or not switch.can_be_negated:
            raise UserError(unknown_option(name, named))
        option = switch
    if option.is_switch:
        if equals:
            raise UserError(f"{name} is a switch and takes no value, but has {short_repr(value)}.")
        typed[option.place] = name in option.names
        return
    values = [value] if equals else []
    while len(values) < len(option.value_types):
        value = next(words, "--")
        if looks_like_option(value):
            raise UserError(needs_value(option, name, "" if value.partition("=")[0] in named else value))
        values.append(value)
    add_value(option, typed, values)


def unknown_option(name: str, known: Iterable[str]) -> str:
    names = [*known, "--help"]
    longer = [each for each in names if each.startswith(name.lower())] if len(name) > 2 else []
    near = longer if longer else difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return f"unknown option {shorten(name)}." + (f" Did you mean {near[0]}?" if near else "")


def needs_value(option: Option, name: str, word: str) -> str:
    """The error; `word` begins with a dash and may have been meant as the value."""
    count = len(option.value_types)
    message = f"{name} needs a value." if count == 1 else f"{name} needs {count} values: {option.metavar}."
    if word in ("", "--") or count > 1:
        return message
    return f"{message} One that begins with a dash is written {name}={shorten(word)}."


def add_value(option: Option, typed: Typed, words: list[str]) -> None:
    kinds = option.value_types
    values = [convert(option, kind, word) for kind, word in zip(kinds, words, strict=True)]
    if option.is_mapping:
        typed[option.place] = {**typed.get(option.place, {}), values[0]: values[1]}
    elif option.is_repeatable:
        typed[option.place] = (*typed.get(option.place, ()), values[0])
    else:
        typed[option.place] = values[0]


def convert(option: Option, kind: Any, word: str) -> Any:
    """A word as text, a path, a number or one of several choices; `none` for a number that may be None."""
    if kind in (int, float):
        if option.is_optional and word.lower() == "none":
            return None
        try:
            return kind(word)
        except ValueError:
            digits = sum(char.isdigit() for char in word)
            if kind is int and digits > 1000 and word.strip().lstrip("+-").isdigit():
                raise UserError(f"{option.name}: a number of {digits} digits is too large.") from None
            what = "whole number" if kind is int else "number"
            raise UserError(f"{option.name}: {short_repr(word)} is not a {what}.") from None
    allowed = choices(kind)
    if allowed and word not in allowed:
        near = difflib.get_close_matches(word, allowed, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f"{option.name}: {short_repr(word)} is not one of {', '.join(allowed)}.{hint}")
    if option.metavar in PATH_METAVARS:
        word = resolve_path(option.name, word)
    return Path(word) if kind is Path else word


def shorten(word: str) -> str:
    return word if len(word) <= 80 else word[:80] + "..."


def check_required(signature: Signature, typed: Typed) -> None:
    for option in signature.options:
        has_value = option.place in typed or option.place[0] in signature.bases
        if option.default is REQUIRED and not has_value:
            raise UserError(f"{option.metavar if option.is_positional else option.names[0]} is missing.")


def build_arguments(signature: Signature, typed: Typed) -> dict[str, Any]:
    """The typed arguments of a command by the names of its parameters."""
    arguments = {place[0]: value for place, value in typed.items() if len(place) == 1}
    for name, kind in signature.groups.items():
        fields = {place[1:]: value for place, value in typed.items() if place[0] == name}
        arguments[name] = build_dataclass(kind, signature.bases.get(name), fields)
    return arguments


def build_dataclass(kind: type, base: Any, typed: Typed) -> Any:
    """`base`, or the dataclass with its defaults, with the typed fields in their place."""
    fields = {place[0]: value for place, value in typed.items() if len(place) == 1}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner_typed = {place[1:]: value for place, value in typed.items() if place[0] == field.name}
        has_default = base is not None or (field.default, field.default_factory) != (REQUIRED, REQUIRED)
        if dataclasses.is_dataclass(hints[field.name]) and (inner_typed or not has_default):
            inner_base = getattr(base, field.name, None)
            fields[field.name] = build_dataclass(hints[field.name], inner_base, inner_typed)
    return kind(**fields) if base is None else dataclasses.replace(base, **fields)
