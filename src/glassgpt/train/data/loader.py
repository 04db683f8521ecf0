"""Batches of token windows, in an order that is a pure function of the seed and the step.

The loader is stateless: sequence `r` of step `s` is window number `s * batch_size + r` of an endless sequence
of epochs, so a resumed run sees exactly the tokens it would have seen, with any number of processes.

An epoch splits the data into windows of `context` tokens to predict (plus one before them), laid end to end
from an offset that differs between epochs; the data wraps around. If a document starts in the last quarter of
a window, the next window starts there, with the document, instead of a little after it. So no token is left
out; those between such a start and the end of the previous window are seen twice, and so are the few where
the last window of an epoch meets the first.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glassgpt.errors import SettingError
from glassgpt.train.data.shards import Shards, Split


class BatchSource(Protocol):
    """Batches that are a function of the step, of a text (`Loader`) or of a task (`TaskBatches`)."""

    @property
    def identity(self) -> dict[str, int | str]: ...  # a run is not resumed with another

    @property
    def tokens_per_epoch(self) -> int: ...

    def prefetch(
        self, step: int, rank: int = 0, world_size: int = 1, device: torch.device | str = "cpu"
    ) -> AbstractContextManager[Iterator[Any]]: ...


class Loader:
    """Batches of windows. `shuffle=False` keeps the order of the data, for evaluation.

    `variants` (N, V) are N ways to rename the ids, of which each window gets one at random: music in another
    key, for example.
    """

    def __init__(
        self,
        shards: Shards | Split,
        context: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        variants: np.ndarray | None = None,
    ) -> None:
        if context < 1 or batch_size < 1:
            raise SettingError(f"batch size {batch_size} and context {context} must be at least 1.")
        if len(shards) < context + 1:
            raise SettingError(
                f"{shards.name}: {len(shards):,} tokens are fewer than one window of {context + 1:,}. "
                "Use more text or a shorter context."
            )
        self.shards = shards
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.variants = variants
        self._layout = WindowLayout(shards.document_starts, len(shards), context)
        self._ends = [0]  # epoch e is the windows ends[e] to ends[e + 1]
        self._epochs: dict[int, np.ndarray] = {}  # the window starts of the last few epochs used
        self._lock = threading.RLock()  # shared by the prefetching thread and the training loop

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Tensor:
        """The ids of one step, int64 (B, T + 1): this rank's part of the batch."""
        indices = self.batch_indices(rank, world_size)
        batch = torch.empty(len(indices), self.context + 1, dtype=torch.int64)  # (B, T + 1)
        self.fill(batch.numpy(), step, rank, world_size)
        return batch

    def batch_indices(self, rank: int = 0, world_size: int = 1) -> range:
        """Which sequences of each batch belong to this rank: parts as equal as possible, in order."""
        if not 0 <= rank < world_size:
            raise SettingError(f"rank {rank} is not below the world size {world_size}.")
        return range(self.batch_size * rank // world_size, self.batch_size * (rank + 1) // world_size)

    def fill(self, into: np.ndarray, step: int, rank: int = 0, world_size: int = 1) -> None:
        """Write the ids straight into an array, for example in pinned memory."""
        if step < 0:
            raise SettingError(f"step {step} does not exist; the first is 0.")
        indices = self.batch_indices(rank, world_size)
        first = step * self.batch_size
        starts = self.window_starts(first + indices.start, first + indices.stop)
        for window, start, sequence in zip(indices, starts, into, strict=True):
            self._read(int(start), sequence)
            if self.variants is not None:
                variant = hash_to_int(f"{self.seed}/variant/{first + window}") % len(self.variants)
                sequence[:] = self.variants[variant][sequence]

    def window_starts(self, first: int, last: int) -> np.ndarray:
        """The positions of windows number `first` to `last` (exclusive), counted over all epochs."""
        parts = []
        while first < last:
            with self._lock:
                epoch = self.find_epoch(first)
                windows = self._windows(epoch)
            base = self._ends[epoch]
            upto = min(last, base + len(windows))
            numbers = np.arange(first - base, upto - base, dtype=np.uint64)
            if self.shuffle:
                numbers = permute(numbers, len(windows), f"{self.seed}/{epoch}")
            parts.append(windows[numbers.astype(np.int64)])
            first = upto
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def find_epoch(self, window: int) -> int:
        """The epoch of a window. Earlier windows are counted first, which is fast: no token is read."""
        with self._lock:
            while self._ends[-1] <= window:
                self._ends.append(self._ends[-1] + len(self._windows(len(self._ends) - 1)))
                if not self.shuffle:  # all epochs are the same then
                    size = self._ends[1]
                    self._ends += range(2 * size, window + size + 1, size)
            return int(np.searchsorted(self._ends, window, "right")) - 1

    @property
    def windows_per_epoch(self) -> int:
        """The number of windows of the first epoch; the others have about the same number."""
        self.find_epoch(0)
        return self._ends[1]

    @property
    def tokens_per_epoch(self) -> int:
        return len(self.shards)

    @property
    def identity(self) -> dict[str, int | str]:
        """The values that must be the same for a resumed run to see the same tokens."""
        checksum = self.shards.checksum
        return {
            "data": self.shards.identity,
            **({} if checksum is None else {"checksum": checksum}),
            "context": self.context,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def prefetch(
        self,
        step: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        ahead: int = 2,
    ) -> Prefetch:
        """The batches from `step` on, on the device, read by a thread up to `ahead` steps in advance."""
        return Prefetch(self, step, rank, world_size, torch.device(device), ahead)

    def _windows(self, epoch: int) -> np.ndarray:
        epoch = epoch if self.shuffle else 0
        windows = self._epochs.get(epoch)
        if windows is None:
            first = hash_to_int(f"{self.seed}/{epoch}/first") % len(self.shards) if self.shuffle else 0
            windows = self._layout.windows(first)
            while len(self._epochs) >= 2:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = windows
        return windows

    def _read(self, start: int, into: np.ndarray) -> None:
        count = min(self.context + 1, len(self.shards) - start)
        into[:count] = self.shards.read(start, count)
        if count < len(into):  # the data wraps around
            into[count:] = self.shards.read(0, len(into) - count)


class WindowLayout:
    """Lays windows end to end around the data, from document start to document start."""

    def __init__(self, starts: np.ndarray, n_tokens: int, context: int) -> None:
        self.n_tokens = n_tokens
        self.context = context
        self.slack = context // 4
        self.starts = np.unique(starts).astype(np.int64)
        self._next, self._steps = self._find_followers()

    def _find_nearest(self, slots: np.ndarray) -> np.ndarray:
        """The index of the last document start up to each position; -1 if it is not near.

        The data wraps around: start number `n` is `starts[n % len(starts)]` after `n // len(starts)` laps.
        """
        count = len(self.starts)
        if count == 0:
            return np.full(len(slots), -1, dtype=np.int64)
        laps, rest = np.divmod(slots, self.n_tokens)
        numbers = laps * count + np.searchsorted(self.starts, rest, "right") - 1
        starts = self.starts[numbers % count] + numbers // count * self.n_tokens
        return np.where((numbers >= 0) & (starts > slots - max(1, self.slack)), numbers, -1)

    def _find_followers(self) -> tuple[np.ndarray, np.ndarray]:
        """For each document start: the next one at which a window starts, and how many windows until then.

        All chains are followed together, one window at a time. A chain that wraps around without meeting a
        document start has none (-1).
        """
        count = len(self.starts)
        follower = np.full(count, -1, dtype=np.int64)
        steps = np.zeros(count, dtype=np.int32)
        open_chains = np.arange(count)
        for step in range(1, -(-self.n_tokens // self.context) + 1):
            if len(open_chains) == 0:
                break
            nearest = self._find_nearest(self.starts[open_chains] + step * self.context)
            met = nearest >= 0
            follower[open_chains[met]] = nearest[met]
            steps[open_chains[met]] = step
            open_chains = open_chains[~met]
        return follower, steps

    def windows(self, first: int) -> np.ndarray:
        """The starts of windows that together cover every token, the first one at `first`."""
        end = first + self.n_tokens
        begins, counts = [first], []  # runs of windows end to end
        at = first
        lead = np.arange(at + self.context, end, self.context)
        nearest = self._find_nearest(lead)
        if (nearest >= 0).any():
            first_met = int(np.argmax(nearest >= 0))
            counts.append(first_met + 1)
            number = int(nearest[first_met])
            n_starts = len(self.starts)
            while True:
                laps, index = divmod(number, n_starts)
                at = int(self.starts[index]) + laps * self.n_tokens
                begins.append(at)
                follower, steps = int(self._next[index]), int(self._steps[index])
                if follower < 0 or at + steps * self.context >= end:
                    break
                counts.append(steps)
                number = follower + laps * n_starts
        if len(counts) < len(begins):
            counts.append(-(-(end - begins[-1]) // self.context))
        runs = np.array(counts, dtype=np.int64)
        within = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
        starts = np.repeat(np.array(begins, dtype=np.int64), runs) + within * self.context
        return np.asarray(starts % self.n_tokens)


def hash_to_int(key: str) -> int:
    """64 bits that depend only on the key, whatever the machine and library versions."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


ROUNDS = 6


def permute(numbers: np.ndarray, count: int, key: str) -> np.ndarray:
    """The positions of some of the numbers below `count` in a keyed shuffle, without building the whole list.

    A Feistel network permutes the numbers of an even number of bits whatever its round function; a result
    beyond `count` is fed back until it falls below ("cycle walking", Black and Rogaway 2002). numpy's own
    shuffle needs the whole list and may change between versions.
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(hash_to_int(f"{key}/{round_}")) for round_ in range(ROUNDS)]

    def encrypt(values: np.ndarray) -> np.ndarray:
        left, right = values >> half, values & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        return (left << half) | right

    result = encrypt(numbers.astype(np.uint64))
    beyond = np.flatnonzero(result >= count)
    while len(beyond):
        result[beyond] = encrypt(result[beyond])
        beyond = beyond[result[beyond] >= count]
    return result


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


class Prefetch:
    """An endless iterator of batches, read in the background. Close it, or use it in a `with` block.

    For CUDA the thread writes into pinned memory, from which the copy to the device overlaps with the
    computation. A buffer is reused only after its copy has finished.
    """

    def __init__(
        self, loader: Loader, step: int, rank: int, world_size: int, device: torch.device, ahead: int
    ) -> None:
        self._loader, self._rank, self._world_size, self._device = loader, rank, world_size, device
        self._cuda = device.type == "cuda"
        self._ready: queue.Queue[Tensor | BaseException] = queue.Queue()
        self._free: queue.Queue[tuple[Tensor, torch.cuda.Event | None] | None] = queue.Queue()
        size = (len(loader.batch_indices(rank, world_size)), loader.context + 1)
        for _ in range(max(1, ahead)):
            self._free.put((torch.empty(size, dtype=torch.int64, pin_memory=self._cuda), None))
        self._thread = threading.Thread(target=self._work, args=(step,), daemon=True, name="prefetch")
        self._thread.start()

    def _work(self, step: int) -> None:
        try:
            while (buffer := self._free.get()) is not None:
                batch, copied = buffer
                if copied is not None:
                    copied.synchronize()
                self._loader.fill(batch.numpy(), step, self._rank, self._world_size)
                self._ready.put(batch)
                step += 1
        except BaseException as error:  # raised in the thread that waits for a batch
            self._ready.put(error)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        ready = self._ready.get()
        if isinstance(ready, BaseException):
            self._ready.put(ready)
            raise ready
        if not self._cuda:
            self._free.put((torch.empty_like(ready), None))  # the old one belongs to the caller now
            return ready
        batch = ready.to(self._device, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(self._device))
        self._free.put((ready, copied))
        return batch

    def close(self) -> None:
        """Stop the thread."""
        self._free.put(None)
        self._thread.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
