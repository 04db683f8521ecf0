"""Locks on files and folders. The system releases them whenever the process ends, however it ends.

Windows has no `fcntl`, and some network disks have no locks: there nothing is locked.
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
        import fcntl
    except ImportError:
        yield
        return
    with wrap_write_errors(folder):
        lock = open(folder / "lock", "wb")  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether some process holds `lock_path(path)`."""
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
