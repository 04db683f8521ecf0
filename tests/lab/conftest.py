"""Other people's laboratories on our weights, in a separate environment: `make test-lab` installs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glassgpt
from glassgpt.gpt import GPT
from tests.conftest import SHIPPED

N_PROMPTS, N_TOKENS = 50, 10


@pytest.fixture(scope="session")
def gpt() -> GPT:
    return glassgpt.load(SHIPPED, device="cpu", dtype="float32", backend="torch")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `glassgpt convert` writes."""
    folder = tmp_path_factory.mktemp("lab") / "hf"
    glassgpt.weights.convert(SHIPPED, folder, "hf")
    return folder


@pytest.fixture(scope="session")
def texts(gpt: GPT) -> dict[str, list]:
    """50 pairs of prompts, which differ in two tokens, with an answer and another token each."""
    rng = np.random.default_rng(0)
    clean = rng.integers(300, 8000, (N_PROMPTS, N_TOKENS))
    corrupted = clean.copy()
    corrupted[:, 3] = rng.integers(300, 8000, N_PROMPTS)
    corrupted[:, 7] = rng.integers(300, 8000, N_PROMPTS)
    answers, others = rng.integers(300, 8000, (2, N_PROMPTS))
    return {
        "clean": clean.tolist(), "corrupted": corrupted.tolist(),
        "answer": answers.tolist(), "minus": others.tolist(),
    }  # fmt: skip
