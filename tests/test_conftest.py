"""tests/conftest.py: neither the folders beside the checkout nor the parent process affect the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import is_ours

ROOT = Path(__file__).resolve().parents[1]
STARTED = """
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
"""
STARTER = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import tests.conftest
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
signal.raise_signal(signal.SIGHUP)  # still ignored here
"""


def test_another_folder_named_shared_is_not_ours(tmp_path: Path) -> None:
    assert not is_ours(tmp_path / "shared")
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert not is_ours(tmp_path / "shared")
    (tmp_path / "shared" / "GLASSGPT").write_text("")
    assert is_ours(tmp_path / "shared")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_subprocesses_of_tests_get_default_signal_handlers() -> None:
    subprocess.run([sys.executable, "-c", STARTER, STARTED], cwd=ROOT, check=True, timeout=300)
