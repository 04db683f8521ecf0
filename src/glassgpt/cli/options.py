"""How a command describes its arguments, in the annotations of its function:

    text: Annotated[Positional[str | None], flag("the text; - reads stdin", "[TEXT]", default="")] = None

Both parsers read them: quick_parse.py itself, and tyro through tyro_parse.py.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar

T = TypeVar("T")


class Flag(NamedTuple):
    """How --help shows an argument."""

    help: str
    metavar: str | None
    default: str | None  # replaces the default shown; "" shows none
    short: str | None  # "-k"


class Marker(NamedTuple):
    name: str


POSITIONAL = Marker("positional")
OMIT_PREFIX = Marker("omit prefix")

Positional = Annotated[T, POSITIONAL]  # given by its place, without a name
OmitArgPrefixes = Annotated[T, OMIT_PREFIX]  # the fields of a dataclass, as if they were parameters


def flag(
    help: str, metavar: str | None = None, *, default: str | None = None, short: str | None = None
) -> Any:
    """How --help shows an argument. `default` replaces the default shown; "" shows none."""
    return Flag(help, metavar, default, short)
