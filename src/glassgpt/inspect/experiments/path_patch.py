"""`gpt.path_patch(...)`: path patching (Wang et al. 2022; Goldowsky-Dill et al. 2023).

How much of a head's effect goes directly to some inputs of later heads? First, the sender's output is
replaced by that of the other text, while every other head keeps its output: so the change reaches the
receivers along the stream, and through MLPs unless these keep theirs as well. Second, the plain run gets the
receivers' inputs of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.inspect.arrays import AnyArray, copy, stack
from glassgpt.inspect.batches.metrics import make_metric
from glassgpt.inspect.batches.named_array import numbered
from glassgpt.inspect.batches.prompts import Position
from glassgpt.inspect.batches.traces import MEMORY, as_bytes
from glassgpt.inspect.experiments.pairs import Into, PairRuns, Pairs
from glassgpt.inspect.experiments.sites import Head
from glassgpt.inspect.experiments.sweep_result import SweepResult
from glassgpt.inspect.forward import Tap
from glassgpt.progress import Progress, no_progress

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel


class PathPatching:
    """Senders and receivers in pairs of texts. Each set of receivers is an experiment of its own."""

    def __init__(
        self,
        pairs: Pairs,
        receivers: Sequence[Sequence[Head]],
        freeze_mlps: bool,
        positions: list[int] | None,
    ) -> None:
        self.pairs, self.freeze_mlps, self.positions = pairs, freeze_mlps, positions
        self.sets = receivers  # one empty set: the logits
        self.receivers = [head for heads in receivers for head in heads]
        n_layer = pairs.gpt.config.n_layer
        self.last = max((head.layer for head in self.receivers), default=n_layer)

    def run(self, senders: Sequence[Head], progress: Progress) -> np.ndarray:
        """The metric of each pair with each sender and set of receivers, (pair, sender, set)."""
        values = np.full((len(self.pairs), len(senders), len(self.sets)), np.nan)
        with progress("patching paths", len(self.pairs) * len(senders)) as advance:
            for group in self.pairs.groups(range(len(self.pairs))):
                runs = {pair: self.pairs.run(pair) for pair in group}
                self._read_steps(runs, min(sender.layer for sender in senders))
                for layer in sorted({sender.layer for sender in senders}):
                    columns = [i for i, sender in enumerate(senders) if sender.layer == layer]
                    for units in self._chunks([(pair, i) for pair in group for i in columns]):
                        rows = [pair for pair, _ in units]
                        heads = [senders[i].head for _, i in units]
                        values[rows, [i for _, i in units]] = self._patch(layer, rows, heads, runs)
                        advance(len(units))
        return values

    def _read_steps(self, runs: dict[int, PairRuns], first: int) -> None:
        """What stays frozen, and what the senders get: each block is run once for both."""
        for layer in range(first, self.last):
            kept = [f"h.{layer}.attn.z", f"h.{layer}.mlp.proj"][: 1 + self.freeze_mlps]
            for pair in runs.values():
                pair.base.read(kept)
                pair.other.read(kept[:1])

    def _chunks(self, units: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        count = self.pairs.rows_at_once(len(self.pairs.base_ids[units[0][0]]))
        yield from (units[start : start + count] for start in range(0, len(units), count))

    def _patch(self, layer: int, rows: list[int], heads: list[int], runs: dict[int, PairRuns]) -> np.ndarray:
        """The metric of a batch, (B, set): the sender of row i is heads[i], all in one layer."""
        received: dict[tuple[int, str], AnyArray] = {}
        taps = {i: self._freeze(i, layer, rows, heads, runs, received) for i in range(layer, self.last)}
        forward, ids = self.pairs.forward, self.pairs.ids(rows)
        stream = self._streams(runs, rows, layer)
        if not self.receivers:
            return self.pairs.values(forward.blocks(range(layer, self.last), stream, ids, taps), rows)[
                :, None
            ]
        taps[self.last] = self._record(self.last, received)
        forward.blocks(range(layer, self.last + 1), stream, ids, taps)
        found = [self._receive_all(heads, layer, rows, runs, received) for heads in self.sets]
        return np.stack(found, axis=1)

    def _receive_all(
        self,
        heads: Sequence[Head],
        sent_from: int,
        rows: list[int],
        runs: dict[int, PairRuns],
        received: dict[tuple[int, str], AnyArray],
    ) -> np.ndarray:
        """The metric of the plain runs with the inputs of these heads, (B,)."""
        later = [head for head in heads if head.layer > sent_from]
        if not later:  # nothing that is sent reaches them
            return np.asarray(self.pairs.base_values[rows])
        layers = sorted({head.layer for head in later})
        taps = {i: self._receive([h for h in later if h.layer == i], received) for i in layers}
        blocks = range(layers[0], self.pairs.gpt.config.n_layer)
        stream = self._streams(runs, rows, layers[0])
        streams = self.pairs.forward.blocks(blocks, stream, self.pairs.ids(rows), taps)
        return self.pairs.values(streams, rows)

    def _streams(self, runs: dict[int, PairRuns], rows: list[int], layer: int) -> AnyArray:
        """The streams of the plain runs that enter a block, (B, T, C)."""
        by_pair = {pair: runs[pair].base.residuals()[layer] for pair in set(rows)}
        return stack([by_pair[pair] for pair in rows])

    def _steps(self, runs: dict[int, PairRuns], rows: list[int], name: str) -> AnyArray:
        """A step of the plain runs, one row each."""
        by_pair = {pair: runs[pair].base.read([name])[name] for pair in set(rows)}
        return stack([by_pair[pair] for pair in rows])

    def _freeze(
        self,
        layer: int,
        sent_from: int,
        rows: list[int],
        heads: list[int],
        runs: dict[int, PairRuns],
        received: dict[tuple[int, str], AnyArray],
    ) -> Tap:
        """In this block all heads keep their output; the senders, in theirs, get the other text's."""
        z_name, mlp_name = f"h.{layer}.attn.z", f"h.{layer}.mlp.proj"
        record = self._record(layer, received) if layer > sent_from else None

        def tap(name: str, x: AnyArray) -> AnyArray:
            if name == "attn.z":
                x = self._steps(runs, rows, z_name)
                if layer == sent_from:
                    x = self._send(
                        x, rows, heads, {p: runs[p].other.read([z_name])[z_name] for p in set(rows)}
                    )
            elif name == "mlp.proj" and self.freeze_mlps:
                x = self._steps(runs, rows, mlp_name)
            return x if record is None else record(name, x)

        return tap

    def _send(self, z: AnyArray, rows: list[int], heads: list[int], other: dict[int, AnyArray]) -> AnyArray:
        z = copy(z)
        for row, (pair, head) in enumerate(zip(rows, heads, strict=True)):
            where = slice(None) if self.positions is None else self.positions[pair]
            z[row, head, where] = other[pair][head, where]
        return z

    def _record(self, layer: int, received: dict[tuple[int, str], AnyArray]) -> Tap:
        wanted = {name for head in self.receivers if head.layer == layer for name in head.inputs}

        def tap(name: str, x: AnyArray) -> AnyArray:
            if name in wanted:
                received[layer, name] = x
            return x

        return tap

    def _receive(self, heads: Sequence[Head], received: dict[tuple[int, str], AnyArray]) -> Tap:
        layer = heads[0].layer

        def tap(name: str, x: AnyArray) -> AnyArray:
            mine = [head for head in heads if name in head.inputs]
            if not mine:
                return x
            x = copy(x)
            for head in mine:
                x[:, head.head] = received[layer, name][:, head.head]
            return x

        return tap


