"""Runs the command line in this process, for speed, or as a real program where that matters."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.tokenizer import ByteTokenizer, Tokenizer
from glassgpt.weights import Checkpoint, save_checkpoint
from tests.weights.standin_hub import Hub, Running

SRC = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def is_one_line_error(self, *words: str) -> bool:
        """What every error looks like: exit code 2, one line on stderr with these words, no stdout."""
        assert self.code == 2, self
        assert self.out == "", self
        assert self.err.startswith("glassgpt: "), self
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err, f"{word!r} is not in {self.err!r}"
        return True


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLASSGPT_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def glassgpt(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`glassgpt("info", "gpt2")` in this process, with stdout and stderr captured."""

    def call(*args: str | Path) -> Result:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return call


def program(*words: str | bytes | Path, **environment: str) -> tuple[list[str | bytes], dict[str, str]]:
    """Command line and environment of a real `python -m glassgpt`."""
    command: list[str | bytes] = [sys.executable, "-m", "glassgpt"]
    command += [word if isinstance(word, bytes) else str(word) for word in words]
    return command, {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **environment}


def run_program(*words: str | bytes | Path, stdin: bytes = b"", **environment: str) -> Result:
    command, env = program(*words, **environment)
    done = subprocess.run(command, env=env, input=stdin, capture_output=True, timeout=300, check=False)
    return Result(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


def random_checkpoint(seed: int = 0, **changes: int) -> Checkpoint:
    """A small random model with a byte tokenizer, for any prompt."""
    shape = {"vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, **changes}
    config = Config(**shape)
    draw = np.random.default_rng(seed)
    tensors = {name: draw.normal(0, 0.3, size).astype(np.float32) for name, size in config.shapes().items()}
    return Checkpoint(config, tensors, ByteTokenizer())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small random model."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_checkpoint(random_checkpoint(), folder)
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in for the hub, with an empty cache."""
    from glassgpt.weights import hub

    with Running() as running:
        fetch = functools.partial(hub.fetch, endpoint=running.url, cache=tmp_path / "hub-cache")
        monkeypatch.setattr(hub, "fetch", fetch)
        yield running


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BPE vocabulary trained on a few sentences."""
    folder = tmp_path_factory.mktemp("vocabulary")
    text = folder / "text.txt"
    text.write_text("the robot obeys the robber, and the robot robs the robber of the robe\n" * 40)
    Tokenizer.train([text], vocab_size=300).save(folder / "bpe")
    return folder / "bpe"
