"""Running something on a hostile file under the project's limits: little work, little memory, one line."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from glassgpt.errors import UserError

# Counts are the same on a busy machine. The work is lines of Python: 5 million are about a second.
LINES, BYTES = 5_000_000, 200 * 10**6


def refused(open_it: Callable[[], Any], match: str | None = None) -> str:
    """Assert that opening fails with one line for the user, within the limits; return that line."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        assert lines < LINES, f"more than {LINES:,} lines of Python to refuse"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        with pytest.raises(UserError, match=match) as caught:
            open_it()
    finally:
        sys.settrace(before)
    tracemalloc.start()  # a second time: watching both at once takes long
    try:
        with pytest.raises(UserError):
            open_it()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert peak < BYTES, f"{peak:,} bytes to refuse: {message}"
    assert "\n" not in message
    return message
