"""Samples of the model during training."""

from __future__ import annotations

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from glassgpt.tokenizer import Tokenizer

SAMPLE_TOKENS = 60


def generate_sample(model: GPT2, tokenizer: Tokenizer, prompt: str | None) -> str:
    """Generate a short text with the current weights. Does not touch the RNG of the training."""
    was_training = model.training
    try:
        text = GPT(TorchBackend(model), tokenizer).generate(prompt, max_new_tokens=SAMPLE_TOKENS, seed=1).text
    finally:
        model.train(was_training)
    return f"{'' if prompt is None else prompt}{text}"
