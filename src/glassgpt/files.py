"""Opening files that may be hostile, and writing files that are never left half-written.

Reading: whatever a file claims about itself is compared with its real size before memory is spent on it.
Writing: into a temporary name beside the target, renamed only when everything is on the disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, SettingError, UserError, short_repr

# The index of a sharded GPT-2 XL is 50 kB. Parsed JSON takes up to thirty times its own size in memory.
JSON_LIMIT = 2**20

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# What is being written has a name of this form, so that what a kill left behind is known for ours.
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-z_]{8}\.(part|old)")


def file_size(path: str | Path) -> int:
    """The size of a regular file; devices, pipes and folders are refused (reading them may never end)."""
    path = Path(path)
    try:
        if not path.is_file():
            kind = "is a folder, not a file" if path.is_dir() else "does not exist or is not a regular file"
            raise FileFormatError(f"{path} {kind}. Check the path.")
        return path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. Check the path.") from None


def read_json(path: str | Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """The object in a JSON file of bounded size."""
    size = file_size(path)
    if size > limit:
        raise FileFormatError(f"{path} is {size:,} bytes of JSON; at most {limit:,} make sense. Not opened.")
    try:
        values = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:  # ValueError covers bad JSON and bad UTF-8
        raise FileFormatError(f"{path} is not JSON ({error}). Get the file again.") from None
    if not isinstance(values, dict):
        raise FileFormatError(f"{path} holds a JSON {type(values).__name__}, not an object.")
    return values


def path_inside(folder: str | Path, name: object) -> Path:
    """The file of that plain name in the folder. An index must not lead out of its own folder."""
    if not isinstance(name, str) or not name or name in {".", ".."} or any(c in name for c in "/\\\0:"):
        raise FileFormatError(
            f"{folder}: the index names the file {short_repr(name)}, which is not a plain file name."
        )
    return Path(folder) / name


def file_crc32(file: Path) -> int:
    """CRC-32, as zip files use it."""
    value = 0
    with file.open("rb") as handle:
        while part := handle.read(1 << 24):
            value = zlib.crc32(part, value)
    return value


def check_target(target: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuse what no command may write over, whatever was forced: see the messages."""
    check_not_device(target)
    place = target.resolve()
    if place in (Path.cwd(), *Path.cwd().parents):
        raise SettingError(f"{target} is the folder you are in, or one around it. Name one inside of it.")
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise SettingError(f"{target} cannot be: {parent} is a file, not a folder. Name another place.")
    for given in inputs:
        source = given.resolve()
        if source == place or place in source.parents:
            raise SettingError(f"{target} is where the source {given} lies. Name another target.")


def resolve_symlink(target: Path) -> Path:
    """Where a link leads: what it stands for is replaced, not the link."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def check_not_device(path: Path) -> None:
    """A file is renamed to its name: a device or a pipe of that name would be gone."""
    if path.exists() and not path.is_dir() and not path.is_file():
        raise SettingError(f"{path} is a device or a pipe, which a file would replace. Name another target.")


@contextmanager
def atomic_write(path: str | Path, *, folder: bool = False, needs: int | None = None) -> Iterator[Path]:
    """A temporary path beside `path`, for a file or (made already) a folder; renamed to `path` at the end.

    If the body fails, the temporary file or folder is removed and what was at `path` stays as it was.
    `needs` is the number of bytes about to be written, if known: a disk too full is refused at once.
    """
    path = Path(path)
    check_not_device(path)
    part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    made: list[Path] = []  # parent folders that did not exist before, innermost last
    try:
        for parent in reversed([p for p in (path.parent, *path.parent.parents) if not p.exists()]):
            parent.mkdir()
            made.append(parent)
        if needs is not None and needs > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, "disk full")
        part.mkdir() if folder else part.touch(exist_ok=False)
        with _claimed(part):
            yield part
            fsync(part)
            replaced = replace_path(part, path)
        if replaced is not None:
            remove(replaced)
        for parent in (path.parent, *(parent.parent for parent in made)):
            _flush_folder(parent)  # a name is durable when the folder that holds it is
    except BaseException as error:
        remove(part)
        with suppress(OSError):  # somebody else may have put something there meanwhile
            for parent in reversed(made):
                parent.rmdir()
        reason = _os_error(error)
        if reason is not None:
            raise _explained(reason, path, needs) from None
        raise


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Two processes at once in one folder would remove each other's files: the second one is refused.

    The system lets go of the lock after any death.
    """
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with wrap_write_errors(folder):
        lock = open(folder / "lock", "wb")  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                f"another glassgpt {doing} is at work in {folder}. Wait for it, or name another place."
            ) from None
        except OSError:  # some network disks know no locks
            pass
        yield


