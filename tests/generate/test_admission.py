"""How long a request would wait: the arithmetic, without a clock."""

from __future__ import annotations

import random
from heapq import heapify, heappop, heappush

import pytest

from glassgpt.generate.service.admission import Ahead, WaitEstimator, time_to_finish


def simulate(busy: list[float], jobs: list[int]) -> float:
    """Each job goes to the worker that is free first; when the next one would begin."""
    heap = list(busy)
    heapify(heap)
    for job in jobs:
        heappush(heap, heappop(heap) + job)
    return heap[0]


def test_workers_that_share_work() -> None:
    assert time_to_finish([5, 3, 9], 0) == 3  # the first that is free
    assert time_to_finish([0, 10], 3) == 3
    assert time_to_finish([0, 0, 4], 6) == 3
    assert time_to_finish([1, 5], 100) == 53


def test_it_is_near_what_a_simulation_finds() -> None:
    rng = random.Random(0)
    for _ in range(200):
        busy = [rng.uniform(0, 30) for _ in range(rng.randint(1, 16))]
        jobs = [rng.randint(1, 8) for _ in range(rng.randint(0, 200))]
        assert time_to_finish(busy, sum(jobs)) == pytest.approx(simulate(busy, jobs), abs=8)


def measured() -> WaitEstimator:
    speed = WaitEstimator()
    speed.note_decode(5.0)  # the first took long, as a recording does
    for _ in range(20):
        speed.note_decode(0.01)
        speed.note_reading(0.05, tokens=50)
    return speed


def test_nothing_is_expected_before_anything_was_measured() -> None:
    assert WaitEstimator().wait([100, 100], 0, 1000, Ahead(9, 900, 900)) == 0


def test_a_free_row_is_waited_for_by_nobody() -> None:
    speed = measured()
    assert speed.wait([100], 1, 0, Ahead()) == 0
    assert speed.wait([100], 2, 0, Ahead(1, 50, 0)) == 0
    assert speed.wait([100], 1, 30, Ahead()) == pytest.approx(0.03)  # but the prompts before it are read


def test_a_row_that_is_busy_has_so_many_tokens_left() -> None:
    speed = measured()
    assert speed.wait([100, 40], 0, 0, Ahead()) == pytest.approx(0.4)
    assert speed.wait([100, 40], 0, 0, Ahead(1, 20, 10)) == pytest.approx(0.6 + 0.01)


def test_texts_that_end_early_are_waited_for_less() -> None:
    speed = measured()
    for _ in range(100):
        speed.note_finished(10, limit=40)
    assert speed.wait([100, 40], 0, 0, Ahead()) == pytest.approx(0.1, rel=0.01)
