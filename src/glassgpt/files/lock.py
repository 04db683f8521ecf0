"""Locks on files and folders. The system releases them whenever the process ends, however it ends.

Windows has no `fcntl`, Pyodide (Python in a browser) has one without `flock`, and some network disks
have no locks: there nothing is locked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glassgpt.errors import SettingError
from glassgpt.files.write_errors import wrap_write_errors


@contextmanager
def lock_folder(folder: Path, command: str) -> Iterator[None]:
    """Create the folder and lock it: two processes writing to one folder would remove each other's files."""
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        yield
        return
    with wrap_write_errors(folder):
        lock = open(folder / "lock", "wb")  # noqa: SIM115
    with lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                f"another glassgpt {command} is running in {folder}. Wait for it, or use another folder."
            ) from None
        except OSError:
            pass
        yield


@contextmanager
def lock_path(path: Path) -> Iterator[None]:
    """Mark a file or folder as in use by this process."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            flock(handle, LOCK_EX | LOCK_NB)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether some process holds `lock_path(path)`."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock

        handle = os.open(path, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        flock(handle, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
