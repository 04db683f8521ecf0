"""Cached = uncached, padded = single, batched = alone.

Two orders of summation of the same float32 numbers differ; ROUNDING bounds that for these tiny models
(logits of order 1, some thousand operations deep: 2^-24 * 1000 is 6e-5).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.model import GPT2, Cache

ROUNDING = 6e-5


@torch.no_grad()
def test_one_token_at_a_time_equals_all_at_once(small: GPT2) -> None:
    ids = torch.randint(0, 101, (2, 48))
    entire = small(ids)
    cache = Cache.empty(small.config, 2, 48, ids.device, torch.float32)
    for t in range(48):
        step = small(ids[:, t : t + 1], torch.full((2, 1), t), cache.view(slice(0, 2), t + 1))
        torch.testing.assert_close(step[:, 0], entire[:, t], atol=ROUNDING, rtol=0)


@torch.no_grad()
def test_a_new_token_computes_one_column_only(small: GPT2) -> None:
    """The Illustrated GPT-2: earlier tokens are not computed again when one is added."""
    ids = torch.randint(0, 101, (1, 9))
    cache = Cache.empty(small.config, 1, 48, ids.device, torch.float32)
    small(ids, cache=cache)
    seen: dict[str, tuple[int, ...]] = {}

    def watch(name: str, x: torch.Tensor) -> torch.Tensor:
        seen[name] = tuple(x.shape)
        return x

    before = cache.kv[..., :9, :].clone()
    small(torch.tensor([[3]]), torch.tensor([[9]]), cache.view(slice(0, 1), 10), watch)
    assert seen["h.2.attn.q"] == (1, 4, 1, 8)  # one query ...
    assert seen["h.2.attn.scores"] == (1, 4, 1, 10)  # ... against ten keys
    assert seen["h.2.mlp.fc"] == (1, 1, 128)
    assert seen["logits"] == (1, 1, 101)
    assert torch.equal(cache.kv[..., :9, :], before)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cached", [False, True])
def test_padded_equals_single(small: GPT2, side: str, cached: bool) -> None:
    rows = [torch.randint(0, 101, (n,)) for n in (3, 17, 1, 40)]
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    positions = torch.full_like(ids, -1)
    for i, row in enumerate(rows):
        where = slice(longest - len(row), None) if side == "left" else slice(0, len(row))
        ids[i, where] = row
        positions[i, where] = torch.arange(len(row))
    cache = Cache.empty(small.config, len(rows), 48, ids.device, torch.float32) if cached else None
    together = small(ids, positions, cache)
    assert together.isfinite().all()
    for i, row in enumerate(rows):
        torch.testing.assert_close(together[i][positions[i] >= 0], small(row[None])[0], atol=ROUNDING, rtol=0)
    if cache is None:
        return
    # One more token for each ragged row, from the cache that the padded batch filled.
    new = torch.randint(0, 101, (len(rows), 1))
    lengths = torch.tensor([[len(row)] for row in rows])
    grown = small(new, lengths, cache)
    for i, row in enumerate(rows):
        alone = small(torch.cat([row, new[i]])[None])[0, -1]
        torch.testing.assert_close(grown[i, 0], alone, atol=ROUNDING, rtol=0)


def play(backend: TorchBackend, rows: dict[int, list[int]], steps: int) -> dict[int, list[np.ndarray]]:
    """Prefill and grow some rows side by side with fixed tokens; the logits each row saw."""
    seen = {row: [backend.extend([row], [ids])[0]] for row, ids in rows.items()}
    for step in range(steps):
        numbers = list(rows)
        logits = backend.decode(
            numbers, [(step * 7 + 3) % 101] * len(rows), [len(rows[n]) + step for n in numbers]
        )
        for n, row_logits in zip(numbers, logits, strict=True):
            seen[n].append(row_logits.copy())
    return seen


def test_a_rows_numbers_do_not_depend_on_its_neighbors_bit_for_bit(small: GPT2) -> None:
    prompts = {0: [1, 2, 3], 2: [9] * 20, 5: [50, 60], 6: [4], 7: [8, 8, 8, 8, 8, 8, 8, 8]}
    together = play(TorchBackend(small, rows=8), prompts, 12)
    for row, ids in prompts.items():
        alone = play(TorchBackend(small, rows=8), {row: ids}, 12)[row]
        for a, b in zip(alone, together[row], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_nor_at_the_published_width_with_long_neighbors(threads: int) -> None:
    torch.manual_seed(2)
    model = GPT2(Config(n_layer=2, vocab_size=1000)).eval()
    prompts = {0: [5] * 3, 1: [i % 1000 for i in range(700)], 2: [9] * 33, 4: [7] * 510, 8: [1, 2]}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = play(TorchBackend(model, rows=9), prompts, 6)
        for row, ids in prompts.items():
            alone = play(TorchBackend(model, rows=9), {row: ids}, 6)[row]
            for a, b in zip(alone, together[row], strict=True):
                np.testing.assert_array_equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_idle_rows_keep_what_they_hold(small: GPT2) -> None:
    backend = TorchBackend(small, rows=4)
    backend.extend([1], [[5, 6, 7]])
    held = backend.cache.kv[:, :, 1, :, :3].clone()
    backend.extend([3], [[1, 2]])
    backend.decode([3], [9], [2])
    assert torch.equal(backend.cache.kv[:, :, 1, :, :3], held)


def test_copied_rows_go_on_like_their_source(small: GPT2) -> None:
    backend = TorchBackend(small, rows=5)
    backend.extend([0], [[5, 6, 7]])
    backend.copy(0, [2, 4], 3)
    logits = backend.decode([0, 2, 4], [1, 1, 1], [3, 3, 3])
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def test_logits_of_unequal_sequences(small: GPT2) -> None:
    batch = [[1, 2, 3, 4, 5], [9], [7, 7]]
    together = TorchBackend(small).logits(batch)
    assert together.shape == (3, 5, 101)
    assert together.dtype == np.float32
    for row, ids in zip(together, batch, strict=True):
        np.testing.assert_allclose(row[: len(ids)], TorchBackend(small).logits([ids])[0], atol=ROUNDING)
