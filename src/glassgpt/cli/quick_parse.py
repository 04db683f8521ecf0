"""The plainest command lines, without tyro: `--name value`, `--name=value`, switches and positional texts.

Why a second parser: importing tyro and building its parser takes 0.10 s of the 0.35 s in which the first
token is due. Why not argparse for all: help from the comments beside dataclass fields, groups, suggestions
and shell completion, which tyro brings along, would be more code of our own than this file.

Whatever else there is (a mistake, an abbreviation, a value that begins with a dash, a type that is not here)
makes `quick_parse` return None, and tyro decides. For what it does return, tyro returns the same: a test
compares the two.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple

from glassgpt.cli.options import OMIT_PREFIX, POSITIONAL, Flag


class Option(NamedTuple):
    """One thing that can be typed."""

    parameter: str  # of the function
    field: str | None  # of a dataclass that the parameter takes
    type: Any
    required: bool


class NotQuick(Exception):
    """Not one of the plainest command lines."""


def quick_parse(command: Callable[..., int], args: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of the command, or None if this is not a case for this parser."""
    try:
        positionals, options, groups = read_signature(command)
        return build_arguments(
            groups, read_words(positionals, options, args), [*positionals, *options.values()]
        )
    except NotQuick:
        return None


def read_signature(
    command: Callable[..., int],
) -> tuple[list[Option], dict[str, Option], dict[str, type]]:
    """What is given by its place, what by its name ("--top-k"), and the parameters that are dataclasses."""
    positionals: list[Option] = []
    options: dict[str, Option] = {}
    groups: dict[str, type] = {}
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, notes = split_annotation(hints[name])
        required = parameter.default is inspect.Parameter.empty
        if OMIT_PREFIX in notes:
            groups[name] = kind
            options |= {dashed(option.field): option for option in fields_of(name, kind)}
            continue
        option = Option(name, None, kind, required)
        if POSITIONAL in notes:
            positionals.append(option)
            continue
        options[dashed(name)] = option
        options |= {note.short: option for note in notes if isinstance(note, Flag) and note.short is not None}
    return positionals, options, groups


def split_annotation(hint: Any) -> tuple[Any, list[Any]]:
    """The type, and what is noted with it. Notes of tyro's own kind are for tyro."""
    if typing.get_origin(hint) is not Annotated:
        return hint, []
    kind, *notes = typing.get_args(hint)
    if any(not isinstance(note, Flag) and note not in (POSITIONAL, OMIT_PREFIX) for note in notes):
        raise NotQuick
    return kind, notes


def fields_of(parameter: str, kind: type) -> Iterator[Option]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        yield Option(parameter, field.name, hints[field.name], required)


def dashed(name: str | None) -> str:
    return "--" + str(name).replace("_", "-")


def read_words(
    positionals: list[Option], options: dict[str, Option], args: Sequence[str]
) -> dict[Option, Any]:
    """What was typed, converted to its type."""
    found: dict[Option, Any] = {}
    words = iter(args)
    places = iter(positionals)
    for word in words:
        if not word.startswith("-") or word == "-":
            option = next(places, None)
            if option is None:
                raise NotQuick
            found[option] = convert(option.type, word)
            continue
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None or (option in found and not is_repeatable(option.type)):
            raise NotQuick
        if option.type is bool:
            if equals:
                raise NotQuick
            found[option] = True
            continue
        if not equals:
            value = next(words, "-")
        if value.startswith("-"):
            raise NotQuick
        if is_repeatable(option.type):
            found[option] = (*found.get(option, ()), convert(typing.get_args(option.type)[0], value))
        else:
            found[option] = convert(option.type, value)
    return found


def is_repeatable(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,)


def convert(kind: Any, word: str) -> Any:
    """A word as text, a number, or one of several choices; `none` for a number that may be None."""
    if typing.get_origin(kind) in (UnionType, typing.Union):
        kinds = set(typing.get_args(kind)) - {NoneType}
        if len(kinds) != 1 or len(typing.get_args(kind)) != 2:
            raise NotQuick
        (kind,) = kinds
        if kind in (int, float) and word.lower() == "none":
            return None
    if kind is str:
        return word
    try:
        if kind in (int, float):
            return kind(word)
    except ValueError:
        raise NotQuick from None
    if typing.get_origin(kind) is Literal and word in typing.get_args(kind):
        return word
    raise NotQuick


def build_arguments(groups: dict[str, type], typed: dict[Option, Any], known: list[Option]) -> dict[str, Any]:
    if any(option.required and option not in typed for option in known):
        raise NotQuick
    fields: dict[str, dict[str, Any]] = {name: {} for name in groups}
    arguments: dict[str, Any] = {}
    for option, value in typed.items():
        if option.field is None:
            arguments[option.parameter] = value
        else:
            fields[option.parameter][option.field] = value
    return arguments | {name: groups[name](**values) for name, values in fields.items()}
