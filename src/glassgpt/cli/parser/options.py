"""What can be typed after a command, read from the signature of its function:

    text: Annotated[Positional[str | None], flag("the text; - reads stdin", "[TEXT]")] = None
    settings: OmitArgPrefixes[TrainSettings]

A dataclass marked with `OmitArgPrefixes` adds an option for each of its fields, and for the fields of
dataclasses inside it. The comment beside or above a field is its help. The field's metadata may set what
`Flag` sets for a parameter, without importing this module: `field(metadata={"metavar": "DIR"})`. A field is
not an option if it is declared with `init=False` or with `metadata={"option": False}`.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")


class Flag(NamedTuple):
    """What --help shows of an argument, as far as its name, its type and its default do not say it."""

    help: str | None = None  # None: the comment beside the field
    metavar: str | None = None
    default: str | None = None  # replaces the default shown; "" shows none
    short: str | None = None  # "-k"
    name: str | None = None  # "--cors-origin", if it is not the parameter's


class Marker(NamedTuple):
    name: str


POSITIONAL = Marker("positional")
OMIT_PREFIX = Marker("omit prefix")

Positional = Annotated[T, POSITIONAL]  # given by its place, without a name
OmitArgPrefixes = Annotated[T, OMIT_PREFIX]  # the fields of a dataclass, as if they were parameters

REQUIRED = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """One thing that can be typed: an option, or a positional argument."""

    place: tuple[str, ...]  # ("settings", "top_k"): the parameter, and the field of its dataclass
    type: Any  # `int` for `int | None`
    is_optional: bool  # whether the type allows None
    default: Any  # REQUIRED if there is none
    flag: Flag
    is_positional: bool = False
    owner: type | None = None  # the dataclass whose field it is

    @property
    def name(self) -> str:
        """`--top-k`; of a positional argument, what --help calls it."""
        if self.is_positional:
            return self.metavar.strip("[].")
        return self.flag.name if self.flag.name is not None else "--" + self.place[-1].replace("_", "-")

    @property
    def names(self) -> list[str]:
        return [self.name] if self.flag.short is None else [self.flag.short, self.name]

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    @property
    def can_be_negated(self) -> bool:
        """`--no-compile`: a resumed run or a recipe may have switched it on."""
        return self.is_switch and (self.owner is not None or self.default is not False)

    @property
    def is_repeatable(self) -> bool:
        return self.is_mapping or (typing.get_origin(self.type) is tuple and self.item_types[1:] == (...,))

    @property
    def is_mapping(self) -> bool:
        return typing.get_origin(self.type) is Mapping

    @property
    def item_types(self) -> tuple[Any, ...]:
        return typing.get_args(self.type)

    @property
    def value_types(self) -> tuple[Any, ...]:
        """The types of the words that follow its name."""
        if self.is_mapping:
            return self.item_types
        return self.item_types[:1] if self.is_repeatable else (self.type,)

    @property
    def metavar(self) -> str:
        if self.flag.metavar is not None:
            return self.flag.metavar
        if self.is_positional:
            return self.place[-1].upper()
        names = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
        return " ".join(names.get(kind, "NAME") for kind in self.value_types)


def choices(kind: Any) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


@dataclasses.dataclass(frozen=True)
class Signature:
    options: list[Option]
    groups: dict[str, type]  # the parameters that are dataclasses
    bases: dict[str, Any]  # their default values, where they have one


def read_signature(command: Callable[..., int]) -> Signature:
    options: list[Option] = []
    groups: dict[str, type] = {}
    bases: dict[str, Any] = {}
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, notes = split_annotation(hints[name])
        default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
        if OMIT_PREFIX in notes:
            groups[name] = kind
            if default is not REQUIRED:
                bases[name] = default
            options += fields_of((name,), kind, bases.get(name))
            continue
        given = next((note for note in notes if isinstance(note, Flag)), Flag())
        options.append(Option((name,), *without_none(kind), default, given, POSITIONAL in notes))
    return Signature(options, groups, bases)


def split_annotation(hint: Any) -> tuple[Any, list[Any]]:
    """The type, and what is noted with it."""
    if typing.get_origin(hint) is not Annotated:
        return hint, []
    kind, *notes = typing.get_args(hint)
    return kind, notes


def without_none(kind: Any) -> tuple[Any, bool]:
    """`int` and True for `int | None`."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind, False
    kinds = [each for each in typing.get_args(kind) if each is not types.NoneType]
    assert len(kinds) == 1, f"{kind}: an option has one type, or one type and None"
    return kinds[0], True


def fields_of(place: tuple[str, ...], kind: type, base: Any) -> Iterator[Option]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not (field.init and field.metadata.get("option", True)):
            continue
        default = field.default if field.default_factory is REQUIRED else field.default_factory()
        if base is not None:
            default = getattr(base, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            inner = None if default is REQUIRED else default
            yield from fields_of((*place, field.name), hints[field.name], inner)
        else:
            known = {name: field.metadata[name] for name in Flag._fields if name in field.metadata}
            yield Option(
                (*place, field.name), *without_none(hints[field.name]), default, Flag(**known), owner=kind
            )
