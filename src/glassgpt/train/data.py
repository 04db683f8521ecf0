"""What the model is shown: windows of tokens, chosen by a pure function of the seed and the step.

Nothing is remembered between steps, so a run that stops anywhere and goes on sees exactly the tokens it
would have seen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glassgpt.errors import FileFormatError, SettingError


class Tokens:
    """A long row of token ids: an array, or a file of them mapped into memory."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids

    @classmethod
    def open(cls, file: str | Path, dtype: type = np.uint16) -> Tokens:
        file = Path(file)
        if not file.is_file():
            raise SettingError(f"{file} does not exist. Name a file of token ids.")
        if file.stat().st_size % np.dtype(dtype).itemsize:
            raise FileFormatError(f"{file} is not a whole number of {np.dtype(dtype).name} token ids.")
        return cls(np.memmap(file, dtype=dtype, mode="r"))

    def __len__(self) -> int:
        return len(self.ids)

    def split(self, share: float) -> tuple[Tokens, Tokens]:
        """The beginning for training and the last `share` for validation."""
        cut = int(len(self.ids) * (1 - share))
        return Tokens(self.ids[:cut]), Tokens(self.ids[cut:])

    def batch(self, seed: int, step: int, rows: int, context: int) -> Tensor:
        """The (rows, context + 1) ids of one step: windows from places drawn for (seed, step)."""
        last = len(self.ids) - context - 1
        if last < 0:
            raise SettingError(
                f"{len(self.ids)} tokens are fewer than one window of {context + 1}. "
                "Give more text or a shorter context."
            )
        starts = np.random.Generator(np.random.Philox(key=[seed, step])).integers(0, last + 1, rows)
        return torch.from_numpy(np.stack([self.ids[s : s + context + 1] for s in starts]).astype(np.int64))
