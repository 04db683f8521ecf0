"""Running something on a hostile file under the project's limits: few steps, 200 MB, and no strange error."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from glassgpt.errors import UserError

# Calls and returns, of Python's functions and of C's: the same number on any machine, however busy.
STEPS, BYTES = 20_000_000, 200 * 10**6


def refused(open_it: Callable[[], Any], match: str | None = None) -> str:
    """Assert that opening fails with one line for the user, within the limits; return that line."""
    steps = 0

    def step(*event: Any) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        with pytest.raises(UserError, match=match) as caught:
            open_it()
    finally:
        sys.setprofile(before)
    tracemalloc.start()  # a second time, for each way of watching slows the other down
    try:
        with pytest.raises(UserError):
            open_it()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert steps < STEPS, f"{steps:,} steps to refuse: {message}"
    assert peak < BYTES, f"{peak:,} bytes to refuse: {message}"
    assert "\n" not in message
    return message
