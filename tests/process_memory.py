"""How much memory this process has."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """What is in memory now. A fork has it from the start. 0 where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):  # Windows
        return 0
