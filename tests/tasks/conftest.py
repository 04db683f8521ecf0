"""A small bilingual model with random weights, and one whose head knows two labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.tasks.definition import load_task
from glassgpt.tasks.vocabulary import add_tokens
from glassgpt.tokenizer import Tokenizer
from glassgpt.tokenizer.trainer import train_on
from glassgpt.weights import Checkpoint, save_checkpoint
from tests.cli.conftest import glassgpt  # noqa: F401  (a fixture)

COLOURS = {"red": "rouge", "green": "vert", "blue": "bleu", "black": "noir"}
ANIMALS = {"cat": "chat", "dog": "chien", "fox": "renard", "bear": "ours"}
PAIRS = [
    (f"The {colour} {animal} sleeps.", f"Le {ANIMALS[animal]} {COLOURS[colour]} dort.")
    for colour in COLOURS
    for animal in ANIMALS
]


def make_tokenizer(task: str) -> Tokenizer:
    return add_tokens(train_on([" ".join(pair) for pair in PAIRS] * 3, 330), load_task(task).tokens)


def make_model(task: str, seed: int = 0, **changes: int) -> Checkpoint:
    """A model of random weights in memory, with the task's tokens."""
    tokenizer = make_tokenizer(task)
    torch.manual_seed(seed)
    shape = {"n_positions": 160, "n_embd": 32, "n_layer": 2, "n_head": 2, **changes}
    config = Config(
        vocab_size=tokenizer.vocab_size, bos_token_id=tokenizer.eot_id, eos_token_id=tokenizer.eot_id, **shape
    )
    tensors = {name: tensor.numpy() for name, tensor in GPT2(config).state_dict().items()}
    tensors["wte.weight"] = 5 * tensors["wte.weight"]  # so that the choice of a token is a clear one
    return Checkpoint(config, tensors, tokenizer, source="mini", task=load_task(task).text)


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mini-fr"
    save_checkpoint(make_model("en-fr"), folder)
    return folder


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mini-cls"
    model = make_model("sentiment")
    score = np.random.default_rng(0).standard_normal((2, model.config.n_embd)).astype(np.float32)
    kept = {
        "id2label": {"0": "negative", "1": "positive"}, "label2id": {"negative": 0, "positive": 1},
        "pad_token_id": model.config.eos_token_id,
    }  # fmt: skip
    config = dataclasses.replace(model.config, kept=kept)
    save_checkpoint(dataclasses.replace(model, config=config, score=score), folder)
    return folder


Lines = Callable[..., Path]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """`lines("a.jsonl", "one", "two")`: a file of these lines."""

    def write(name: str, *content: str) -> Path:
        file = tmp_path / name
        file.write_text("".join(line + "\n" for line in content), "utf-8")
        return file

    return write
