"""Batches, shared beginnings, other backends and the disk: none of them may change a number."""

from __future__ import annotations

import errno
import os
from contextlib import closing

import numpy as np
import pytest
import torch

from glassgpt.backends.protocol import ScoreRequest, shared_length
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.backends.torch.scoring import (
    CPU_LIMITS,
    MAX_ENDINGS,
    BatchLimits,
    batch_limits,
    gpu_limits,
    plan_batches,
)
from glassgpt.backends.torch.scoring_batches import pack_texts, pack_trees, scored_hidden
from glassgpt.backends.torch.threads import map_over_threads
from glassgpt.config import SIZES
from glassgpt.evaluate import ScoreCache, Scorer
from glassgpt.evaluate.scoring.score_cache import cache_key
from glassgpt.evaluate.scoring.windows import (
    continuation_windows,
    rolling_windows,
    strided_windows,
)
from tests.generate.tiny import TinyBackend


def ids_of(n: int, seed: int = 0, vocabulary: int = 250) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(1, vocabulary, size=n)]


def limited(model, limits: BatchLimits) -> TorchBackend:
    backend = TorchBackend(model.gpt.backend.model)
    backend.score_limits = limits
    return backend


def one_by_one(model, row: ScoreRequest) -> np.ndarray:
    logits = torch.from_numpy(model.gpt.backend.logits([row.ids[:-1].tolist()])[0]).double()
    every = logits.log_softmax(dim=-1)
    return np.array([float(every[i - 1, row.ids[i]]) for i in range(row.first, len(row.ids))])


# Rows.


def test_every_token_of_a_text_is_scored_once_with_the_window_full() -> None:
    ids = ids_of(53)
    for stride in (1, 7, 20):
        rows = list(rolling_windows(ids, 20, stride, prefix=0))
        assert [int(i) for row in rows for i in row.ids[row.first :]] == ids
        assert all(len(row.ids) == 21 for row in rows)
        assert rows[0].ids[0] == 0


def test_without_an_end_of_text_token_the_first_is_not_scored() -> None:
    rows = list(rolling_windows([5, 6, 7], 20, 20, prefix=None))
    assert [row.ids[row.first :].tolist() for row in rows] == [[6, 7]]
    assert list(rolling_windows([5], 20, 20, prefix=None)) == []


def test_strided_windows_begin_every_stride() -> None:
    ids = list(range(50))
    rows = list(strided_windows(ids, 20, 15))
    assert [(int(row.ids[0]), row.first, len(row.ids)) for row in rows] == [
        (0, 1, 20),
        (15, 5, 20),
        (30, 5, 20),
    ]
    apart = list(strided_windows(ids, 20, 20))
    assert [row.first for row in apart] == [1, 1, 1]  # the first of each window is given


def test_a_context_too_long_is_truncated_and_a_long_ending_takes_several_windows() -> None:
    (row,) = continuation_windows(range(30), [98, 99], n_positions=10)
    assert row.ids.tolist() == [*range(21, 30), 98, 99]
    assert row.first == 9
    rows = continuation_windows([1, 2], list(range(100, 125)), n_positions=10, exclude=True)
    assert [int(i) for row in rows for i in row.ids[row.first :]] == list(range(100, 125))
    assert [row.exclude for row in rows] == [True, False, False]


def test_shared_beginnings_end_before_the_first_scored_token() -> None:
    a, b = ScoreRequest(np.array([1, 2, 3, 4, 5]), 3), ScoreRequest(np.array([1, 2, 3, 9]), 3)
    assert shared_length([a, b]) == 3
    assert shared_length([a, ScoreRequest(np.array([1, 7, 3, 9]), 3)]) == 1


# Scores.


@pytest.mark.parametrize("limits", [CPU_LIMITS, BatchLimits(tokens=40, chunk=3)])
def test_groups_batches_and_chunks_change_nothing(random_bytes, limits) -> None:
    groups = []
    for seed in range(6):
        context = ids_of(5 + 17 * seed, seed)
        groups.append([continuation_windows(context, ids_of(n, seed + 50), 200)[0] for n in (1, 9, 4, 2)])
    groups += [[row] for row in rolling_windows(ids_of(150), 60, 60, prefix=256)]
    scorer = Scorer(limited(random_bytes, limits))
    batches = plan_batches(random_bytes.gpt.backend.model, groups, limits.tokens)
    assert any(batch.shared for batch in batches)
    for group, found in zip(groups, scorer.score(groups), strict=True):
        for row, scores in zip(group, found, strict=True):
            # float32 sums in another order; the largest logit here is about 10.
            np.testing.assert_allclose(scores.logprobs, one_by_one(random_bytes, row), atol=2e-5)


