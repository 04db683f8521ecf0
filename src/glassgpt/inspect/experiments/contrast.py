"""`gpt.contrast(positive, negative, layer)`: a steering vector from two lists of texts, the difference of
their mean streams (Turner et al. 2023; Rimsky et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import atomic_write
from glassgpt.inspect.edits.edits import Steer
from glassgpt.inspect.experiments.embed import embed
from glassgpt.inspect.taps import check_index
from glassgpt.weights.safetensors_file import TensorToWrite, open_tensors, size_of, write_tensors

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

FORMAT = "glassgpt steering vector 1"


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A direction of the residual stream after a block."""

    vector: np.ndarray  # (C,)
    layer: int

    @property
    def step(self) -> str:
        return f"h.{self.layer}.resid_post"

    def edit(self, strength: float = 1.0, positions: tuple[int, ...] | None = None) -> Steer:
        """The edit that adds it to the stream, for `gpt.intervene`; at strength 1 by the whole difference."""
        return Steer(self.step, self.vector, strength, positions)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.vector if dtype is None else self.vector.astype(dtype)

    def __repr__(self) -> str:
        norm = float(np.linalg.norm(self.vector))
        return f"SteeringVector({self.step}, {len(self.vector)} numbers, norm {norm:.3g})"

    def save(self, path: str | Path) -> None:
        """Write a safetensors file for `SteeringVector.load`."""
        out = [TensorToWrite("vector", self.vector.shape, self.vector.dtype, lambda: self.vector)]
        with atomic_write(path, needs=size_of(out)) as part:
            write_tensors(part, out, {"format": FORMAT, "layer": str(self.layer)})

    @classmethod
    def load(cls, path: str | Path) -> SteeringVector:
        tensors, metadata = open_tensors(path)
        layer = metadata.get("layer", "")
        vector = np.array(tensors["vector"].read()) if "vector" in tensors else np.zeros(0)
        if metadata.get("format") != FORMAT or not layer.isdecimal() or vector.ndim != 1 or not len(vector):
            raise FileFormatError(f"{path} has no steering vector. Write one with .save(path).")
        return cls(vector.astype(np.float32), int(layer))


def contrast(
    gpt: TraceableModel, positive: Any, negative: Any, layer: int, pool: str = "last"
) -> SteeringVector:
    """See `GPT.contrast`."""
    layer = check_index("layer", layer, gpt.config.n_layer)
    means = [
        embed(gpt, texts, layer, pool, name).mean(axis=0, dtype=np.float64)
        for texts, name in ((positive, "positive"), (negative, "negative"))
    ]
    vector = (means[0] - means[1]).astype(np.float32)
    if not np.isfinite(vector).all() or not vector.any():
        raise SettingError("positive and negative have the same mean stream. Give texts that differ.")
    return SteeringVector(vector, layer)
