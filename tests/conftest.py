"""Fixtures that every room's tests share."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared"

# Where any real model will do, it is the smallest of those in the package.
SHIPPED = "tiny"


def is_ours(folder: Path) -> bool:
    """Whether a folder named `shared` is this project's: others have folders of that name too."""
    return (folder / "GLASSGPT").is_file()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout. Only extra tests use it: a user's machine has none."""
    if not is_ours(BESIDE):
        pytest.skip("no ../shared of this project beside the checkout (extra real-data test)")
    return BESIDE


def ignore(number: int, frame: Any) -> None:
    pass


def let_children_hear_signals() -> None:
    """Under nohup, cron or a shell's `&`, tests begin with signals that are ignored, and so would all that
    they start. A handler that does nothing ignores them just as well here, and is not inherited: a program
    that is started has the default again.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, ignore)


let_children_hear_signals()
