"""Running something on a hostile file under the project's limits: 2 seconds, 200 MB, and no strange error."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from glassgpt.errors import UserError

SECONDS, BYTES = 2.0, 200 * 10**6


def refused(open_it: Callable[[], Any], match: str | None = None) -> str:
    """Assert that opening fails with one line for the user, within the limits; return that line."""
    start = time.perf_counter()
    with pytest.raises(UserError, match=match) as caught:
        open_it()
    took = time.perf_counter() - start
    tracemalloc.start()  # a second time, because watching the memory takes several times as long
    try:
        with pytest.raises(UserError):
            open_it()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert took < SECONDS, f"{took:.1f} s to refuse: {message}"
    assert peak < BYTES, f"{peak:,} bytes to refuse: {message}"
    assert "\n" not in message
    return message
