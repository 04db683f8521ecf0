"""Batches of a task's examples: sequences of about one length together, so that little is padded.

The examples are sorted by length, shuffled anew in every epoch among those of one length, and cut into
batches of at most `tokens_per_batch`. The lengths do not change from epoch to epoch, so neither do the cuts:
each epoch has the same number of batches, and the batch of a step is a function of the step and the seed
alone, which makes a resumed run exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from glassgpt.errors import SettingError
from glassgpt.tasks.encode import Example
from glassgpt.train.objectives.objective import Batch

PAD_TO = 8  # the length of a batch is a multiple of this: few shapes, and aligned matrix products


class TaskBatches:
    """The examples of a task as an endless sequence of batches.

    `flat` has the ids of all examples, one after the other; `starts` says where each example begins, and
    `targets` where in it the target begins. With `labels` a batch has one target for each sequence instead.
    """

    def __init__(
        self,
        flat: NDArray[np.integer],
        starts: NDArray[np.integer],
        targets: NDArray[np.integer],
        labels: NDArray[np.integer] | None = None,
        *,
        tokens_per_batch: int = 16_384,
        seed: int = 0,
        pad_id: int = 0,
        max_sequences: int | None = None,
    ) -> None:
        self.flat = flat.astype(np.int64)
        self.starts = starts.astype(np.int64)  # (N + 1): the last is the end
        self.targets = targets.astype(np.int64)  # (N)
        self.labels = None if labels is None else labels.astype(np.int64)
        self.lengths = np.diff(self.starts)  # (N)
        self.seed, self.pad_id = seed, pad_id
        if len(self.lengths) == 0:
            raise SettingError("there is no example to learn from.")
        self.cuts = cut_by_length(np.sort(self.lengths), tokens_per_batch, max_sequences)
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def from_examples(cls, examples: Sequence[Example], **options: int | None) -> TaskBatches:
        flat = np.array([token for example in examples for token in example.ids], np.int64)
        starts = np.cumsum([0, *(len(example.ids) for example in examples)])
        targets = np.array([example.target_start for example in examples], np.int64)
        labels = None
        if examples and examples[0].label is not None:
            labels = np.array([example.label for example in examples], np.int64)
        return cls(flat, starts, targets, labels, **options)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.lengths)

    @property
    def batches_per_epoch(self) -> int:
        return len(self.cuts)

    @cached_property
    def mean_tokens(self) -> int:
        """Tokens of a batch, with its padding, on average."""
        longest = np.sort(self.lengths)[[stop - 1 for _, stop in self.cuts]]
        sizes = np.array([stop - start for start, stop in self.cuts])
        return int((sizes * (-(-longest // PAD_TO) * PAD_TO)).mean())

    @property
    def tokens_per_epoch(self) -> int:
        """With padding."""
        return self.batches_per_epoch * self.mean_tokens

    @property
    def identity(self) -> dict[str, int | str]:
        """The values that determine the batches: a run is not resumed with others."""
        return {"data": self.digest, "seed": self.seed, "batches": len(self.cuts)}

    @cached_property
    def digest(self) -> str:
        """Changes with any example."""
        digest = hashlib.sha256()
        for array in (self.flat, self.starts, self.targets, self.labels):
            digest.update(b"" if array is None else array.tobytes())
        return digest.hexdigest()

    def prefetch(
        self, step: int, rank: int = 0, world_size: int = 1, device: torch.device | str = "cpu"
    ) -> AbstractContextManager[Iterator[Batch]]:
        """As `Loader.prefetch`, for one process; nothing is read, so nothing is read ahead."""
        return nullcontext(self(step))

    def __call__(self, step: int) -> Iterator[Batch]:
        """The batches from a step on."""
        while True:
            yield self.batch(step)
            step += 1

    def batch(self, step: int) -> Batch:
        epoch, at = divmod(step, self.batches_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, *self._shuffle(epoch))
        _, order, batch_order = self._epoch
        return self.collate(order[slice(*self.cuts[batch_order[at]])])

    def in_order(self) -> list[Batch]:
        """Each example once, by length: for an evaluation."""
        order = np.argsort(self.lengths, kind="stable")
        return [self.collate(order[slice(*cut)]) for cut in self.cuts]

    def _shuffle(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The examples by length, those of one length in random order; and the batches in random order."""
        random = np.random.default_rng((self.seed, epoch))
        shuffled = random.permutation(len(self.lengths))
        order = shuffled[np.argsort(self.lengths[shuffled], kind="stable")]
        return order, random.permutation(len(self.cuts))

    def collate(self, chosen: NDArray[np.int64]) -> Batch:
        """The chosen examples as one batch, padded at the end."""
        lengths = self.lengths[chosen][:, None]  # (B, 1)
        longest = int(lengths.max())
        width = -(-longest // PAD_TO) * PAD_TO
        if self.labels is None:
            width += 1  # the last token is only a target
        column = np.arange(width)[None]  # (1, T + 1)
        index = np.minimum(self.starts[chosen][:, None] + column, len(self.flat) - 1)
        tokens = torch.from_numpy(np.where(column < lengths, self.flat[index], self.pad_id))
        if self.labels is not None:
            labels = torch.from_numpy(self.labels[chosen])
            return Batch(tokens, labels, torch.ones_like(labels, dtype=torch.bool))
        counts = (column >= self.targets[chosen][:, None]) & (column < lengths)
        return Batch(tokens[:, :-1], tokens[:, 1:], torch.from_numpy(counts)[:, 1:])


def cut_by_length(
    lengths: NDArray[np.integer], tokens: int, max_sequences: int | None = None
) -> list[tuple[int, int]]:
    """Where to cut sorted lengths into batches whose padded tokens are at most `tokens`."""
    padded = -(-lengths // PAD_TO) * PAD_TO
    cuts, first = [], 0
    for at in range(len(padded)):
        size = at + 1 - first
        if at > first and (
            size * padded[at] > tokens or (max_sequences is not None and size > max_sequences)
        ):
            cuts.append((first, at))
            first = at
    return [*cuts, (first, len(padded))]
