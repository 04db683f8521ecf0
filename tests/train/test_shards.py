"""One long row of tokens over many files, ours, nanoGPT's, llm.c's; and files that lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer
from glassgpt.train.data.prepare import prepare
from glassgpt.train.data.shards import INDEX, OPEN_FILES, Shards


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents in several shards."""
    folder = tmp_path_factory.mktemp("prepared")
    lines = [json.dumps({"text": f"Document {n}: " + "word " * (n % 7)}) for n in range(60)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    prepare(
        [folder / "a.jsonl"], folder / "shards", ByteTokenizer(), val_fraction=0.2, unit_bytes=700, workers=1
    )
    return folder / "shards"


def llmc(path: Path, ids: list[int], version: int = 1, promised: int | None = None) -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, version, len(ids) if promised is None else promised
    path.write_bytes(header.tobytes() + np.array(ids, "<u2").tobytes())
    return path


def test_reading_across_files_is_reading_one_row(prepared: Path) -> None:
    shards = Shards.open(prepared)
    assert len(shards.files) > 2
    full = np.concatenate([np.fromfile(file, "<u2") for file in shards.files])
    assert len(shards) == len(full)

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, len(full)), st.integers(0, len(full)))
    def check(one: int, other: int) -> None:
        start, stop = sorted((one, other))
        assert np.array_equal(shards.read(start, stop - start), full[start:stop])

    check()
    for start, count in ((-1, 2), (len(full) - 1, 2), (0, -1)):
        with pytest.raises(IndexError):
            shards.read(start, count)


def test_documents_start_with_end_of_text(prepared: Path) -> None:
    found = []
    for split in ("train", "val"):
        shards = Shards.open(prepared, split, ByteTokenizer())
        full = shards.read(0, len(shards))
        assert np.array_equal(np.flatnonzero(full == 256), shards.document_starts)
        found += [bytes(d[1:].astype(np.uint8)).decode() for d in np.split(full, shards.document_starts[1:])]
    assert len(found) == 60
    assert {text.split(":")[0] for text in found} == {f"Document {n}" for n in range(60)}


def test_nanogpt_in_place(tmp_path: Path) -> None:
    np.array([5, 6, 256, 7, 256], "<u2").tofile(tmp_path / "train.bin")
    np.array([8, 9], "<u2").tofile(tmp_path / "val.bin")
    train = Shards.open(tmp_path, tokenizer=ByteTokenizer())
    assert train.read(0, 5).tolist() == [5, 6, 256, 7, 256]
    assert train.document_starts.tolist() == [0, 3]  # there, end-of-text closes a document
    assert Shards.open(tmp_path).document_starts.tolist() == [0]
    assert Shards.open(tmp_path, "val").read(0, 2).tolist() == [8, 9]
    assert Shards.open(tmp_path / "val.bin").read(1, 1).tolist() == [9]
    assert train.identity != Shards.open(tmp_path, "val").identity


def test_llmc_in_place(tmp_path: Path) -> None:
    llmc(tmp_path / "web_train_000001.bin", [256, 1, 2])
    llmc(tmp_path / "web_train_000002.bin", [3, 256, 4])
    llmc(tmp_path / "web_val_000000.bin", [256, 9])
    train = Shards.open(tmp_path, tokenizer=ByteTokenizer())
    assert train.read(1, 4).tolist() == [1, 2, 3, 256]
    assert train.document_starts.tolist() == [0, 4]  # there, it opens one
    assert Shards.open(tmp_path, "val").read(0, 2).tolist() == [256, 9]
    assert len(Shards.open(tmp_path / "web_train_000002.bin")) == 3
    both = Shards.open(tmp_path / "web_train_*.bin")
    assert both.read(0, 6).tolist() == train.read(0, 6).tolist()
    assert both.identity == train.identity


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    for n in range(OPEN_FILES + 20):
        llmc(tmp_path / f"x_train_{n:06d}.bin", [n, n])
    shards = Shards.open(tmp_path)
    assert shards.read(0, len(shards)).tolist() == [n for n in range(OPEN_FILES + 20) for _ in range(2)]
    assert shards._tokens.cache_info().currsize <= OPEN_FILES


def test_another_tokenizer_is_refused(prepared: Path) -> None:
    with pytest.raises(SettingError, match=r"another tokenizer \(257 tokens.*than the model's \(4 tokens"):
        Shards.open(prepared, tokenizer=CharTokenizer("abc"))


def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    np.array([5, 300, 7], "<u2").tofile(tmp_path / "train.bin")
    shards = Shards.open(tmp_path, tokenizer=ByteTokenizer())
    assert shards.read(0, 1).tolist() == [5]
    with pytest.raises(FileFormatError, match="contains the id 300, but the vocabulary has 257"):
        shards.read(0, 3)


def test_damage_is_named(prepared: Path, tmp_path: Path) -> None:
    def copied() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(prepared, tmp_path / "copy")
        return tmp_path / "copy"

    for suffix in (".bin", ".starts"):
        folder = copied()
        file = sorted(folder.glob(f"train-*{suffix}"))[1]
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(FileFormatError, match=rf"{file.name}.*truncated or changed"):
            Shards.open(folder)
        file.unlink()
        with pytest.raises(FileFormatError, match=rf"{file.name}.*does not exist"):
            Shards.open(folder)
    index = json.loads((prepared / INDEX).read_text())
    for change, message in [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "'other'"),
        ({"dtype": "float64"}, "is damaged"),
        ({"tokenizer": None}, "is damaged"),
        ({"splits": {"train": {"files": [{"name": "x", "tokens": -5, "documents": 1}]}}}, "is damaged"),
        (
            {"splits": {"train": {"files": [{"name": "../x.bin", "tokens": 5, "documents": 1}]}}},
            "not a plain file name",
        ),
    ]:
        folder = copied()
        (folder / INDEX).write_text(json.dumps({**index, **change}))
        with pytest.raises(FileFormatError, match=message):
            Shards.open(folder)
    (folder / INDEX).write_text("{")
    with pytest.raises(FileFormatError, match="is not JSON"):
        Shards.open(folder)


def test_mistakes(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no split 'test', only train, val"):
        Shards.open(prepared, "test")
    with pytest.raises(SettingError, match="does not exist"):
        Shards.open(tmp_path / "none")
    with pytest.raises(SettingError, match="glassgpt prepare"):
        Shards.open(tmp_path)
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(FileFormatError, match="not a whole number"):
        Shards.open(tmp_path / "odd.bin")
    with pytest.raises(FileFormatError, match="version 7"):
        Shards.open(llmc(tmp_path / "new.bin", [1], version=7))
    with pytest.raises(FileFormatError, match="declares 9 tokens"):
        Shards.open(llmc(tmp_path / "short.bin", [1], promised=9))
    with pytest.raises(FileFormatError, match="no tokens"):
        Shards.open(llmc(tmp_path / "empty.bin", []))