@torch.inference_mode()
def test_the_last_block_is_computed_for_the_wanted_tokens_only(random_words) -> None:
    """For few wanted tokens and for all, in plain rows and in trees: the vectors of the whole pass."""
    model = random_words.gpt.backend.model
    seen: list[int] = []
    handle = model.h[-1].mlp.register_forward_hook(lambda _m, given, _out: seen.append(given[0].numel()))
    groups = [
        [ScoreRequest(np.array([*ids_of(n, 1), *ids_of(4 + m, m)]), n + 2) for m in range(3)]
        for n in (30, 9, 17)
    ]
    rows = [row for group in groups for row in group]
    tree = pack_trees(groups, [30, 9, 17])
    assert tree.ids.shape == (3, 30 + 3 + 4 + 5)
    for sheet in (pack_texts([rows][0]), tree):
        seen.clear()
        found = scored_hidden(model, sheet)
        assert seen[0] < sheet.ids.size * model.config.n_embd / 2
        full = [model.hidden(torch.tensor(row.ids[None, :-1]))[0, row.first - 1 :] for row in rows]
        # float32 sums in another order; the vectors have a norm's size, about 1.
        torch.testing.assert_close(found, torch.cat(full), atol=2e-5, rtol=0)
    everything = [ScoreRequest(row.ids, 1) for row in rows if len(row.ids) == 36]
    full = [model.hidden(torch.tensor(row.ids[None, :-1]))[0] for row in everything]
    found = scored_hidden(model, pack_texts([everything][0]))
    torch.testing.assert_close(found, torch.cat(full), atol=2e-5, rtol=0)
    handle.remove()


def test_many_choices_become_several_trees(random_bytes) -> None:
    context = ids_of(20)
    group = [continuation_windows(context, ids_of(150, seed), 200)[0] for seed in range(20)]
    scorer = Scorer(random_bytes.gpt.backend)
    batches = list(plan_batches(random_bytes.gpt.backend.model, [group], CPU_LIMITS.tokens))
    assert sum(len(batch.texts) for batch in batches) == 20
    for batch in batches:
        sizes = [sum(len(text.request.ids) - 20 for text in part) for part in batch.groups]
        assert max(sizes) <= MAX_ENDINGS + 150
    (found,) = scorer.score([group])
    for row, scores in zip(group, found, strict=True):
        np.testing.assert_allclose(scores.logprobs, one_by_one(random_bytes, row), atol=2e-5)


def test_cores_and_torch_threads_change_nothing(random_bytes) -> None:
    groups = [[row] for row in rolling_windows(ids_of(900), 50, 50, prefix=256)]
    limits, before = BatchLimits(tokens=100, chunk=50), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = Scorer(limited(random_bytes, limits)).score(groups)
        torch.set_num_threads(3)
        together = Scorer(limited(random_bytes, limits)).score(groups)
        assert torch.get_num_threads() == 3  # as it was found
    finally:
        torch.set_num_threads(before)
    for (a,), (b,) in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a.logprobs, b.logprobs)


