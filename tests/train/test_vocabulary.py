"""A vocabulary made for the texts at hand, and a model of characters from the first command to its text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glassgpt.cli import main
from glassgpt.errors import SettingError
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.train.data import vocabulary
from glassgpt.train.data.find_files import find_sources
from glassgpt.train.data.vocabulary import learn_vocabulary, read_sample

SRC = Path(__file__).resolve().parents[2] / "src"
TEXTS = ["The tide was out.\n", "The tide was in — naïve.\n", "The mill stood still.\n"] * 30


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(TEXTS[:60]), "utf-8")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[60:])
    (folder / "b.jsonl").write_text(lines, "utf-8")
    return [folder / "a.txt", folder / "b.jsonl"]


def test_characters_of_all_files(files: list[Path]) -> None:
    tokenizer = learn_vocabulary("chars", files)
    assert isinstance(tokenizer, CharTokenizer)
    assert tokenizer.characters == "".join(sorted(set("".join(TEXTS))))


def test_bytes_need_no_text(files: list[Path]) -> None:
    assert learn_vocabulary("bytes", files).hash == ByteTokenizer().hash


def test_merges_are_those_of_the_trainer(files: list[Path]) -> None:
    wanted = Tokenizer.train(files, 300)
    learned = learn_vocabulary("bpe", files, vocab_size=300)
    assert learned.vocab_size == wanted.vocab_size > 270
    assert learned.hash == wanted.hash


def test_a_sample_has_text_of_every_part(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "UNIT", 1000)  # a.txt and b.jsonl have some units each
    sources = find_sources(files)
    received = "".join(read_sample(sources, 400, lambda n: None))
    assert received.count("tide") < "".join(TEXTS).count("tide")
    assert "mill" in received
    full = "".join(read_sample(sources, None, lambda n: None))
    assert len(full) == len("".join(TEXTS))


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("words", None, "tokenizer 'words' is not one of chars, bytes, bpe"),
        ("chars", 100, "--vocab-size is for --tokenizer bpe"),
        ("bpe", 256, "--vocab-size is 256; write a whole number from 257 to 1,048,576"),
    ],
)
def test_settings_out_of_range(files: list[Path], kind: str, size: int | None, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        learn_vocabulary(kind, files, vocab_size=size)


def test_tokens_are_not_text(tmp_path: Path) -> None:
    np.arange(400, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with pytest.raises(SettingError, match=r"train\.bin contains tokens, not text"):
        learn_vocabulary("bpe", [tmp_path / "train.bin"])


def test_the_command(files: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, out = str(files[0].parent), str(files[0].parent / "shards")
    words = ["prepare", folder, "-o", out, "--tokenizer", "bpe"]
    assert main([*words, "--vocab-size", "290"]) == 0
    assert "vocabulary 290 (uint16)" in capfd.readouterr().err
    assert main([*words, "--vocab-size", "290", "--force"]) == 0  # what is there is no text to learn from
    assert "vocabulary 290 (uint16)" in capfd.readouterr().err
    assert main(["prepare", folder, "-o", out, "--vocab-size", "290", "--force"]) == 2
    assert "--vocab-size is for --tokenizer bpe" in capfd.readouterr().err


@pytest.mark.slow
def test_a_model_of_characters(files: list[Path], tmp_path: Path) -> None:
    """As a user would: three commands in a folder."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}

    def glassgpt(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "glassgpt", *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )

    prepared = glassgpt("prepare", "texts/", "-o", "shards", "--tokenizer", "chars", "--val-fraction", "0.1")
    assert prepared.returncode == 0, prepared.stderr
    made = glassgpt(
        "train", "--data", "shards", "--out", "run", "--steps", "80", "--batch-size", "8", "--context", "32",
        "--shape", "2x64x2", "--dropout", "0", "--lr", "5e-3", "--warmup-steps", "5", "--device", "cpu",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    first, *_, last = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert last["loss"] < first["loss"] / 2
    said = glassgpt("generate", "The tide", "--model", "run", "--max-new-tokens", "12", "--seed", "1")
    assert said.returncode == 0, said.stderr
    assert set(said.stdout) <= set("".join(TEXTS))
    assert len(said.stdout.strip()) > 10
    unknown = glassgpt("generate", "The €", "--model", "run")
    assert unknown.returncode == 2
    assert "'€' is not among the" in unknown.stderr
