"""How torch's CPU threads wait for each other. To be said before torch is loaded: OpenMP asks only once."""

from __future__ import annotations

import os
import sys

# GNU's OpenMP, which torch's wheels for Linux bring along, lets a waiting thread spin for 300,000 turns (some
# 3 to 15 ms) before it sleeps. Where another program wants that core, it spins in the time of the very thread
# it waits for: beside two busy loops on two cores training made 3,200 tokens/s so (456 at worst), and 7,100
# (6,200) with 1,000 turns (benchmarks/busy.py). Those still bridge the gap between two products of matrices:
# alone it is as fast as before, while with 100 turns or none a tenth is lost.
SPINS = "1000"


def spin_briefly() -> None:
    """Unless torch is there already, or the user has said how threads shall wait."""
    said = "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not said and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = SPINS
