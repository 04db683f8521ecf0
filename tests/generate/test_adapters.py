"""Adapters that share their model: texts of one batch, each with its own low-rank changes or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgpt
from glassgpt.backends import native
from glassgpt.errors import UserError
from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.generation import Generation
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.gpt import GPT
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter

PROMPTS = ("The old house", "A ship", "Once upon a time there was", "In 1914 " * 40)
KINDS = [("native", "int8"), ("native", "float32"), ("torch", "float32")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("adapters")
    return [write_adapter(place / f"{seed}", SHIPPED, seed, rank=3 + seed) for seed in range(3)]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def gpt(request: pytest.FixtureRequest, folders: list[Path]) -> GPT:
    backend, dtype = request.param
    if backend == "native" and not native.is_available():
        pytest.skip("the native engine was not built")
    gpt = glassgpt.load(SHIPPED, backend=backend, dtype=dtype)
    assert [gpt.add_adapter(folder) for folder in folders] == [1, 2, 3]
    return gpt


def run(engine: Engine, requests: list[tuple[int, str, int]], **changes: Any) -> list[Generation]:
    """The texts of (seed, prompt, adapter)."""
    numbers = [
        engine.add(
            engine.tokenizer.encode(prompt),  # type: ignore[union-attr]
            SamplingParams(max_new_tokens=6, seed=seed, temperature=0.8, logprobs=2, **changes),
            adapter=adapter,
        )
        for seed, prompt, adapter in requests
    ]
    done = {}
    while engine.busy:
        for event in engine.step():
            if event.generation is not None:
                done[event.request] = event.generation
    return [done[number] for number in numbers]


def test_mixed_requests_equal_those_alone(gpt: GPT) -> None:
    """64 requests, four prompts and four adapters (0: the base), in a batch of 16 whose rows are reused."""
    requests = [(i, PROMPTS[i % 4], (i // 4 + i) % 4) for i in range(64)]
    batch = Engine(gpt.backend.with_rows(16), gpt.tokenizer)
    mixed = run(batch, requests)
    assert batch.stats.cached_tokens > 0  # beginnings are shared, though only with the same adapter
    single = Engine(gpt.backend.with_rows(16), gpt.tokenizer, prefix_cache=False)
    for request, together in zip(requests, mixed, strict=True):
        (alone,) = run(single, [request])
        assert together.tokens == alone.tokens
        assert np.allclose(together.logprobs, alone.logprobs, atol=2e-5)
    assert len({tuple(text.tokens) for text in mixed}) > 40


def test_an_adapter_computes_as_its_merged_model(gpt: GPT, folders: list[Path]) -> None:
    if getattr(gpt.backend, "dtype", "") == "int8":
        pytest.skip("int8 rounds the merged matrices differently")
    ids = gpt.encode(PROMPTS[0])
    backend: Any = gpt.backend.with_rows(2)
    for number, folder in enumerate(folders, start=1):
        merged = glassgpt.load(folder, backend="torch", dtype="float32").logits([ids])[0]
        backend.set_adapter(1, number)
        logits = np.asarray(backend.extend([0, 1], [ids, ids], logits="all"))
        plain, adapted = logits[: len(ids)], logits[len(ids) :]
        assert np.abs(adapted - merged).max() < 1e-3
        assert np.abs(plain - merged).max() > 1
        step = np.asarray(backend.decode([0, 1], np.array([7, 7]), [len(ids)] * 2))
        again = glassgpt.load(folder, backend="torch", dtype="float32").logits([[*ids, 7]])[0, -1]
        assert np.abs(step[1] - again).max() < 1e-3


def test_without_adapters_nothing_changes(gpt: GPT) -> None:
    torch = hasattr(gpt.backend, "model")
    dtype = "float32" if torch else gpt.backend.dtype  # type: ignore[attr-defined]
    plain = glassgpt.load(SHIPPED, backend="torch" if torch else "native", dtype=dtype)
    ids = gpt.encode(PROMPTS[2])
    ours, theirs = (np.asarray(each.backend.with_rows(4).extend([0], [ids])) for each in (gpt, plain))
    assert (ours == theirs).all()
    assert gpt.backend.fingerprint() == plain.backend.fingerprint()


def test_samples_and_a_text_that_slides(gpt: GPT) -> None:
    engine = Engine(gpt.backend.with_rows(4), gpt.tokenizer)
    long = "word " * gpt.config.n_positions
    for prompt in (PROMPTS[0], long):
        ids = gpt.encode(prompt)
        texts = []
        for adapter in (0, 2):
            settings = SamplingParams(max_new_tokens=5, seed=3, samples=4)
            number = engine.add(ids, settings, adapter=adapter)
            done = {}
            while engine.busy:
                for event in engine.step():
                    assert event.request == number
                    if event.generation is not None:
                        done[event.sample] = event.generation.tokens
            assert len(done) == 4
            texts.append(done)
        assert texts[0] != texts[1]


def test_numpy_says_what_to_load(folders: list[Path]) -> None:
    with pytest.raises(UserError, match="backend='native' or 'torch'"):
        glassgpt.load(SHIPPED, backend="numpy").add_adapter(folders[0])


def test_an_adapter_that_does_not_exist_is_refused(gpt: GPT) -> None:
    backend: Any = gpt.backend.with_rows(2)
    wrong: list[Any] = [99, -1, 1.0, 2**40, 10**5000, None]
    for row, number, says in (
        *((0, each, "no such adapter") for each in wrong),
        *((each, 1, "no such row") for each in [2, *wrong]),
    ):
        with pytest.raises(UserError, match=says):
            backend.set_adapter(row, number)
