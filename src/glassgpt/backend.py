"""The seam between the engine and whatever computes logits: torch on any device, or the native CPU engine.

A backend owns the weights and one preallocated cache of `rows` rows. It keeps no other state: which row
belongs to whom, and how long each row is, is the engine's business and is passed in on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from glassgpt.config import Config

# A numpy array, or an array of the backend's own device that follows the array API (a torch tensor).
Array = Any


class Backend(Protocol):
    config: Config
    rows: int  # how many sequences the cache holds side by side
    context: int  # how many positions a row holds, at most config.n_positions

    def prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> Array:
        """Forget what the rows held and read a prompt into each, at positions 0, 1, ...

        Returns the logits after each prompt's last token, (len(rows), V), float32. What a prompt gives must
        not depend on the others.
        """
        ...

    def decode(self, rows: Sequence[int], ids: Array, positions: Sequence[int]) -> Array:
        """Read one token per row at its position; the logits after each, (len(rows), V), float32.

        `ids` are host integers or an array that `sample` left on the device: nothing waits for it.
        """
        ...

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        """Make `rows` hold the first `length` positions of `source`: samples and beams share a prompt."""
        ...

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        """All logits of sequences of any lengths, without the cache: (B, longest, V), float32.

        Rows shorter than the longest are filled up at the end; what stands there is meaningless.
        """
        ...

    def recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, perhaps made quicker for being called at every step.

        Its arguments are arrays with a row for each sequence, nested tuples of them, and plain values; it
        returns a tuple of such arrays. No row may depend on another.
        """
        ...

    def array(self, values: np.ndarray) -> Array:
        """Move host values to where the logits live."""
        ...

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        """Start copying to the host; calling the result waits for the copy."""
        ...

    def with_rows(self, rows: int) -> Backend:
        """The same weights with another cache, for this number of sequences."""
        ...
