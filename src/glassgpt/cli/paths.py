"""The gate for paths: whatever is typed where --help says DIR, FILE, RUN or MODEL passes here first.

What may be written over is decided where it is written: `check_target` of `glassgpt.files`.
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

METAVARS = {"DIR", "FILE", "FILE...", "RUN", "MODEL", "[MODEL]", "SRC", "DST", "TOKENIZER"}


def checked_paths(
    command: Callable[..., int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """A verb's arguments by name, every path among them checked."""
    signature = inspect.signature(command)
    hints = typing.get_type_hints(command, include_extras=True)
    made = signature.bind(*args, **kwargs).arguments
    for name, value in made.items():
        shown = {str(getattr(note, "metavar", "")) for note in getattr(hints[name], "__metadata__", ())}
        for metavar in shown & METAVARS:
            is_option = signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            option = "--" + name.replace("_", "-") if is_option else str(metavar).strip("[].")
            if isinstance(value, str):
                made[name] = checked_path(option, value)
            elif isinstance(value, tuple):
                made[name] = tuple(checked_path(option, one) for one in value)
    return made


def checked_path(option: str, given: str) -> str:
    """What was typed, with its ~ resolved, if it can be a path or a name at all."""
    if not given.strip():  # pathlib would take it for the folder we are in
        raise SettingError(f"{option} is empty; is a shell variable unset?")
    if "\0" in given:
        raise SettingError(f"{option} {given!r} holds a zero byte, which no path can. Check the path.")
    try:
        path = Path(given).expanduser()
        os.lstat(path)
    except RuntimeError:  # pathlib's, for a user it does not know
        raise SettingError(
            f"{option} {given}: {given.split('/')[0]} is nobody's home here. Write the path in full."
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise SettingError(f"{option} {given[:40]}... is too long for a path. Check the path.") from None
    return str(path) if given.startswith("~") else given
