"""What is no data for this model is refused before anything is learned from it, in one line that says why."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.scoring.windows import ScoreRequest
from glassgpt.generate.sampling.logits_processors import LogitsProcessor, WordBiases
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.model import GPT2
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer
from glassgpt.train.data.file_kinds import detect_content
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.prepare import prepare
from glassgpt.train.data.shards import Shards
from glassgpt.train.finetune.run import prepare_run
from glassgpt.weights import Checkpoint, save_checkpoint

pytestmark = pytest.mark.usefixtures("no_trial")

SMALL = ["--shape", "1x16x1", "--context", "8", "--batch-size", "2", "--eval-batches", "1"]
SMALL += ["--warmup-steps", "2"]
NOVEL = "It was a wet night; nobody came, and the lamps went out.\n" * 200


def train(data: Path, run: Path, *more: str) -> int:
    words = ["train", "--data", str(data), "--out", str(run), "--device", "cpu", "--steps", "2"]
    return main([*words, *SMALL, *more])


def reported(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def small_model(folder: Path, vocab_size: int, **more: object) -> Path:
    config = Config(vocab_size=vocab_size, n_positions=16, n_embd=16, n_layer=1, n_head=1)
    torch.manual_seed(0)
    tensors = {name: value.numpy() for name, value in GPT2(config).state_dict().items()}
    save_checkpoint(Checkpoint(config, tensors, source="small", **more), folder)  # type: ignore[arg-type]
    return folder


def shards_of(folder: Path, text: str = NOVEL) -> Path:
    (folder / "book.txt").write_text(text)
    prepare([folder / "book.txt"], folder / "shards", ByteTokenizer(), workers=1, unit_bytes=4000)
    return folder / "shards"


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("archive/data.pkl", NOVEL)
    return made.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(36)


@pytest.mark.parametrize(
    ("name", "content", "kind", "step"),
    [
        ("book.txt", NOVEL.encode(), "text", "glassgpt prepare {path} -o shards/"),
        ("even.bin", NOVEL.encode(), "text", "glassgpt prepare {path} -o shards/"),
        ("latin.txt", ("Café à la crème, très bon. " * 200).encode("latin-1"), "text", "glassgpt prepare"),
        ("utf16.txt", NOVEL.encode("utf-16"), "UTF-16", "glassgpt prepare"),
        ("chinese.txt", ("雨夜，没有人来，灯都灭了。" * 4000).encode(), "text", "glassgpt prepare"),
        ("many.jsonl", b'{"text": "one"}\n' * 300, "JSON", "glassgpt prepare {path} -o shards/"),
        ("model.safetensors", safetensors(), "a safetensors file", "--init-from MODEL"),
        ("model.gguf", b"GGUF" + bytes(4000), "a GGUF model", "--init-from MODEL"),
        ("ckpt.pt", zipped(), "a zip file", "--init-from MODEL"),
        (
            "old.pt",
            b"\x80\x02}q\x00(X\x05\x00\x00\x00model" + bytes(500) + b"s.",
            "a Python pickle",
            "--init-from",
        ),
        ("rows.parquet", b"PAR1" + bytes(500) + b"PAR1", "a Parquet table", "glassgpt prepare {path}"),
        ("photo.png", b"\x89PNG\r\n\x1a\n" + bytes(500), "an image", "glassgpt prepare TEXT"),
        ("photo.jpg", b"\xff\xd8\xff\xe0" + bytes(500), "an image", "glassgpt prepare TEXT"),
        ("book.txt.gz", b"\x1f\x8b\x08\x00" + bytes(500), "compressed by gzip", "Decompress it"),
        ("ids.npy", b"\x93NUMPY\x01\x00" + bytes(500), "a numpy array", "tofile"),
    ],
)
def test_what_holds_no_ids_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, kind: str, step: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert train(path, tmp_path / "run") == 2
    line = reported(capsys)
    assert f"{path} is " in line
    assert kind in line
    assert step.format(path=path) in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "ids",
    [
        np.random.default_rng(0).integers(0, 50257, 5000),
        np.random.default_rng(1).zipf(1.2, 5000) % 50257,
        np.random.default_rng(2).integers(0, 65, 5000),  # characters
        np.random.default_rng(3).integers(10, 127, 5000),  # as bytes they would be text
        np.arange(30000),
        np.zeros(100),
    ],
)
def test_ids_are_taken_for_ids(tmp_path: Path, ids: np.ndarray) -> None:
    ids.astype("<u2").tofile(tmp_path / "train.bin")
    assert detect_content(tmp_path / "train.bin") is None
    assert len(Shards.open(tmp_path / "train.bin")) == len(ids)


def foreign(path: Path, largest: int) -> Path:
    ids = np.random.default_rng(0).integers(0, 300, 40_000)
    ids[3333] = largest
    ids.astype("<u2").tofile(path)
    return path


def test_an_id_beyond_the_vocabulary_is_found_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(foreign(tmp_path / "train.bin", 60_000), tmp_path / "run") == 2
    assert "contains the id 60,000, but the vocabulary has 50,257" in reported(capsys)
    small = str(small_model(tmp_path / "small", 310))
    assert train(foreign(tmp_path / "train.bin", 310), tmp_path / "run", "--init-from", small) == 2
    assert "contains the id 310, but the vocabulary has 310" in reported(capsys)
    assert not (tmp_path / "run").exists()
    assert train(foreign(tmp_path / "train.bin", 309), tmp_path / "run", "--init-from", small) == 0


def test_a_start_that_knows_fewer_tokens_than_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shards_of(tmp_path)
    assert train(data, tmp_path / "run", "--init-from", str(small_model(tmp_path / "small", 200))) == 2
    assert "a vocabulary of 257, and" in reported(capsys)


def test_foreign_tokens_that_changed_in_place_end_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = foreign(tmp_path / "train.bin", 7)
    model = str(small_model(tmp_path / "small", 310))
    assert train(file, tmp_path / "run", "--init-from", model, "--save-every", "1") == 0
    capsys.readouterr()
    ids = np.fromfile(file, "<u2")
    ids[len(ids) // 2] += 1
    ids.tofile(file)
    assert train(file, tmp_path / "run", "--init-from", model, "--save-every", "1", "--resume") == 2
    assert "--data has different tokens" in capsys.readouterr().err


def change_one_token(folder: Path) -> Path:
    file = sorted(folder.glob("train-*.bin"))[0]
    ids = np.fromfile(file, "<u2")
    ids[len(ids) // 2] ^= 1
    ids.tofile(file)
    return file


def test_shards_that_changed_in_place_end_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shards_of(tmp_path)
    assert train(data, tmp_path / "run", "--save-every", "1") == 0
    assert train(data, tmp_path / "run", "--save-every", "1", "--resume") == 0
    capsys.readouterr()
    file = change_one_token(data)
    assert train(data, tmp_path / "run", "--save-every", "1", "--resume") == 2
    assert f"{file} has changed since it was prepared" in reported(capsys)


def test_verify_compares_shards_with_their_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = shards_of(tmp_path)
    count = len(list(data.glob("*.bin")))
    assert main(["verify", str(data)]) == 0
    assert f"all {count} token files are unchanged" in reported(capsys)
    file = change_one_token(data)
    assert main(["verify", str(data)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{file} has changed since it was prepared. Prepare the text again.\n"
    assert f"1 of {count} token files have CHANGED" in said.err
    other = sorted(data.glob("train-*.bin"))[1]
    other.unlink()
    assert main(["verify", str(data), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    wrong = [check["file"] for check in answer["checks"] if not check["ok"]]
    assert (answer["ok"], wrong) == (False, [file.name, other.name])


@pytest.mark.parametrize("make", [lambda at: shards_of(at), lambda at: foreign(at / "a.bin", 7)])
def test_a_data_file_that_is_shortened_in_use_is_named(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Mapped into memory it would end the program by SIGBUS."""
    shards = Shards.open(make(tmp_path))
    loader = Loader(shards, context=8, batch_size=64)
    loader.batch(0)
    for file in shards.files:
        os.truncate(file, 2)
    with pytest.raises(FileFormatError, match=r"\.bin became shorter while it was being read"):
        loader.batch(1)
    assert issubclass(FileFormatError, UserError)


