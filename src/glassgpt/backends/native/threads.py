"""How many threads fit this machine: its cores, as far as this process may use them."""

from __future__ import annotations

import os
from pathlib import Path

from glassgpt.errors import SettingError

VARIABLE = "GLASSGPT_THREADS"
MOST = 64  # a step of a GPT-2 has no work for more


def thread_count() -> int:
    """$GLASSGPT_THREADS, or $OMP_NUM_THREADS, or the cores of this process (a container may limit them)."""
    for name in (VARIABLE, "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").split(",")[0].strip()
        if value.isdecimal() and len(value) <= 4 and 1 <= int(value) <= 1024:
            return int(value)
        if value and name == VARIABLE:
            raise SettingError(f"{VARIABLE} is {value[:40]!r}; give a whole number from 1 to 1024.")
    return max(1, min(MOST, _cores(), _quota()))


def _cores() -> int:
    """Cores, not hardware threads: two threads of one core would wait for each other."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
    siblings = set()
    for cpu in allowed:
        try:
            siblings.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return len(allowed)
    return len(siblings)


def _quota() -> int:
    """The limit of a container, in whole cores."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return MOST if quota == "max" else max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return MOST
