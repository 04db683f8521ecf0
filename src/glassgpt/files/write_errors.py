"""What the system says about a failed write, as one line with the next step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassgpt.errors import UserError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError in the body, about writing `path`, into a UserError."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from None


def write_error(error: OSError, path: Path, size: int | None = None) -> UserError:
    if error.errno in DISK_FULL:
        needed = "" if size is None else f" {path.name} needs {size:,} bytes."
        return UserError(
            f"cannot write {path}: the disk is full.{needed} Free some space or choose another disk."
        )
    reason = error.strerror if error.strerror is not None else str(error)
    return UserError(f"cannot write {path}: {reason}. Choose a path you can write to.")


def find_os_error(error: BaseException) -> OSError | None:
    """The OSError behind an error, also where torch.save wraps it in a RuntimeError."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    return error if isinstance(error, OSError) else None
