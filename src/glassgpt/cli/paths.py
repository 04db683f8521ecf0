"""Checks every path on a command line: each argument that --help shows as DIR, FILE, RUN or MODEL.

Whether an existing target may be replaced is decided by `glassgpt.files`, where it is written.
"""

from __future__ import annotations

import errno
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassgpt.errors import SettingError

PATH_METAVARS = {"DIR", "FILE", "FILE...", "RUN", "MODEL", "[MODEL]", "SRC", "DST", "TOKENIZER"}


def resolve_paths(
    command: Callable[..., int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """A command's arguments by name, with every path among them checked and its ~ expanded."""
    signature = inspect.signature(command)
    hints = typing.get_type_hints(command, include_extras=True)
    arguments = signature.bind(*args, **kwargs).arguments
    for name, value in arguments.items():
        metavars = {str(getattr(note, "metavar", "")) for note in getattr(hints[name], "__metadata__", ())}
        for metavar in metavars & PATH_METAVARS:
            is_option = signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            option = "--" + name.replace("_", "-") if is_option else str(metavar).strip("[].")
            if isinstance(value, str):
                arguments[name] = resolve_path(option, value)
            elif isinstance(value, tuple):
                arguments[name] = tuple(resolve_path(option, one) for one in value)
    return arguments


def resolve_path(option: str, value: str) -> str:
    """`value` with its ~ expanded; raises SettingError if it cannot be a path or a name."""
    if not value.strip():  # pathlib would read it as the current folder
        raise SettingError(f"{option} is empty; is a shell variable unset?")
    if "\0" in value:
        raise SettingError(f"{option} {value!r} contains a null byte, which no path can. Check the path.")
    try:
        path = Path(value).expanduser()
        os.lstat(path)
    except RuntimeError:  # what pathlib raises for an unknown user
        raise SettingError(
            f"{option} {value}: there is no user {value.split('/')[0][1:]}. Write the path in full."
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise SettingError(f"{option} {value[:40]}... is too long for a path. Check the path.") from None
    return str(path) if value.startswith("~") else value
