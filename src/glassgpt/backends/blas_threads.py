"""One thread for numpy's small products.

A token's products read every weight once and wait for memory. OpenBLAS divides them among all cores anyway,
and its threads spin while they wait for each other: on a busy machine a token of the shipped model took 15
times as long with two threads as with one (266 ms of the cores' time instead of 17).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # a number that the user gave stays
NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Until the last thread that asked for it leaves, products are computed by whoever calls."""
    global _users, _before
    functions = None if any(map(os.environ.get, VARIABLES)) else thread_functions()
    if functions is None:
        yield
        return
    get_threads, set_threads = functions
    with _lock:
        if _users == 0:
            _before = get_threads()
            set_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                set_threads(_before)


@functools.cache
def thread_functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's functions that get and set the number of its threads; None if numpy uses something else."""
    for library in _libraries():
        for name in NAMES:
            try:
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
            except AttributeError:
                continue
    return None


def _libraries() -> Iterator[Any]:
    """Numpy's compiled part, through which the libraries it is linked with are found, and those next to
    it (Windows does not look further)."""
    folder = Path(np.__file__).parent
    core = sorted((folder / "_core").glob("_multiarray_umath*"))
    for path in [*core, *sorted(folder.with_name("numpy.libs").glob("*openblas*"))]:
        try:
            yield ctypes.CDLL(str(path))
        except OSError:
            continue
