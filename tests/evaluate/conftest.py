"""Three models and their exported folders: the shipped one, and two of random numbers and odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.evaluate import Scorer, WindowBuilder
from glassgpt.evaluate.suites.lambada import stop_tokens
from glassgpt.gpt import GPT
from glassgpt.tokenizer import ByteTokenizer, Tokenizer
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint
from tests.conftest import SHIPPED
from tests.evaluate import texts


@dataclass(frozen=True)
class Model:
    gpt: GPT
    folder: Path  # in the format of transformers

    def builder(self, **settings: int | None) -> WindowBuilder:
        return WindowBuilder(self.gpt.tokenizer, self.gpt.backend.context, **settings)

    def scorer(self) -> Scorer:
        return Scorer(self.gpt.backend, excluded=stop_tokens(self.gpt.tokenizer))


def random_numbers(config: Config, tokenizer: Tokenizer, seed: int) -> Checkpoint:
    draw = np.random.default_rng(seed)
    tensors = {name: draw.normal(0, 0.2, size).astype(np.float32) for name, size in config.shapes().items()}
    return Checkpoint(config, tensors, tokenizer)


def exported(checkpoint: Checkpoint, folder: Path) -> Model:
    save_checkpoint(checkpoint, folder, dtype="float32")
    backend = TorchBackend.load(load_checkpoint(folder), device="cpu", dtype="float32")
    return Model(GPT(backend, checkpoint.tokenizer, name=folder.name), folder)


@pytest.fixture(scope="session")
def random_bytes(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Reads bytes; a context of 200."""
    config = Config(vocab_size=257, n_positions=200, n_embd=16, n_layer=2, n_head=2)
    return exported(random_numbers(config, ByteTokenizer(), 1), tmp_path_factory.mktemp("m") / "bytes")


@pytest.fixture(scope="session")
def random_words(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small BPE vocabulary, an untied head, an odd context, attention as in Mistral's GPT-2s."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "text.txt").write_text("".join(texts.FILES.values()) * 3, "utf-8")
    tokenizer = Tokenizer.train([folder / "text.txt"], vocab_size=420)
    config = Config(
        vocab_size=tokenizer.vocab_size,
        n_positions=77,
        n_embd=24,
        n_layer=3,
        n_head=3,
        tie_word_embeddings=False,
        scale_attn_by_inverse_layer_idx=True,
    )
    return exported(random_numbers(config, tokenizer, 2), tmp_path_factory.mktemp("m") / "words")


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return exported(load_checkpoint(SHIPPED), tmp_path_factory.mktemp("m") / "shipped")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All data sets, tiny."""
    return texts.write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture
def evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`glassgpt eval ...` in this process, with its own cache: exit code, stdout, stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["eval", *map(str, words)])
        return code, *capfd.readouterr()

    return call
