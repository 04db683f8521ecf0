"""What the model writes as it learns."""

from __future__ import annotations

from glassgpt.gpt import GPT
from glassgpt.model import GPT2, TorchBackend
from glassgpt.tokenizer import Tokenizer

SAMPLE_TOKENS = 60


def sample(model: GPT2, tokenizer: Tokenizer, prompt: str | None) -> str:
    """A few words from the model as it is now. Draws no random number of the training's."""
    was = model.training
    try:
        text = GPT(TorchBackend(model), tokenizer).generate(prompt, max_new_tokens=SAMPLE_TOKENS, seed=1).text
    finally:
        model.train(was)
    return f"{'' if prompt is None else prompt}{text}"


def on_one_line(text: str) -> str:
    return " ".join(text.split())
