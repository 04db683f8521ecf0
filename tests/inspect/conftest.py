from __future__ import annotations

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from tests.conftest import SHIPPED

SMALL = Config(vocab_size=101, n_positions=48, n_embd=32, n_layer=3, n_head=4)


def random_model(config: Config = SMALL, seed: int = 1, noise: float = 0.15) -> GPT:
    """A model in which every parameter matters: zero biases and unit gains would hide mistakes."""
    torch.manual_seed(seed)
    model = GPT2(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return GPT(TorchBackend(model.eval().requires_grad_(False)), name="random")


def weights_of(gpt: GPT) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in gpt.backend.model.state_dict().items()}


def some_ids(count: int, seed: int = 0, config: Config = SMALL) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(config.vocab_size, size=count)]


@pytest.fixture(scope="session")
def gpt() -> GPT:
    return random_model()


@pytest.fixture(scope="session")
def shipped() -> GPT:
    import glassgpt

    return glassgpt.load(SHIPPED, device="cpu", dtype="float32", backend="torch")
