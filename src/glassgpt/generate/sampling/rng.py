"""The random numbers of one sample: a fixed function of (seed, sample, step), whatever else runs.

Philox is a counter-based generator (Salmon 2011): its key selects the stream. The raw bits are converted to
floats here: numpy guarantees the bits across versions, but not what `Generator` makes of them.
"""

from __future__ import annotations

import numpy as np


class UniformRNG:
    """Uniform numbers in [0, 1), read forwards."""

    def __init__(self, seed: int, sample: int) -> None:
        self._bits = np.random.Philox(key=(sample << 64) | seed)
        self._start = 0  # the step of the first number in `_ahead`
        self._ahead = np.empty(0)

    def window(self, start: int, length: int) -> np.ndarray:
        """The numbers of steps start, start + 1, ...; `start` never goes back."""
        missing = start + length - self._start - len(self._ahead)
        if missing > 0:
            fresh = (self._bits.random_raw(missing) >> np.uint64(11)) * 2.0**-53  # 53 bits, as in a float64
            self._ahead = np.concatenate([self._ahead, fresh])
        self._ahead = self._ahead[start - self._start :]
        self._start = start
        return self._ahead[:length]
