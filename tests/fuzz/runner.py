"""Runs one case in a process of its own, and classifies the outcome.

The process is forked from one that has imported torch, so a case takes milliseconds and cannot affect the
next. A fault is what a user would notice: a traceback (or the report of an internal error), death by signal,
a command that neither ends nor reacts to Ctrl-C, memory, and changed files.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.process_memory import resident_bytes

CPU_LIMIT = 5.0  # seconds of CPU time after which a case gets a Ctrl-C
HANG_LIMIT = 60.0  # seconds on the clock after that until it counts as hung
MEMORY = 2 << 30  # bytes a case may take
INTERNAL_ERROR = 70  # exit code


@dataclass(frozen=True)
class Outcome:
    code: int  # negative: the signal that killed it
    output: str
    cpu: float
    memory: int
    interrupted: bool

    @property
    def fault(self) -> str | None:
        """The fault, or None."""
        if self.code == -signal.SIGKILL:
            return "hang"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        if "Traceback" in self.output or self.code == INTERNAL_ERROR:
            return "traceback"
        if self.code not in (0, 1, 2, 3) and not (self.interrupted and self.code in (130, 143)):
            return f"exit code {self.code}"
        if self.code == 2 and not self.output.strip():
            return "error without a message"
        if self.memory > MEMORY:
            return f"{self.memory >> 20} MiB"
        return None


def run(work: Callable[[], int], folder: Path) -> Outcome:
    """Run `work` in a fork, with its output in a file beside `folder`."""
    log = folder.with_suffix(".log")
    sys.stdout.flush()
    sys.stderr.flush()
    inherited = resident_bytes()
    child = os.fork()
    if child == 0:
        _run_child(work, folder, log)
    interrupted_at: float | None = None
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
        if interrupted_at is None:
            if _cpu(child) > CPU_LIMIT or _age(child) > HANG_LIMIT:
                os.kill(child, signal.SIGINT)
                interrupted_at = time.monotonic()
        elif time.monotonic() - interrupted_at > HANG_LIMIT:
            os.kill(child, signal.SIGKILL)
    output = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    log.unlink()
    return Outcome(
        os.waitstatus_to_exitcode(status), output, usage.ru_utime + usage.ru_stime,
        max(0, (usage.ru_maxrss << 10) - inherited), interrupted_at is not None,
    )  # fmt: skip


def _run_child(work: Callable[[], int], folder: Path, log: Path) -> None:
    code = 99
    gc.freeze()  # what other tests left behind is not ours to finalize: its threads are not here
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for target, source in ((0, null), (1, file), (2, file)):
            os.dup2(source, target)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))  # not pytest's
        warnings.resetwarnings()  # nor its error filter
        os.chdir(folder)
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)


_TICK = os.sysconf("SC_CLK_TCK")


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _cpu(process: int) -> float:
    fields = _stat(process)
    return (int(fields[11]) + int(fields[12])) / _TICK


def _age(process: int) -> float:
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - int(_stat(process)[19]) / _TICK
