"""The result of a sweep: the metric of every patched run, and of the two plain ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from glassgpt.inspect.batches.named_array import Array, NamedArray

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult(NamedArray):
    """The metric with each patch: (prompt, layer, position), (prompt, layer, head) and so on."""

    clean: Array = None  # type: ignore[assignment]  # (prompt,): the metric of the clean texts
    corrupted: Array = None  # type: ignore[assignment]  # (prompt,)
    into: str = "corrupted"  # the text whose run was patched
    settings: str = ""  # what was swept, for a sweep that is resumed

    @property
    def base(self) -> Array:
        """(prompt,): the metric of the run without a patch."""
        return self.clean if self.into == "clean" else self.corrupted

    @property
    def other(self) -> Array:
        """(prompt,): the metric of the run that the values come from."""
        return self.corrupted if self.into == "clean" else self.clean

    def effect(self) -> NamedArray:
        """What each patch changes: the metric less that of the run without it."""
        change = self.values - self._per_prompt(self.base)
        return NamedArray(change, self.dims, self.labels, f"change of {self.name}")

    def normalized(self) -> NamedArray:
        """The mean effect over prompts, as a share of the way to the other run: 0 without a patch, 1 if the
        patch brings all of it."""
        change = self.values - self._per_prompt(self.base)
        whole = np.where(np.isnan(change), np.nan, self._per_prompt(self.other - self.base))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.nansum(change, axis=0) / np.nansum(whole, axis=0)
        found = self.without("prompt", share)
        return NamedArray(found.values, found.dims, found.labels, f"share of {self.name}")

    def figure(self) -> Figure:
        """The normalized effects as a heat map; the effects themselves if the two runs do not differ."""
        shares = self.normalized()
        return (shares if np.isfinite(shares.values).any() else self.effect()).figure()

    def _per_prompt(self, values: Array) -> Array:
        """(prompt,) as (prompt, 1, ...)."""
        return values.reshape(-1, *[1] * (self.values.ndim - 1))

    def more_arrays(self) -> dict[str, Array]:
        return {"clean": self.clean, "corrupted": self.corrupted}

    def more_metadata(self) -> dict[str, str]:
        return {"into": self.into, "sweep": self.settings}

    @classmethod
    def of_file(cls, values: Any, dims: Any, labels: Any, name: str, arrays: Any, metadata: Any) -> Self:
        clean, corrupted = (np.asarray(arrays[key], np.float64) for key in ("clean", "corrupted"))
        if clean.shape != values.shape[:1] or corrupted.shape != clean.shape:
            raise ValueError("the metrics of its texts do not fit its labels")
        return cls(values, dims, labels, name, clean, corrupted, metadata["into"], metadata["sweep"])