def test_cores_take_pieces_in_order_and_share_when_there_are_few() -> None:
    seen: dict[int, int] = {}

    def work(piece: int) -> int:
        seen[piece] = torch.get_num_threads()
        return piece**2

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert list(map_over_threads(work, range(30))) == [(i, i**2) for i in range(30)]
        assert set(seen.values()) == {1}
        assert list(map_over_threads(work, [7, 8])) == [(7, 49), (8, 64)]
        assert seen[7] == seen[8] == 2
        assert list(map_over_threads(work, [])) == []
        with closing(map_over_threads(work, range(30))) as left_early:
            assert next(left_early) == (0, 0)
        assert torch.get_num_threads() == 4
        with pytest.raises(ZeroDivisionError):
            list(map_over_threads(lambda piece: 1 // piece, [1, 0, 1]))
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_of_tokens_alike_the_first_is_the_likeliest() -> None:
    class Even(TinyBackend):
        def logits(self, batch):
            found = super().logits(batch)
            found[..., 3:6] = found.max() + 1
            return found

    groups = [[ScoreRequest(np.array([1, 2, token]), 2)] for token in (3, 4, 5)]
    assert [bool(one.greedy[0]) for (one,) in Scorer(Even()).score(groups)] == [True, False, False]


def test_float64_stays_float64(random_bytes) -> None:
    from glassgpt.weights import load_checkpoint

    exact = TorchBackend.load(load_checkpoint(random_bytes.folder), device="cpu", dtype="float64")
    (row,) = continuation_windows(ids_of(60), ids_of(40, 1), 200)
    ((found,),) = Scorer(exact).score([[row]])
    with torch.inference_mode():
        logits = exact.model(torch.tensor(row.ids[None, :-1]))[0].log_softmax(dim=-1)
    wanted = [float(logits[i - 1, row.ids[i]]) for i in range(row.first, len(row.ids))]
    np.testing.assert_allclose(found.logprobs, wanted, atol=1e-12)


def test_batches_follow_from_the_device(random_bytes) -> None:
    """A CPU's are small; a GPU's fill a part of its memory, and neither more nor less than makes sense."""
    assert batch_limits(random_bytes.gpt.backend.model) == CPU_LIMITS
    small = SIZES["gpt2"]
    roomy, tight, tiny = (gpu_limits(small, 2, free) for free in (130 * 2**30, 4 * 2**30, 2**20))
    assert roomy == BatchLimits(tokens=2**17, chunk=2**14)
    assert tight.tokens == 2**30 // (4 * 3072 * 2)
    assert tight.chunk == 2**30 // (2 * 4 * 50257)
    assert tiny == BatchLimits(tokens=1024, chunk=64)  # one row must fit in any case
    assert gpu_limits(small, 4, 4 * 2**30).tokens == tight.tokens // 2


def test_an_excluded_token_is_not_chosen(random_bytes) -> None:
    context = ids_of(12)
    logits = random_bytes.gpt.backend.logits([context])[0, -1]
    first, second = (int(i) for i in np.argsort(-logits)[:2])
    (row,) = continuation_windows(context, [second], 200, exclude=True)
    (plain,) = continuation_windows(context, [second], 200)
    barring = Scorer(random_bytes.gpt.backend, excluded=[first])
    ((with_bar,), (without,)) = barring.score([[row], [plain]])
    assert with_bar.greedy_allowed.tolist() == [True]
    assert with_bar.greedy.tolist() == [False]
    assert without.greedy_allowed.tolist() == [False]  # nobody asked
    ((free,),) = Scorer(random_bytes.gpt.backend, excluded=[second]).score([[row]])
    assert free.greedy_allowed.tolist() == [False]


def test_any_backend_will_do() -> None:
    backend = TinyBackend()
    groups = [[ScoreRequest(np.array([3, 5, 7, 2, 9]), 2), ScoreRequest(np.array([3, 5, 1]), 2)]]
    ((long, short),) = Scorer(backend).score(groups)
    logits = torch.from_numpy(backend.logits([[3, 5, 7, 2]])[0]).double().log_softmax(dim=-1)
    wanted = [float(logits[i - 1, t]) for i, t in ((2, 7), (3, 2), (4, 9))]
    np.testing.assert_allclose(long.logprobs, wanted, atol=1e-5)
    assert len(short.logprobs) == 1
    assert backend.fingerprint() == TinyBackend().fingerprint() != TinyBackend(seed=1).fingerprint()


# The disk.


class Killed(Exception):
    pass


def test_a_killed_run_resumes(random_bytes, tmp_path) -> None:
    path = tmp_path / "cache" / "x.scores"
    groups = [[row] for row in rolling_windows(ids_of(900), 50, 50, prefix=256)]
    limits = BatchLimits(tokens=100, chunk=50)
    full = Scorer(limited(random_bytes, limits)).score(groups)
    read: list[int] = []

    def killed_after_three(n: int) -> None:
        read.append(n)
        if len(read) == 3:
            raise Killed

    with pytest.raises(Killed):
        Scorer(limited(random_bytes, limits), ScoreCache(path)).score(groups, killed_after_three)
    with path.open("ab") as file:
        file.write(b"half a record")  # as a kill within a write leaves it
    again = Scorer(limited(random_bytes, limits), ScoreCache(path))
    assert 0 < len(again.uncached(groups)) < len(groups)
    rest: list[int] = []
    found = again.score(groups, rest.append)
    assert sum(rest) + sum(read) == sum(len(row.ids) for (row,) in groups)
    for (a,), (b,) in zip(full, found, strict=True):
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
        np.testing.assert_array_equal(a.greedy, b.greedy)
    third = Scorer(limited(random_bytes, limits), ScoreCache(path))
    assert third.uncached(groups) == []


def test_a_cache_that_cannot_be_written_is_in_memory(random_bytes, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    groups = [[row] for row in rolling_windows(ids_of(200), 50, 50, prefix=256)]
    cache = ScoreCache(tmp_path / "file" / "x.scores")  # as under a HOME that is not ours
    assert cache.problem is not None
    assert "x.scores cannot be written (" in cache.problem
    Scorer(random_bytes.gpt.backend, cache).score(groups)
    assert len(cache) == len(groups)
    full = ScoreCache(tmp_path / "x.scores")
    monkeypatch.setattr(os, "write", refuse)
    Scorer(random_bytes.gpt.backend, full).score(groups)
    assert len(full) == len(groups)
    assert full.problem is not None
    assert full.problem.endswith("(No space left on device)")


def refuse(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_damaged_record_and_a_foreign_file_are_recomputed(random_bytes, tmp_path) -> None:
    path = tmp_path / "x.scores"
    groups = [[row] for row in rolling_windows(ids_of(200), 50, 50, prefix=256)]
    Scorer(random_bytes.gpt.backend, ScoreCache(path)).score(groups)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert len(ScoreCache(path)) == len(groups) - 1
    path.write_bytes(b"something else")
    assert len(ScoreCache(path)) == 0


def test_windows_differ_by_tokens_first_and_excluded_tokens() -> None:
    ids = np.array([1, 2, 3, 4])
    keys = {
        cache_key(ScoreRequest(ids, 1)),
        cache_key(ScoreRequest(ids, 2)),
        cache_key(ScoreRequest(ids[:3], 1)),
        cache_key(ScoreRequest(ids, 1, True), b"x"),
    }
    assert len(keys) == 4


def test_another_model_or_dtype_has_another_fingerprint(random_bytes, random_words) -> None:
    from glassgpt.weights import load_checkpoint

    a = random_bytes.gpt.backend.fingerprint()
    coarse = TorchBackend.load(load_checkpoint(random_bytes.folder), device="cpu", dtype="bfloat16")
    assert len({a, coarse.fingerprint(), random_words.gpt.backend.fingerprint()}) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_says_what_the_cpu_says(random_bytes) -> None:
    from glassgpt.weights import load_checkpoint

    context = ids_of(40)
    groups = [[continuation_windows(context, ids_of(n, n), 200, exclude=True)[0] for n in (3, 8, 5)]]
    groups += [[row] for row in rolling_windows(ids_of(700), 200, 100, prefix=256)]
    there = TorchBackend.load(load_checkpoint(random_bytes.folder), device="cuda", dtype="float32")
    ours = Scorer(random_bytes.gpt.backend, excluded=[7]).score(groups)
    for here, found in zip(ours, Scorer(there, excluded=[7]).score(groups), strict=True):
        for a, b in zip(here, found, strict=True):
            # float32 on both, summed in other orders; the largest logit is about 10.
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
            assert (a.greedy == b.greedy).mean() > 0.95


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_in_bfloat16_batches_by_its_memory_and_says_nearly_the_same(random_words) -> None:
    from glassgpt.weights import load_checkpoint

    there = TorchBackend.load(load_checkpoint(random_words.folder), device="cuda", dtype="bfloat16")
    scorer, limits = Scorer(there), batch_limits(there.model)
    assert limits.tokens > 2**14
    groups = [[continuation_windows(ids_of(20), ids_of(n, n), 77)[0] for n in (3, 8, 5)]]
    groups += [[row] for row in rolling_windows(ids_of(700), 77, 50, prefix=256)]
    batches = list(plan_batches(there.model, groups, limits.tokens))
    assert len(batches) == 2  # all plain rows at once, and the tree
    ours = Scorer(random_words.gpt.backend).score(groups)
    gaps = [
        np.abs(a.logprobs - b.logprobs)
        for here, found in zip(ours, scorer.score(groups), strict=True)
        for a, b in zip(here, found, strict=True)
    ]
    # bfloat16 has eight bits; on a CPU the mean is 0.0014 here, and a tree read wrongly is far beyond.
    assert np.concatenate(gaps).mean() < 0.01
