"""`gpt.sweep(clean, corrupted, ...)`: activation patching, one activation at a time (Vig et al. 2020; Meng et
al. 2022).

A patched run differs from the plain one only from the patched block on, so it starts there, from the stream
of the plain run; and logits are computed only where the metric reads them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.inspect.arrays import AnyArray, copy, like, stack
from glassgpt.inspect.batches.metrics import make_metric
from glassgpt.inspect.batches.traces import MEMORY, as_bytes
from glassgpt.inspect.experiments.pairs import Into, PairRuns, Pairs
from glassgpt.inspect.experiments.sites import Sites, Unit
from glassgpt.inspect.experiments.sweep_result import SweepResult
from glassgpt.inspect.forward import Tap
from glassgpt.inspect.taps import resolve_name
from glassgpt.progress import Progress, no_progress

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

SAVE_SECONDS = 5.0  # between two writes of the file


class Sweep:
    """A sweep in progress. `save` is a file that holds what is done so far."""

    def __init__(self, pairs: Pairs, sites: Sites, save: Path | None) -> None:
        self.pairs, self.sites, self.save = pairs, sites, save
        self.values = np.full(sites.shape, np.nan)
        self.settings = self._describe()
        self._saved_at = time.monotonic()

    def _describe(self) -> str:
        pairs, sites = self.pairs, self.sites
        what = {
            "config": pairs.gpt.config.to_dict(),
            "clean": pairs.clean_ids,
            "corrupted": pairs.corrupted_ids,
            "into": pairs.into,
            "metric": [pairs.metric.name, pairs.metric.fingerprint()],
            "patch": sites.patch,
            "layers": sites.layers,
            "positions": sites.positions,
        }
        return json.dumps(what, sort_keys=True)

    def result(self) -> SweepResult:
        pairs, sites = self.pairs, self.sites
        return SweepResult(
            self.values, sites.dims, sites.labels, pairs.metric.name,
            pairs.clean_values, pairs.corrupted_values, pairs.into, self.settings,
        )  # fmt: skip

    def resume(self) -> None:
        """Take what an earlier sweep left in the file, if that was the same sweep of the same model."""
        if self.save is None or not self.save.exists():
            return
        earlier = SweepResult.load(self.save)
        pairs = self.pairs
        same_numbers = earlier.values.shape == self.values.shape and all(
            np.allclose(one, two, rtol=1e-3, atol=1e-3, equal_nan=True)
            for one, two in ((earlier.clean, pairs.clean_values), (earlier.corrupted, pairs.corrupted_values))
        )
        if earlier.settings != self.settings or not same_numbers:
            raise SettingError(
                f"{self.save} holds another sweep (other texts, metric, patch or model). "
                "Delete it, or give another file."
            )
        self.values[...] = earlier.values

    def write(self, at_once: bool = False) -> None:
        if self.save is not None and (at_once or time.monotonic() - self._saved_at > SAVE_SECONDS):
            self.result().save(self.save)
            self._saved_at = time.monotonic()

    def pending(self, pair: int, row: int) -> list[Unit]:
        return [u for u in self.sites.units(pair, row) if np.isnan(self.values[self.sites.place(u)])]

    def run(self, progress: Progress) -> SweepResult:
        rows = range(len(self.sites.layers))
        units = {pair: sum(len(self.pending(pair, row)) for row in rows) for pair in range(len(self.pairs))}
        left = [pair for pair, count in units.items() if count]
        try:
            with progress(f"patching {self.sites.patch}", sum(units.values())) as advance:
                for group in self.pairs.groups(left):
                    runs = {pair: self.pairs.run(pair) for pair in group}
                    for row, layer in enumerate(self.sites.layers):
                        todo = [unit for pair in group for unit in self.pending(pair, row)]
                        values = self._values_of(runs, layer, group) if todo else {}
                        count = self.pairs.rows_at_once(len(self.pairs.base_ids[group[0]]))
                        for start in range(0, len(todo), count):
                            chunk = todo[start : start + count]
                            found = self._patch(layer, chunk, runs, values)
                            for unit, value in zip(chunk, found, strict=True):
                                self.values[self.sites.place(unit)] = value
                            advance(len(chunk))
                            self.write()
        finally:  # Ctrl-C as well: the file has all that was computed
            self.write(at_once=True)
        return self.result()

    def _values_of(self, runs: dict[int, PairRuns], layer: int, group: list[int]) -> dict[int, AnyArray]:
        """The patched step of each pair's other text in one layer."""
        name = resolve_name(self.pairs.gpt.config, f"h.{layer}.{self.sites.kind.step}")
        found = {}
        for pair in group:
            found[pair] = runs[pair].other.read([name])[name]
            runs[pair].other.clear_cache()
        return found

    def _patch(
        self, layer: int, units: list[Unit], runs: dict[int, PairRuns], values: dict[int, AnyArray]
    ) -> np.ndarray:
        """The metric of a batch of runs with one patch each."""
        pairs = [unit.pair for unit in units]
        slices = [self.sites.slice_of(unit) for unit in units]
        step = self.sites.kind.step

        def replace(x: AnyArray) -> AnyArray:
            x = copy(x)
            for row, (unit, where) in enumerate(zip(units, slices, strict=True)):
                x[row][where] = like(values[unit.pair][where], x)
            return x

        def tap(name: str, x: AnyArray) -> AnyArray:
            return replace(x) if name == step else x

        taps: dict[int, Tap] = {layer: tap}
        first = layer
        if step in ("resid_pre", "resid_post"):
            first, taps = layer + (step == "resid_post"), {}
        streams = stack([runs[pair].base.residuals()[first] for pair in pairs])
        if not taps:
            streams = replace(streams)
        return self._finish(first, streams, pairs, taps)

    def _finish(self, first: int, streams: AnyArray, pairs: list[int], taps: dict[int, Tap]) -> np.ndarray:
        layers = range(first, self.pairs.gpt.config.n_layer)
        return self.pairs.values(
            self.pairs.forward.blocks(layers, streams, self.pairs.ids(pairs), taps), pairs
        )


def sweep(
    gpt: TraceableModel,
    clean: Any,
    corrupted: Any,
    patch: str = "resid_post",
    metric: Any = "logit_diff",
    *,
    answer: Any = None,
    minus: Any = None,
    continuation: Any = None,
    layers: Any = None,
    positions: Any = None,
    into: Into = "corrupted",
    memory: float = MEMORY,
    save: str | Path | None = None,
    progress: Progress = no_progress,
) -> SweepResult:
    """See `GPT.sweep`."""
    found = make_metric(metric, answer, minus, continuation)
    pairs = Pairs(gpt, clean, corrupted, found, into, as_bytes(memory))
    sites = Sites(gpt.config, patch, layers, positions, pairs.base_prompts, pairs.longest)
    path = None if save is None else Path(save)
    if path is not None and path.suffix != ".safetensors":
        raise UserError(f"{path} must end in .safetensors.")
    pairs.measure_both()
    work = Sweep(pairs, sites, path)
    work.resume()
    work.write(at_once=True)  # a file that cannot be written is found before the work
    return work.run(progress)
