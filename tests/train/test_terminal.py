"""`glassgpt train` in a real terminal: figures that move, and Ctrl-C, which leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassgpt.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs a pty")]
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "a.txt").write_text("".join(f"It was day {n}, and we went on.\n" for n in range(400)))
    assert main(["prepare", str(folder / "a.txt"), "-o", str(folder / "shards"), "--workers", "1"]) == 0
    return folder / "shards"


class Terminal:
    """A command in a terminal of its own, and what it has written so far."""

    def __init__(self, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glassgpt", *words], stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.written = b""

    def read_until(self, sign: bytes | None) -> None:
        """Until it was written; None: until the end."""
        deadline = time.monotonic() + 300
        while sign is None or sign not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            try:
                part = os.read(self.ours, 65536)
            except OSError:  # Linux says so where others give nothing
                part = b""
            if not part:
                assert sign is None, self.written[-2000:]
                return
            self.written += part

    def end(self) -> int:
        self.read_until(None)
        os.close(self.ours)
        return self.process.wait(timeout=300)


@pytest.mark.parametrize(
    ("moment", "times", "codes"),
    [(b"trying a few steps", 1, {130}), (b"grad norm", 1, {0}), (b"grad norm", 2, {0, 130})],
    ids=["while it plans", "while it trains", "twice"],
)
def test_ctrl_c_leaves_the_terminal_as_it_was(
    shards: Path, tmp_path: Path, moment: bytes, times: int, codes: set[int]
) -> None:
    terminal = Terminal(
        "train", "--data", str(shards), "--out", str(tmp_path / "run"), "--steps", "100000",
        "--device", "cpu", "--shape", "1x32x2", "--context", "32", "--batch-size", "2",
        "--eval-batches", "1", "--save-every", "100000",
        "--eval-every", "100000",
    )  # fmt: skip
    terminal.read_until(moment)
    for _ in range(times):
        terminal.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert terminal.end() in codes
    assert HIDDEN in terminal.written
    assert terminal.written.rindex(SHOWN) > terminal.written.rindex(HIDDEN)
    assert b"Traceback" not in terminal.written
    if codes == {0}:
        said = terminal.written.decode()
        assert "training" in said
        assert "/100,000" in said
        assert "▁" in said
        assert "stopped and saved; continue with --resume" in said
