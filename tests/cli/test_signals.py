"""Ctrl-C and SIGTERM at any moment: no traceback, the right exit code, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from glassgpt.cli import main
from glassgpt.cli.commands import info
from glassgpt.cli.signals import Signals

from .conftest import program

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")

# An audit hook sends the signal at some import after that of `glassgpt.cli`.
CHILD = """
import signal, sys
first, times, number = map(int, sys.argv[1:4])
del sys.argv[1:4]
seen = None

def watch(event, arguments):
    global seen
    if event == "import" and (seen is not None or arguments[0] == "glassgpt.cli"):
        seen = 1 if seen is None else seen + 1
        if first <= seen < first + times:
            signal.raise_signal(number)

sys.addaudithook(watch)
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent of the test run may ignore it
from glassgpt.__main__ import main
sys.exit(main())
"""


def interrupted_import(
    first: int, times: int = 1, number: int = signal.SIGINT, words: tuple[str, ...] = ("info", "gpt2")
) -> tuple[int, str]:
    _, env = program()
    command = [sys.executable, "-c", CHILD, str(first), str(times), str(int(number)), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("first", "times"), [(1, 1), (2, 30), (5, 1), (25, 1), (50, 2), (75, 1), (100, 30), (100_000, 1)]
)
def test_control_c_during_imports(first, times):
    """The last one comes too late: there are fewer imports."""
    assert interrupted_import(first, times) == (0 if first == 100_000 else 130, "")


@pytest.mark.parametrize("first", [80, 92, 100, 120, 150, 185])
def test_control_c_while_c_code_imports_numpy(first):
    """There numpy and ml_dtypes print the exception themselves, and raise an ImportError."""
    assert interrupted_import(first, words=("tokens", "x")) == (130, "")


def test_sigterm_during_imports():
    assert interrupted_import(75, 1, signal.SIGTERM) == (143, "")


def test_control_c_while_python_shuts_down():
    code = (
        "import atexit, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(lambda: signal.raise_signal(signal.SIGINT))\n"
        "from glassgpt.__main__ import main\n"
        "sys.exit(main(['--version']))\n"
    )
    _, env = program()
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("glassgpt ")


@pytest.fixture
def _own_handlers():
    """The parent of the test run may ignore signals."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_own_handlers")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_half_written_files_are_removed(glassgpt, tiny, tmp_path, monkeypatch, number, code):

    def fsync(part):
        if part.is_dir():  # the whole model, after its tokenizer's files
            signal.raise_signal(number)

    monkeypatch.setattr("glassgpt.files.write.fsync", fsync)
    answer = glassgpt("convert", tiny, tmp_path / "out")
    assert (answer.code, answer.out, answer.err) == (code, "", "\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("_own_handlers")
def test_a_second_signal_does_not_interrupt_the_cleanup(glassgpt, monkeypatch, tmp_path):
    def find(model):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            (tmp_path / "unwound").touch()

    monkeypatch.setattr(info, "find_model", find)
    assert glassgpt("info", "gpt2").code == 130
    assert (tmp_path / "unwound").exists()


@pytest.mark.usefixtures("_own_handlers")
def test_an_error_a_library_makes_of_a_signal_is_not_shown(glassgpt, monkeypatch):
    def find(model):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy: cannot load") from None

    monkeypatch.setattr(info, "find_model", find)
    answer = glassgpt("info", "gpt2")
    assert (answer.code, answer.err) == (130, "\n")


@pytest.mark.usefixtures("_own_handlers")
def test_the_third_signal_exits_at_once(monkeypatch):
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Signals() as signals:
        for _ in range(3):
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                assert ended == []
    assert (ended, signals.received) == ([143], signal.SIGTERM)


@pytest.mark.usefixtures("_own_handlers")
def test_an_ignored_signal_stays_ignored(glassgpt, monkeypatch):
    find = info.find_model

    def ignoring(model):
        signal.raise_signal(signal.SIGINT)
        return find(model)

    monkeypatch.setattr(info, "find_model", ignoring)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert glassgpt("info", "gpt2").code == 0
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_main_works_in_another_thread():
    import threading

    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]
