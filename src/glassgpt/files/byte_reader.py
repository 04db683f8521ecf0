"""Random access to the bytes of a large file of weights or tokens.

Read, not mapped: if another program truncates a mapped file (a download that restarts, a training run that
saves), touching the missing pages kills the process with a signal. A failed read raises an error instead.
`mapped` is for files that are only ever replaced as a whole, under another inode: those this package writes.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.errors import FileFormatError


class ByteReader:
    """A file that stays open as long as this object lives."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()  # seeking and reading are two steps
        self._map: Any = None
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise FileFormatError(f"{path} cannot be read: {error.strerror}. Check the path.") from None

    def read(self, begin: int, n_bytes: int) -> NDArray[np.uint8]:
        """Exactly these bytes, copied."""
        data = np.empty(n_bytes, np.uint8)
        rest = data.data
        with self._lock:
            try:
                self._file.seek(begin)
                while rest:
                    got = self._file.readinto(rest)
                    if not got:
                        raise FileFormatError(
                            f"{self.path} became shorter while it was being read. Wait for whatever "
                            "is writing it, restore it, and try again."
                        )
                    rest = rest[got:]
            except OSError as error:
                raise FileFormatError(
                    f"{self.path} cannot be read: {error.strerror}. Check the disk."
                ) from None
        return data

    def array(self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The array that starts at byte `begin`."""
        count = int(np.prod(shape, dtype=object))
        return self.read(begin, count * dtype.itemsize).view(dtype).reshape(shape)

    def fileno(self) -> int:
        """For readers that keep this object alive meanwhile."""
        number: int = self._file.fileno()
        return number

    def mapped(self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The same array where it lies in the file, read-only: its pages are read when they are touched, and
        shared with other processes. None if the file cannot be mapped."""
        with self._lock:
            if self._map is None:
                self._map = _map(self._file)
        count = int(np.prod(shape, dtype=object))
        if self._map is None or begin + count * dtype.itemsize > len(self._map):
            return None
        return np.frombuffer(self._map, dtype, count, begin).reshape(shape)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def _map(file: Any) -> Any:
    """The whole file as memory, or None."""
    import mmap

    try:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # pages read from the disk are large ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