def path_patch(
    gpt: TraceableModel,
    clean: Any,
    corrupted: Any,
    sender: Head | Sequence[Head] | None = None,
    receivers: Head | Sequence[Head] | None = None,
    metric: Any = "logit_diff",
    *,
    answer: Any = None,
    minus: Any = None,
    continuation: Any = None,
    position: Position | Sequence[Position] | None = None,
    freeze_mlps: bool = False,
    separately: bool = False,
    into: Into = "clean",
    memory: float = MEMORY,
    progress: Progress = no_progress,
) -> SweepResult:
    """See `GPT.path_patch`."""
    config = gpt.config
    found = as_heads(receivers, "receivers")
    targets = [head.check(config, f"receivers[{i}]") for i, head in enumerate(found)]
    last = max((head.layer for head in targets), default=config.n_layer)
    if sender is None:
        if last == 0:
            raise SettingError("no head is before layer 0. Give receivers in a later layer.")
        senders = [Head(layer, head) for layer in range(last) for head in range(config.n_head)]
    else:
        senders = [head.check(config, f"sender[{i}]") for i, head in enumerate(as_heads(sender, "sender"))]
        if not senders:
            raise SettingError("sender is empty. Give a head, such as Head(5, 1), or leave it out for all.")
    for head in senders:
        if head.part is not None:
            raise SettingError(
                f"sender {head} names an input. A sender is a whole head: Head({head.layer}, {head.head})."
            )
        if head.layer >= last:
            raise SettingError(
                f"sender {head} is not before any receiver: the last is in layer {last}. "
                "Give an earlier sender, or later receivers."
            )
    pairs = Pairs(
        gpt, clean, corrupted, make_metric(metric, answer, minus, continuation), into, as_bytes(memory)
    )
    positions = None if position is None else pairs.base_prompts.positions(position)
    pairs.measure_both()
    sets = [[head] for head in targets] if separately and targets else [targets]
    values = PathPatching(pairs, sets, freeze_mlps, positions).run(senders, progress)
    labels = {"prompt": numbered(len(pairs)), "sender": tuple(map(str, senders))}
    dims: tuple[str, ...] = ("prompt", "sender")
    if sender is None:
        dims, values = ("prompt", "layer", "head"), values.reshape(len(pairs), last, config.n_head, len(sets))
        labels |= {"layer": numbered(last), "head": numbered(config.n_head)}
    if separately and targets:
        dims = (*dims, "receiver")
        labels["receiver"] = tuple(map(str, targets))
    else:
        values = values[..., 0]
    return SweepResult(
        values, dims, {dim: labels[dim] for dim in dims}, pairs.metric.name,
        pairs.clean_values, pairs.corrupted_values, pairs.into,
    )  # fmt: skip


def as_heads(given: Any, what: str) -> list[Head]:
    heads = [] if given is None else [given] if isinstance(given, Head) else given
    if not isinstance(heads, list | tuple) or not all(isinstance(head, Head) for head in heads):
        raise SettingError(f"{what} is {given!r:.80}; give heads, such as Head(5, 1) or [Head(8, 6, 'v')].")
    return list(heads)
