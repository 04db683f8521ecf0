"""One case in a process of its own, and how it ended.

The process is forked from one that has torch imported already, so a case costs milliseconds and cannot harm
the next one. It is judged by what a user would see: a traceback (or the last wall's report of one), a death
by a signal, a command that neither ends nor listens to Ctrl-C, memory, and files that were there before.
"""

from __future__ import annotations

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

PATIENCE = 5.0  # seconds of work after which a case gets a Ctrl-C
LAST = 60.0  # seconds on the clock after that until it counts as hung
MEMORY = 3 << 30  # bytes a case may have resident
CRASHED = 70  # the exit code of the last wall in `main`


@dataclass(frozen=True)
class Ending:
    code: int  # negative: the signal that killed it
    output: str
    cpu: float
    memory: int
    interrupted: bool

    @property
    def fault(self) -> str | None:
        """What is wrong with it, or None."""
        if self.code == -signal.SIGKILL:
            return "hang"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        if "Traceback" in self.output or self.code == CRASHED:
            return "traceback"
        if self.code not in (0, 1, 2, 3) and not (self.interrupted and self.code in (130, 143)):
            return f"exit code {self.code}"
        if self.code == 2 and not self.output.strip():
            return "refused without a word"
        if self.memory > MEMORY:
            return f"{self.memory >> 20} MiB"
        return None


def run(work: Callable[[], int], folder: Path) -> Ending:
    """`work` in a fork, with its output in a file of `folder`'s parent."""
    log = folder.with_suffix(".log")
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _live(work, folder, log)
    interrupted_at: float | None = None
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
        if interrupted_at is None:
            if _cpu(child) > PATIENCE or _age(child) > LAST:
                os.kill(child, signal.SIGINT)
                interrupted_at = time.monotonic()
        elif time.monotonic() - interrupted_at > LAST:
            os.kill(child, signal.SIGKILL)
    output = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    log.unlink()
    return Ending(
        os.waitstatus_to_exitcode(status), output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10,
        interrupted_at is not None,
    )  # fmt: skip


def _live(work: Callable[[], int], folder: Path, log: Path) -> None:
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for target, source in ((0, null), (1, file), (2, file)):
            os.dup2(source, target)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))  # not pytest's
        warnings.resetwarnings()  # nor its way of making errors of them
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
