"""The compiled engine, loaded once, with the types of its functions."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.backends.native import build
from glassgpt.errors import UserError

_INTS, _FLOATS, _DOUBLES = POINTER(c_int32), POINTER(c_float), POINTER(c_double)

# Name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "error": (c_char_p, []),
    "source": (c_char_p, []),
    "kernels": (c_char_p, []),
    "new": (c_void_p, [_INTS, c_float, c_char_p, c_int]),
    "delete": (None, [c_void_p]),
    "threads": (c_int, [c_void_p]),
    "set_matrix": (
        c_int,
        [c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_int64, c_int64, _FLOATS, _FLOATS],
    ),
    "set_file": (c_int, [c_void_p, c_int, c_int, c_int, c_int64, _FLOATS, _FLOATS]),
    "set_panels": (
        c_int,
        [c_void_p, c_int, c_int, c_int, c_void_p, c_int64, _FLOATS, _FLOATS, c_int],
    ),
    "quantize_int4": (
        c_int,
        [c_int, c_int, _FLOATS, c_int64, c_int64, c_void_p, c_int64, c_int],
    ),
    "set_vector": (c_int, [c_void_p, c_int, c_int, _FLOATS]),
    "new_adapter": (c_int, [c_void_p]),
    "set_low_rank": (c_int, [c_void_p, c_int, c_int, c_int, c_int, _FLOATS, _FLOATS]),
    "set_adapter": (c_int, [c_void_p, c_void_p, c_int, c_int]),
    "check": (c_int, [c_void_p]),
    "bytes": (c_int64, [c_void_p]),
    "new_cache": (c_void_p, [c_void_p, c_int, c_int, c_int, c_int]),
    "delete_cache": (None, [c_void_p]),
    "copy": (c_int, [c_void_p, c_void_p, c_int, c_int, _INTS, c_int]),
    "forward": (
        c_int,
        [c_void_p, c_void_p, c_int, _INTS, _INTS, _INTS, _INTS, c_int, _FLOATS, c_int64],
    ),
    "score": (
        c_int,
        [c_void_p, c_void_p, c_int, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS, c_int, _DOUBLES, _INTS, _INTS],
    ),
    "block": (
        c_int,
        [c_void_p, c_void_p, *[c_int] * 3, _FLOATS, c_uint32, c_int, c_void_p, c_void_p, c_int],
    ),
    "times": (c_int, [c_void_p, c_int, c_int, c_int, _FLOATS, _FLOATS, c_int64, c_int]),
    "limits": (c_int, [c_void_p, c_int64, _DOUBLES]),
    "draw": (
        c_int,
        [
            c_void_p,
            c_int,
            c_int,
            c_void_p,
            c_int64,
            *[c_void_p] * 3,
            c_int,
            c_void_p,
            c_int,
            *[c_void_p] * 4,
            c_int64,
            c_int,
            c_void_p,
            c_void_p,
        ],
    ),
}


class NotBuilt(UserError):
    """There is no compiled engine here; the message says why and what to do."""


class Library:
    """The functions of the compiled library, by the names in `_FUNCTIONS`."""

    def __init__(self, path: Path) -> None:
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise NotBuilt(f"the native engine {path} cannot be loaded: {error}") from None
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(loaded, f"glassgpt_{name}")
            except AttributeError:
                raise NotBuilt(_stale(path)) from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # set above; for the type checker
        raise AttributeError(name)

    def check_result(self, result: int) -> None:
        if result:
            raise self.failure()

    def failure(self) -> UserError:
        """What the last call that failed said."""
        return UserError(f"the native engine: {self.error().decode('utf-8', 'replace')}")


@functools.cache
def load_library() -> Library:
    """The library, or `NotBuilt`. `GLASSGPT_NATIVE` names another file than the installed one."""
    named = os.environ.get("GLASSGPT_NATIVE")
    path = Path(named or build.LIBRARY)
    if named and not path.is_file():
        raise NotBuilt(
            f"GLASSGPT_NATIVE is {named!r}, which is not a file. Unset it to use the engine installed here"
        )
    if not path.is_file():
        raise NotBuilt(
            "the native engine was not built when this package was installed. "
            "With a C++ compiler: python -m glassgpt.backends.native.build"
        )
    library = Library(path)
    if build.SOURCES.is_dir() and library.source().decode() != build.source_hash():
        raise NotBuilt(_stale(path))
    return library


def _stale(path: Path) -> str:
    return (
        f"the native engine {path} is older than its sources. Run: python -m glassgpt.backends.native.build"
    )


def kernels() -> list[str]:
    """The kernels that this CPU can run, the best last."""
    names: str = load_library().kernels().decode()
    return names.split()


def ints(values: Any) -> np.ndarray:
    """Whole numbers as the engine takes them, in 32 bits. None is cut off to fit."""
    numbers = np.asarray(values)
    if numbers.size and numbers.dtype.kind not in "biu":
        raise UserError(f"the native engine takes whole numbers of 32 bits, not {numbers.reshape(-1)[0]!r}.")
    narrow = np.ascontiguousarray(numbers, np.int32)
    if numbers.dtype.itemsize >= narrow.itemsize and (narrow != numbers).any():
        wrong = numbers.reshape(-1)[(narrow != numbers).reshape(-1)][0]
        raise UserError(f"the native engine takes whole numbers of 32 bits, not {wrong}.")
    return narrow


def ints_at(values: np.ndarray) -> Any:
    return values.ctypes.data_as(_INTS)


def floats_at(values: np.ndarray | None) -> Any:
    return None if values is None else values.ctypes.data_as(_FLOATS)


def doubles_at(values: np.ndarray) -> Any:
    return values.ctypes.data_as(_DOUBLES)
