"""The order of the windows: every one once an epoch, nothing left out, the same for everybody who asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.train.data.loader import Loader, WindowLayout, permute
from glassgpt.train.data.shards import Shards

few = settings(max_examples=60, deadline=None)


@st.composite
def token_streams(draw: st.DrawFn) -> tuple[Shards, int]:
    """Tokens numbered by their place, cut into documents anywhere, and a context that fits."""
    count = draw(st.integers(2, 400))
    starts = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=40))
    context = draw(st.integers(1, count - 1))
    return Shards.from_array(np.arange(count, dtype=np.uint16), sorted(starts)), context


@few
@given(st.integers(1, 3000), st.text(max_size=5))
def test_a_shuffle_is_a_permutation(count: int, key: str) -> None:
    shuffled = permute(np.arange(count), count, key)
    assert np.array_equal(np.sort(shuffled), np.arange(count))


def test_shuffles_are_even_and_differ_from_each_other() -> None:
    """Each of 5 things comes to each of 5 places in a fifth of the shuffles."""
    slots = np.array([permute(np.arange(5), 5, f"{key}") for key in range(4000)])
    for place in range(5):
        counts = np.bincount(slots[:, place].astype(int), minlength=5)
        # 800 expected with a deviation of sqrt(4000 * 0.2 * 0.8) = 25; five of them is one in a million.
        assert abs(counts - 800).max() < 126
    long = permute(np.arange(10_000), 10_000, "a")
    # Neighbours are no closer than chance has it: two random numbers are a third of the range apart.
    assert abs(np.diff(long.astype(np.int64))).mean() == pytest.approx(3333, rel=0.05)
    assert not np.array_equal(long, permute(np.arange(10_000), 10_000, "b"))


@few
@given(token_streams(), st.integers(0, 10_000))
def test_the_windows_of_an_epoch_leave_no_token_out(made: tuple[Shards, int], first: int) -> None:
    shards, context = made
    n = len(shards)
    layout = WindowLayout(shards.document_starts, n, context)
    starts = layout.windows(first % n)
    predicted = (starts[:, None] + np.arange(1, context + 1)) % n
    seen = np.bincount(predicted.ravel(), minlength=n)
    assert seen.min() >= 1
    # Twice is what lies between a document's start and the end of the window before it, and the seam.
    overlaps = (starts[:-1] + context - starts[1:]) % n
    assert overlaps.max(initial=0) < max(1, context // 4)
    documents = set(shards.document_starts.tolist())
    for overlap, start in zip(overlaps, starts[1:], strict=True):
        assert overlap == 0 or int(start) in documents
    assert len(starts) * context - overlaps.sum() - n < context


@few
@given(token_streams(), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_shows_each_window_once(made: tuple[Shards, int], rows: int, seed: int) -> None:
    shards, context = made
    loader = Loader(shards, context, rows, seed)
    ends = [0]
    for epoch in range(3):
        windows = loader._windows(epoch)
        ends.append(ends[-1] + len(windows))
        displayed = loader.window_starts(ends[-2], ends[-1])
        assert sorted(displayed.tolist()) == sorted(windows.tolist())
        assert loader.find_epoch(ends[-2]) == loader.find_epoch(ends[-1] - 1) == epoch


@few
@given(token_streams(), st.integers(1, 9), st.integers(0, 60), st.integers(1, 12))
def test_ranks_split_the_batch_and_change_nothing(
    made: tuple[Shards, int], rows: int, step: int, world: int
) -> None:
    shards, context = made
    loader = Loader(shards, context, rows, seed=5)
    full = loader.batch(step)
    assert full.shape == (rows, context + 1)
    assert full.dtype == torch.int64
    parts = [Loader(shards, context, rows, seed=5).batch(step, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat(parts), full)
    # The tokens are those that follow each other in the data, whose end is followed by its beginning.
    assert torch.equal((full[:, 1:] - full[:, :-1]) % len(shards), torch.ones_like(full[:, 1:]))


@few
@given(token_streams(), st.integers(1, 9), st.integers(0, 200))
def test_a_new_loader_continues_where_another_stopped(made: tuple[Shards, int], rows: int, step: int) -> None:
    shards, context = made
    old = Loader(shards, context, rows, seed=2)
    batches = [old.batch(s) for s in range(step, step + 4)]
    new = Loader(shards, context, rows, seed=2)
    for s in (3, 0, 2, 1):  # in any order
        assert torch.equal(new.batch(step + s), batches[s])


def test_the_order_is_fixed_for_ever() -> None:
    """A run must go on alike after an update of numpy, of Python, of this file."""
    loader = Loader(Shards.from_array(np.arange(1000, dtype=np.uint16), [0, 90, 340, 600]), 50, 4, seed=1)
    first_tokens = [loader.batch(step)[:, 0].tolist() for step in (0, 1, 7)]
    assert first_tokens == [[840, 390, 640, 440], [50, 860, 340, 960], [21, 371, 921, 821]]


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    shards = Shards.from_array(np.arange(1001, dtype=np.uint16))
    one, other = (Loader(shards, 10, 101, seed=seed) for seed in (1, 2))
    assert not torch.equal(one.batch(0), other.batch(0))
    # One long document is cut at other places in every epoch.
    assert set(one.batch(0)[:, 0].tolist()) != set(one.batch(1)[:, 0].tolist())


def test_windows_start_with_documents_where_they_can() -> None:
    """Documents of 20 tokens in windows of 100: every window but the first begins with one."""
    shards = Shards.from_array(np.arange(2000, dtype=np.uint16), np.arange(0, 2000, 20) + 7)
    loader = Loader(shards, 110, 4, seed=3)
    starts = loader._windows(0)
    assert (starts[1:] % 20 == 7).all()


def test_without_shuffling_the_data_comes_in_order() -> None:
    loader = Loader(Shards.from_array(np.arange(100, dtype=np.uint16)), 9, 4, shuffle=False)
    assert loader.windows_per_epoch == 12
    assert torch.cat([loader.batch(s) for s in range(3)])[:, 0].tolist() == list(range(0, 100, 9))
    assert torch.equal(loader.batch(3), loader.batch(0))
    assert torch.equal(loader.batch(3000), loader.batch(0))


def test_mistakes() -> None:
    shards = Shards.from_array(np.arange(10, dtype=np.uint16))
    with pytest.raises(SettingError, match="10 tokens are fewer than one window of 11"):
        Loader(shards, 10, 1)
    with pytest.raises(SettingError, match="at least 1"):
        Loader(shards, 4, 0)
    with pytest.raises(SettingError, match="rank 2 is not below the world size 2"):
        Loader(shards, 4, 4).batch(0, 2, 2)
    with pytest.raises(SettingError, match="step -1"):
        Loader(shards, 4, 4).batch(-1)


def test_prefetching_gives_the_same_batches() -> None:
    shards = Shards.from_array(np.arange(500, dtype=np.uint16))
    loader = Loader(shards, 16, 6, seed=4)
    with loader.prefetch(5, rank=1, world_size=2, ahead=3) as batches:
        got = [next(batches) for _ in range(20)]
    for number, batch in enumerate(got):  # none was written over by a later one
        assert torch.equal(batch, loader.batch(5 + number, 1, 2))


def test_a_failure_in_the_background_comes_to_the_front() -> None:
    shards = Shards.from_array(np.arange(500, dtype=np.uint16))
    shards.vocab_size = 400  # so that a read of higher ids fails
    with (
        Loader(shards, 16, 6).prefetch(0) as batches,
        pytest.raises(FileFormatError, match="vocabulary has 400"),
    ):
        list(batches)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_prefetching_to_a_gpu() -> None:
    shards = Shards.from_array(np.arange(60_000, dtype=np.uint16))
    loader = Loader(shards, 1024, 64, seed=4)
    with loader.prefetch(0, device="cuda", ahead=2) as batches:
        for step in range(40):  # copies run while the buffers are filled again
            assert torch.equal(next(batches).cpu(), loader.batch(step))
        pending = [next(batches) for _ in range(30)]
    for number, batch in enumerate(pending):
        assert torch.equal(batch.cpu(), loader.batch(40 + number))
