"""How torch's CPU threads wait for each other. Must be set before torch is imported: OpenMP reads it once."""

from __future__ import annotations

import os
import sys

# GNU OpenMP, which torch's Linux wheels include, lets a waiting thread spin 300,000 times (3 to 15 ms) before
# it sleeps. If another program wants that core, it spins in the time slice of the very thread it waits for:
# with two busy loops on two cores, training ran at 3,200 tokens/s (456 at worst), and at 7,100 (6,200) with
# 1,000 spins (benchmarks/busy.py). That still bridges the gap between two matrix products: on an idle machine
# it is as fast as before, while 100 spins or none lose a tenth.
SPIN_COUNT = "1000"


def shorten_spin_wait() -> None:
    """Shorten it, unless torch is imported already or the user has set how threads wait."""
    is_set = "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not is_set and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
