"""Checks a path on a command line: each argument that --help shows as DIR, FILE, RUN or MODEL.

Whether an existing target may be replaced is decided by `glassgpt.files`, where it is written.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from glassgpt.errors import SettingError

PATH_METAVARS = {"DIR", "FILE", "FILE...", "RUN", "MODEL", "[MODEL]", "SRC", "DST", "TOKENIZER"}


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
