"""What is known of every head and neuron after some windows of a corpus: arrays of a fixed size, and their
file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError
from glassgpt.files import atomic_write
from glassgpt.inspect.arrays import AnyArray, to_float64, to_host, to_numpy
from glassgpt.inspect.components.attention_kinds import KINDS, KindMeans
from glassgpt.weights.safetensors_file import TensorToWrite, open_tensors, size_of, write_tensors

FORMAT = "glassgpt atlas 1"
FILE = "atlas.safetensors"


class AtlasState:
    """Places are numbers of tokens in the order in which they were read; `tokens` has the ids."""

    def __init__(self, config: Config, k: int) -> None:
        L, H, M = config.n_layer, config.n_head, config.d_mlp
        self.config = config
        self.k = k
        self.tokens: list[int] = []
        self.starts: list[int] = []  # the place of each window's first token
        # Of neurons: the k highest activations, at most one in a window, and sums over all tokens.
        self.neuron_value = np.full((L, M, k), -np.inf, np.float32)
        self.neuron_place = np.full((L, M, k), -1, np.int64)
        self.neuron_sum = np.zeros((L, M))
        self.neuron_squares = np.zeros((L, M))
        self.neuron_active = np.zeros((L, M), np.int64)  # tokens at which it is above zero
        # Of heads: the k pairs that it attends to more than the layer's other heads do, by how much more.
        self.pair_value = np.full((L, H, k), -np.inf, np.float32)
        self.pair_weight = np.zeros((L, H, k), np.float32)
        self.pair_query = np.full((L, H, k), -1, np.int64)
        self.pair_key = np.full((L, H, k), -1, np.int64)
        self.kinds = KindMeans(L, H)

    def add_neurons(self, layer: int, activations: AnyArray, starts: Sequence[int]) -> None:
        """The activations (B, T, M) of windows whose tokens begin at these places."""
        self.neuron_sum[layer] += to_float64(sum_in_float64(activations))
        self.neuron_squares[layer] += to_float64(sum_in_float64(activations * activations))
        self.neuron_active[layer] += to_host((activations > 0).sum((0, 1)))
        best = activations.argmax(1)  # (B, M)
        values = to_numpy(activations.max(1) if isinstance(activations, np.ndarray) else activations.amax(1))
        places = to_host(best) + np.asarray(starts)[:, None]
        self._merge(layer, values.T, places.T)

    def _merge(self, layer: int, values: np.ndarray, places: np.ndarray) -> None:
        """Keep the best of (M, B) new values; of equal ones, those that were read first."""
        top, where = self.neuron_value[layer], self.neuron_place[layer]
        better = np.flatnonzero(values.max(1) > top[:, -1])
        if not len(better):
            return
        all_values = np.concatenate([top[better], values[better]], axis=1)
        all_places = np.concatenate([where[better], places[better]], axis=1)
        order = np.argsort(-all_values, axis=1, kind="stable")[:, : self.k]
        top[better] = np.take_along_axis(all_values, order, 1)
        where[better] = np.take_along_axis(all_places, order, 1)

    def add_attention(
        self, layer: int, weights: np.ndarray, first: int, start: int, masks: dict[str, np.ndarray]
    ) -> None:
        """The attention weights (H, T, T) of one window, whose tokens begin at index `first` and at this
        place. `masks` has its keys by kind (attention_kinds.py)."""
        self.kinds.add(layer, weights, masks)
        weights = weights[:, first:, first:]
        H, T = weights.shape[0], weights.shape[1]
        more = weights - (weights.sum(0) - weights) / max(1, H - 1)  # (H, T, T)
        best = more.reshape(H, -1).argmax(1)
        for head, place in enumerate(best):
            value = float(more[head].flat[place])
            query, key = divmod(int(place), T)
            self._keep_pair(layer, head, value, float(weights[head, query, key]), start + query, start + key)

    def _keep_pair(self, layer: int, head: int, value: float, weight: float, query: int, key: int) -> None:
        top = self.pair_value[layer, head]
        if not value > top[-1]:
            return
        at = int(np.searchsorted(-top, -np.float32(value), side="right"))  # after equal ones
        rows = {"value": value, "weight": weight, "query": query, "key": key}
        for array, new in ((getattr(self, f"pair_{name}"), new) for name, new in rows.items()):
            row = array[layer, head]
            row[at + 1 :] = row[at:-1].copy()
            row[at] = new

    def arrays(self) -> dict[str, np.ndarray]:
        names = (
            "neuron_value", "neuron_place", "neuron_sum", "neuron_squares", "neuron_active",
            "pair_value", "pair_weight", "pair_query", "pair_key",
        )  # fmt: skip
        counts = {"kind_sums": self.kinds.sums, "kind_counts": self.kinds.counts}
        tokens = np.array(self.tokens, np.int32)
        starts = np.array(self.starts, np.int64)
        return {**{name: getattr(self, name) for name in names}, **counts, "tokens": tokens, "starts": starts}

    def save(
        self, path: Path, about: Mapping[str, Any], more: Mapping[str, np.ndarray] | None = None
    ) -> None:
        arrays = self.arrays() | dict({} if more is None else more)
        out = [
            TensorToWrite(name, array.shape, array.dtype, _returning(array)) for name, array in arrays.items()
        ]
        metadata = {"format": FORMAT, "about": json.dumps({**about, "k": self.k})}
        with atomic_write(path, needs=size_of(out)) as part:
            write_tensors(part, out, metadata)


def sum_in_float64(x: AnyArray) -> AnyArray:
    """Over texts and tokens, (B, T, M) -> (M,); in float32 on a device that has no float64."""
    if isinstance(x, np.ndarray):
        return x.sum((0, 1), dtype=np.float64)
    return x.sum((0, 1)) if x.is_mps else x.sum((0, 1), dtype=double_of(x))


def double_of(x: AnyArray) -> Any:
    return x.new_empty(0).double().dtype


def _returning(array: np.ndarray) -> Any:
    return lambda: np.ascontiguousarray(array)


def read_state(path: Path, config: Config) -> tuple[AtlasState, dict[str, Any], dict[str, np.ndarray]]:
    """The state in a file, what it says about itself, and its other arrays."""
    tensors, metadata = open_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} is not an atlas. Make one: glassgpt atlas MODEL --data TEXTS -o FOLDER"
        )
    try:
        about = json.loads(metadata.get("about", ""))
        k = _whole(about["k"], 1, 1000)
        for name, size in (("neuron_value", config.d_mlp), ("pair_value", config.n_head)):
            if tensors[name].shape != (config.n_layer, size, k):  # before there is memory for as many
                raise ValueError(f"{name} has the shape {tensors[name].shape}")
        state = AtlasState(config, k)
        arrays = {name: np.array(tensor.read()) for name, tensor in tensors.items()}
        for name, expected in state.arrays().items():
            if name in ("tokens", "starts"):
                continue
            if arrays[name].shape != expected.shape or arrays[name].dtype != expected.dtype:
                raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}")
            if name.startswith("kind_"):
                setattr(state.kinds, name.removeprefix("kind_"), arrays.pop(name))
            else:
                setattr(state, name, arrays.pop(name))
        tokens = arrays.pop("tokens")
        if tokens.ndim != 1 or tokens.dtype != np.int32 or not _are_below(tokens, config.vocab_size):
            raise ValueError("its tokens are not ids of this model")
        starts = arrays.pop("starts")
        if starts.ndim != 1 or starts.dtype != np.int64 or not _are_steps(starts, len(tokens)):
            raise ValueError("its windows are not in order")
        state.starts = starts.tolist()
        for name in ("neuron_place", "pair_query", "pair_key"):
            places = getattr(state, name)
            if places.min() < -1 or places.max() >= len(tokens):
                raise ValueError(f"{name} lies outside of its tokens")
        state.tokens = tokens.tolist()
        return state, about, arrays
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a valid atlas: {error}. Make it again.") from None


def _whole(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def _are_steps(starts: np.ndarray, count: int) -> bool:
    """Whether these are the places of windows that follow each other, from 0 up to `count`."""
    if not len(starts):
        return count == 0
    return bool(starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] < count)


def _are_below(values: np.ndarray, size: int) -> bool:
    return not len(values) or bool(values.min() >= 0 and values.max() < size)


assert len(KINDS) == 5  # the file's kind_sums has a row for each: another number is another format
