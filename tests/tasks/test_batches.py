"""Batches by length: every example once an epoch, targets only, a function of the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassgpt.errors import SettingError
from glassgpt.tasks.encode import Example
from glassgpt.train.data.task_batches import TaskBatches


def make_examples(count: int = 60) -> list[Example]:
    """Example i is of the tokens 100 i + 1, 100 i + 2, ..., of which all but the first two are the target."""
    lengths = np.random.default_rng(0).integers(4, 30, count)
    return [Example([100 * (i + 1) + t for t in range(length)], 2) for i, length in enumerate(lengths)]


def test_every_example_once_an_epoch_and_nothing_but_its_target() -> None:
    examples = make_examples()
    batches = TaskBatches.from_examples(examples, tokens_per_batch=128, seed=1)
    seen: list[int] = []
    for step in range(batches.batches_per_epoch):
        batch = batches.batch(step)
        assert batch.ids.numel() <= 128
        assert batch.ids.shape[1] % 8 == 0
        for ids, targets, mask in zip(batch.ids, batch.targets, batch.mask, strict=True):
            number = int(ids[0]) // 100 - 1
            seen.append(number)
            assert targets[mask].tolist() == examples[number].ids[2:]
            assert ids[: len(examples[number].ids) - 1].tolist() == examples[number].ids[:-1]
    assert sorted(seen) == list(range(len(examples)))


def test_a_batch_is_a_function_of_its_step_and_the_seed() -> None:
    one, other = (TaskBatches.from_examples(make_examples(), tokens_per_batch=128, seed=3) for _ in range(2))
    stream = one(0)
    first = [next(stream) for _ in range(2 * one.batches_per_epoch)]
    at = one.batches_per_epoch + 3
    assert torch.equal(first[at].ids, other.batch(at).ids)
    assert torch.equal(first[2].ids, other.batch(2).ids)
    last = TaskBatches.from_examples(make_examples(), tokens_per_batch=128, seed=4)
    assert not all(
        a.ids.shape == b.ids.shape and torch.equal(a.ids, b.ids)
        for a, b in zip(first, (last.batch(i) for i in range(len(first))), strict=True)
    )
    assert one.identity == other.identity != last.identity


def test_labels_and_a_limit_of_sequences() -> None:
    examples = [Example([7, i, 9], 3, i % 2) for i in range(10)]
    batches = TaskBatches.from_examples(examples, tokens_per_batch=1 << 12, max_sequences=4)
    found = batches.in_order()
    assert [len(batch) for batch in found] == [4, 4, 2]
    for batch in found:
        assert (batch.targets == batch.ids[:, 1] % 2).all()
        assert batch.mask.all()


def test_none_is_refused() -> None:
    with pytest.raises(SettingError, match="no example"):
        TaskBatches.from_examples([])
