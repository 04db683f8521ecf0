"""Fixtures that every room's tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.process_memory import resident_bytes

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


@pytest.fixture(scope="module")
def no_trial() -> Iterator[None]:
    """Training does not measure this machine first: how quick it is does not matter to what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassgpt.train.estimate.measure_throughput", lambda *of: 1e5)
        patch.setattr("glassgpt.train.estimate.measure_peak_flops", lambda *of: 1e12)
        yield


# As Hypothesis does by itself where it sees a CI: the same examples each time, and no limit that depends on
# how busy the machine is. `pytest --hypothesis-profile default` draws others.
with suppress(ModuleNotFoundError):  # `make test-ray` has none
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("suite")


# On a CPU torch keeps 1,024 compiled bfloat16 products, one for each shape, of a megabyte or so: a process
# that ran tests of many lengths came to 3.6 GB. Read when torch is imported.
for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(name, "64")


# What is imported stays: the garbage collector need not look through torch's million objects while the tests
# are collected (3 s of 13), nor each time after them. Full collections, of which there were 60 for each
# process, took 20 s of the quick tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(700, 10, 100)
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What files leave behind does not wait for the next full collection once it is much: it became
    gigabytes."""
    if (nextitem is None or nextitem.path != item.path) and resident_bytes() > 1 << 30:
        gc.collect()


def descend(frames: int) -> None:
    if frames:
        descend(frames - 1)


@pytest.hookimpl(trylast=True)  # after pytest's own hook is there
def pytest_configure() -> None:
    """A test that fills the stack, with JSON of 100,000 brackets, may do so just when the garbage collector
    runs: there is no room for the finalizers of what other tests left behind, nor for pytest to tell of that,
    and it failed the test that happened to run."""
    tell = sys.unraisablehook

    def tell_where_there_is_room(unraisable: sys.UnraisableHookArgs) -> None:
        try:
            descend(100)
        except RecursionError:
            return
        tell(unraisable)

    sys.unraisablehook = tell_where_there_is_room


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighbours run in the same process, so that what a file's tests share is made once and not in each."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


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
