"""The bytes of a file of weights or tokens, read when they are asked for.

Read, not mapped: where a mapped file is cut short by another program (a download begun anew, a training run
that saves), touching what is gone ends the process by a signal, without a word. A read can say what happened.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.errors import FileFormatError


class FileBytes:
    """A file that stays open as long as somebody may ask for a part of it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._turn = threading.Lock()  # seeking and reading are two steps
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise FileFormatError(f"{path} cannot be read: {error.strerror}. Check the path.") from None

    def read(self, begin: int, n_bytes: int) -> NDArray[np.uint8]:
        """A copy of these bytes, all of them."""
        data = np.empty(n_bytes, np.uint8)
        rest = data.data
        with self._turn:
            try:
                self._file.seek(begin)
                while rest:
                    got = self._file.readinto(rest)
                    if not got:
                        raise FileFormatError(
                            f"{self.path} became shorter while it was being read. Let whatever writes "
                            "it end, restore it, and try again."
                        )
                    rest = rest[got:]
            except OSError as error:
                raise FileFormatError(
                    f"{self.path} cannot be read: {error.strerror}. Check the disk."
                ) from None
        return data

    def array(self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The numbers of a tensor that lies there."""
        count = int(np.prod(shape, dtype=object))
        return self.read(begin, count * dtype.itemsize).view(dtype).reshape(shape)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
