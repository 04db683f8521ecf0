"""Writing files that are never left half-written: a temporary name next to the target, fsync, rename."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from glassgpt.errors import SettingError
from glassgpt.files.lock import is_locked, lock_path
from glassgpt.files.write_errors import find_os_error, write_error

# The form of temporary names, by which the leftovers of a killed process are recognized.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(part|old)")


def check_target(target: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuse a target that no command may overwrite, even with --force."""
    check_not_device(target)
    resolved = resolve(target)
    if resolved in (Path.cwd(), *Path.cwd().parents):
        raise SettingError(f"{target} is the current folder or contains it. Choose a folder inside it.")
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise SettingError(
                f"{target} cannot be created: {parent} is a file, not a folder. Choose another path."
            )
    for given_path in inputs:
        source = resolve(given_path)
        if source == resolved or resolved in source.parents:
            raise SettingError(f"{target} is or contains the source {given_path}. Choose another target.")


def check_new_file(target: Path, force: bool = False) -> None:
    """Refuse, before the work, a file that cannot be written, and one that exists unless `force` is set."""
    check_target(target)
    if target.is_dir():
        raise SettingError(f"{target} is a folder. Name a file in it.")
    if target.exists() and not force:
        raise SettingError(f"{target} exists. Choose another file, or add --force to replace it.")


def check_not_device(path: Path) -> None:
    """Refuse a device or a pipe: renaming a file to its name would remove it."""
    if path.exists() and not path.is_dir() and not path.is_file():
        raise SettingError(
            f"{path} is a device or a pipe, which a file would replace. Choose another target."
        )


def resolve(path: Path) -> Path:
    """The path without links; an error for links that lead in a circle."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SettingError(f"{path} is a symbolic link to itself. Choose another path.") from None
    return Path(os.path.realpath(path))


def resolve_symlink(target: Path) -> Path:
    """What a link points to: that is replaced, not the link."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


@contextmanager
def atomic_write(path: str | Path, *, folder: bool = False, needs: int | None = None) -> Iterator[Path]:
    """Yield a temporary path next to `path`, a file or a new folder, which is renamed to `path` at the end.

    If the body fails, the temporary file or folder is removed and whatever was at `path` remains.
    `needs` is the number of bytes to write, if known: a disk without that much space is refused up front.
    """
    path = Path(path)
    check_not_device(path)
    part = _temporary_path(path, "part")
    new_parents: list[Path] = []  # parent folders that did not exist before, innermost last
    try:
        for parent in reversed([p for p in (path.parent, *path.parent.parents) if not p.exists()]):
            parent.mkdir()
            new_parents.append(parent)
        if needs is not None and needs > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, "disk full")
        part.mkdir() if folder else part.touch(exist_ok=False)
        with lock_path(part):
            yield part
            fsync(part)
            replaced = replace_path(part, path)
        if replaced is not None:
            remove(replaced)
        for parent in (path.parent, *(parent.parent for parent in new_parents)):
            _fsync_folder(parent)  # a name is durable once the folder that lists it is
    except BaseException as error:
        remove(part)
        with suppress(OSError):  # another process may have put something there meanwhile
            for parent in reversed(new_parents):
                parent.rmdir()
        reason = find_os_error(error)
        if reason is not None:
            raise write_error(reason, path, needs) from None
        raise


def write_text_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by file name; none replaces an old file before all are on the disk."""
    with ExitStack() as stack:
        for name, text in files.items():
            part = stack.enter_context(atomic_write(folder / name))
            part.write_text(text, encoding="utf-8", newline="\n")
            fsync(part)


def atomic_symlink(path: Path, target: Path) -> None:
    """Make `path` a relative link to `target`, or a copy where links are not possible."""
    part = _temporary_path(path, "part")
    try:
        part.symlink_to(os.path.relpath(target, path.parent))
    except OSError:  # not on this disk, or not for this user of Windows
        shutil.copyfile(target, part)
    os.replace(part, path)


def find_interrupted_writes(folder: Path) -> list[tuple[str, Path]]:
    """Leftovers of killed `atomic_write`s: the name each would have had, and its path.

    Only for a folder that no other process is writing to.
    """
    leftovers = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None:
            leftovers.append((match["name"], path))
    return leftovers


def recover_interrupted_write(path: Path) -> None:
    """Clean up after a killed `atomic_write(path)`: restore a folder moved aside, remove the rest.

    What another process is writing now remains.
    """
    for name, found in find_interrupted_writes(path.parent):
        if name != path.name or is_locked(found):
            continue
        if found.suffix == ".old" and not os.path.lexists(path):
            os.replace(found, path)
        else:
            remove(found)


def replace_path(part: Path, path: Path) -> Path | None:
    """Rename `part` to `path`. Returns where the folder that had the name is now (no rename can replace one).

    At every moment one of the two has the name, if the system can exchange names; else, after a kill
    between two renames, `recover_interrupted_write` restores the old one.
    """
    if part.is_file() or not path.exists():
        os.replace(part, path)
        return None
    if _exchange(part, path):
        return part
    old = _temporary_path(path, "old")
    with lock_path(path):
        os.replace(path, old)
        try:
            os.replace(part, path)
        except BaseException:
            os.replace(old, path)
            raise
    return old


def fsync(path: Path) -> None:
    """Wait until a file, or a folder with its contents, is on the disk: a rename may precede the data."""
    if path.is_file():
        with open(path, "rb+") as handle:
            os.fsync(handle.fileno())
    elif path.is_dir():
        for inner in path.iterdir():
            fsync(inner)
        _fsync_folder(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _temporary_path(path: Path, suffix: str) -> Path:
    return path.parent / f".{path.name}.{os.urandom(4).hex()}.{suffix}"


def _fsync_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows opens no folders, and some network disks sync none
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the disk cannot."""
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
        cwd = -100  # AT_FDCWD: relative names start at the current folder
        return bool(libc.renameat2(cwd, names[0], cwd, names[1], swap) == 0)
    except AttributeError:  # a C library before 2018
        return False
