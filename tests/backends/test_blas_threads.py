"""Numpy computes single tokens in one thread, and leaves the number of threads as it was."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt.backends import blas_threads
from glassgpt.backends.numpy import MANY_TOKENS, NumpyBackend
from glassgpt.config import Config
from glassgpt.model.numpy_gpt2 import NumpyGPT2

CONFIG = Config(vocab_size=40, n_positions=64, n_embd=12, n_layer=1, n_head=2)


class FakeBlas:
    def __init__(self) -> None:
        self.threads = 7

    def set(self, n: int) -> None:
        self.threads = n


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> FakeBlas:
    fake = FakeBlas()
    monkeypatch.setattr(blas_threads, "thread_functions", lambda: (lambda: fake.threads, fake.set))
    for name in blas_threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return fake


def threads_seen(blas: FakeBlas, monkeypatch: pytest.MonkeyPatch, tokens: int) -> int:
    weights = {name: np.zeros(shape, np.float32) for name, shape in CONFIG.shapes().items()}
    backend = NumpyBackend(NumpyGPT2(CONFIG, weights))
    head, seen = backend.model.head, []
    monkeypatch.setattr(backend.model, "head", lambda x: seen.append(blas.threads) or head(x))
    backend.extend([0], [[3] * tokens])
    assert blas.threads == 7
    return seen[0]


def test_a_token_is_computed_in_one_thread(blas: FakeBlas, monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_seen(blas, monkeypatch, 1) == 1
    assert threads_seen(blas, monkeypatch, MANY_TOKENS) == 7


@pytest.mark.parametrize("name", blas_threads.VARIABLES)
def test_a_number_that_the_user_gave_stays(
    blas: FakeBlas, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "3")
    assert threads_seen(blas, monkeypatch, 1) == 7


def test_the_last_to_leave_restores_the_number(blas: FakeBlas) -> None:
    with blas_threads.one_blas_thread():
        with blas_threads.one_blas_thread():
            assert blas.threads == 1
        assert blas.threads == 1
    assert blas.threads == 7


def test_the_functions_of_this_numpy() -> None:
    """Where numpy comes with OpenBLAS, as its wheels for Linux and Windows do, they are found and work."""
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    functions = blas_threads.thread_functions()
    assert (functions is not None) == ("openblas" in name)
    if functions is not None:
        get_threads, set_threads = functions
        before = get_threads()
        set_threads(1)
        assert get_threads() == 1
        set_threads(before)
