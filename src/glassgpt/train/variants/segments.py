"""Consecutive segments, for a model with a memory: row r of a step continues row r of the step before."""

from __future__ import annotations

import numpy as np

from glassgpt.train.data.loader import Loader, hash_to_int


class SegmentLoader(Loader):
    """An epoch divides the data into `batch_size` streams of equal length, from an offset that differs
    between epochs, and each row reads one of them from end to end. The tokens that do not fill a segment at
    the end of a stream are left to other epochs. Stateless like `Loader`: a step's tokens follow from the
    seed and the step alone.
    """

    @property
    def segments_per_stream(self) -> int:
        """How many steps an epoch has. If there is less data than that, streams overlap."""
        return max(1, len(self.shards) // self.batch_size // self.context)

    def restarts(self, step: int) -> bool:
        """Whether the rows of a step begin anew, instead of continuing those of the step before."""
        return step % self.segments_per_stream == 0

    def window_starts(self, first: int, last: int) -> np.ndarray:
        step, row = np.divmod(np.arange(first, last, dtype=np.int64), self.batch_size)
        epoch, segment = np.divmod(step, self.segments_per_stream)
        stream = len(self.shards) * row // self.batch_size
        return np.asarray((self._offsets(epoch) + stream + segment * self.context) % len(self.shards))

    def _offsets(self, epochs: np.ndarray) -> np.ndarray:
        """Where the first stream of each epoch begins."""
        if not self.shuffle:
            return np.zeros_like(epochs)
        offsets = {
            epoch: hash_to_int(f"{self.seed}/{epoch}/first") % len(self.shards)
            for epoch in set(epochs.tolist())
        }
        return np.array([offsets[epoch] for epoch in epochs.tolist()], np.int64)

    def find_epoch(self, window: int) -> int:
        return window // self.batch_size // self.segments_per_stream

    @property
    def windows_per_epoch(self) -> int:
        return self.segments_per_stream * self.batch_size

    @property
    def identity(self) -> dict[str, int | str]:
        return {**super().identity, "order": "consecutive segments"}