def test_texts_of_a_tokenizer_beyond_the_embeddings_are_not_tuned_on(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(NOVEL)
    config = Config(vocab_size=100, n_positions=16, n_embd=16, n_layer=1, n_head=1)
    tensors = {name: value.numpy() for name, value in GPT2(config).state_dict().items()}
    start = Checkpoint(config, tensors, ByteTokenizer(), source="small")
    with pytest.raises(FileFormatError, match="contains the id 256, but the vocabulary has 100"):
        prepare_run(start, [tmp_path / "book.txt"], torch.device("cpu"))


def test_ids_beyond_the_embeddings_are_not_scored() -> None:
    backend = TorchBackend(GPT2(Config(vocab_size=100, n_positions=16, n_embd=16, n_layer=1, n_head=1)))
    with pytest.raises(UserError, match="the id 100, but the model's vocabulary has 100"):
        Scorer(backend).score([[ScoreRequest(np.array([1, 2, 100]), 1)]])


def test_words_beyond_the_embeddings_are_not_banned() -> None:
    tokenizer = CharTokenizer("abc")
    settings = SamplingParams(banned_words=("cab",))
    with pytest.raises(SettingError, match="spelled with token 2; this model's vocabulary ends at 1"):
        LogitsProcessor(settings, [0], WordBiases(settings, tokenizer), vocab_size=2)


def test_a_start_whose_tokenizer_cannot_be_read_is_not_trained_on_other_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one and two and three. " * 50)
    assert main(["prepare", "a.txt", "-o", "shards", "--tokenizer", "bytes", "--workers", "1"]) == 0
    assert main(["convert", "tiny", "start"]) == 0
    Path("start/tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}')
    capsys.readouterr()
    words = "train --data shards --init-from start --out run --steps 1 --context 16".split()
    assert main([*words, "--batch-size", "2"]) == 2
    assert "the tokenizer of start cannot be read" in capsys.readouterr().err
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        Path("start", name).unlink(missing_ok=True)
    assert main([*words, "--batch-size", "2"]) == 2
    assert "a vocabulary of 257, and start has 16,384" in capsys.readouterr().err
