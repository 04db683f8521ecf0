"""Fixtures that every room's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Where any real model will do, it is the smallest of those in the package.
SHIPPED = "tiny"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout. Only extra tests use it: a user's machine has none."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside this checkout (extra real-data test)")
    return SHARED