def find_interrupted_writes(folder: Path) -> list[tuple[str, Path]]:
    """What `writing` was about when its process was killed: the name it would have become, and where it is.

    Only for a folder in which nobody is writing now.
    """
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _UNFINISHED.fullmatch(path.name)
        if match is not None:
            found.append((match["name"], path))
    return found


def fsync(path: Path) -> None:
    """Wait until a file, or all of a folder, is on the disk: a rename may get there before the data."""
    if path.is_file():
        with open(path, "rb+") as handle:
            os.fsync(handle.fileno())
    elif path.is_dir():
        for inner in path.iterdir():
            fsync(inner)
        _flush_folder(path)


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows opens no folders, and some network disks flush none
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def replace_path(part: Path, path: Path) -> Path | None:
    """Give `part` the name `path`. Where a folder (which no rename can replace) had it, that one's new place.

    At every moment one of the two is there under its name, if the system can exchange names; else, after a
    kill between two renames, `settle` brings the old one back.
    """
    if part.is_file() or not path.exists():
        os.replace(part, path)
        return None
    if _exchange(part, path):
        return part
    old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
    with _claimed(path):
        os.replace(path, old)
        try:
            os.replace(part, path)
        except BaseException:
            os.replace(old, path)
            raise
    return old


def _exchange(one: Path, other: Path) -> bool:
    """Two names change places in one step; False where system or disk cannot do that."""
    if sys.platform not in ("linux", "darwin"):
        return False
    import ctypes

    sys.audit("os.rename", str(one), str(other), -1, -1)  # as Python's own renames do
    libc: Any = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    swap = 2  # Linux calls it RENAME_EXCHANGE, macOS RENAME_SWAP
    try:
        if sys.platform == "darwin":
            return bool(libc.renamex_np(*names, swap) == 0)
        here = -100  # AT_FDCWD: names are relative to the folder we are in
        return bool(libc.renameat2(here, names[0], here, names[1], swap) == 0)
    except AttributeError:  # a C library before 2018
        return False


def recover_interrupted_write(path: Path) -> None:
    """Undo what a kill left of `writing(path)`: a folder moved aside gets its name back, the rest goes.

    What another process is writing at this moment stays.
    """
    left = [
        found
        for name, found in find_interrupted_writes(path.parent)
        if name == path.name and not _is_claimed(found)
    ]
    for found in left:
        if found.suffix == ".old" and not os.path.lexists(path):
            os.replace(found, path)
        else:
            remove(found)


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Meanwhile others can see that this is in use. The system lets go of the lock after any death."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network disks know no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _is_claimed(path: Path) -> bool:
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this disk
        return False
    finally:
        os.close(handle)
    return False


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Whatever the system refuses in here, about writing `path`, is told in one line."""
    try:
        yield
    except OSError as error:
        raise _explained(error, path, None) from None


def _os_error(error: BaseException) -> OSError | None:
    """The system's refusal behind an error, also where torch.save covers it with one of its own."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    return error if isinstance(error, OSError) else None


def _explained(error: OSError, path: Path, needs: int | None) -> UserError:
    if error.errno in _DISK_FULL:
        room = "" if needs is None else f"{path.name} needs {needs:,} bytes, "
        return UserError(
            f"cannot write {path}: the disk is full. {room}free some space or name another disk."
        )
    reason = error.strerror if error.strerror is not None else str(error)
    return UserError(f"cannot write {path}: {reason}. Name a place that can be written.")
