from __future__ import annotations

import pytest
import torch

from glassgpt.config import Config
from glassgpt.model import GPT2


def noisy(model: GPT2) -> GPT2:
    """A model in which every parameter matters: zero biases and unit gains would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture
def small() -> GPT2:
    torch.manual_seed(1)
    return noisy(GPT2(Config(vocab_size=101, n_positions=48, n_embd=32, n_layer=3, n_head=4)))
