"""`--lines` and `--column`: a document for each line of a text, or each row of a table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.data.document_parts import read_document_parts
from glassgpt.train.data.find_files import Reading, describe_sources, divide, find_sources
from glassgpt.train.data.prepare import prepare
from glassgpt.train.finetune.settings import read_tokens

TEXTS = ["The tide was in.", 'It said "out", then\nturned.', "Ebb – and flow."]


def documents(*files: Path, size: int = 1 << 20, **reading: object) -> list[str]:
    sources = find_sources(files, reading=Reading(**reading))  # type: ignore[arg-type]
    parts = [
        part for unit in divide(sources, size) for part in read_document_parts(unit, size, int, None, 256)
    ]
    assert all(part.starts_document for part in parts)
    return [str(part.content) for part in parts]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    import csv

    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "words"])
        rows.writerows(enumerate([*TEXTS, ""]))
    return tmp_path / "t.csv"


def test_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    lines = [f"line {n} – é" for n in range(500)]
    file.write_bytes("\ufeff".encode() + "\r\n".join(lines).encode() + b"\n\n  \n")
    assert documents(file, lines=True) == lines
    assert documents(file, lines=True, size=999) == lines  # in many chunks
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert documents(tmp_path / "b.txt.gz", lines=True) == ["one", "two"]
    assert len(documents(file)) == 1


def test_a_column_of_a_csv(table: Path, tmp_path: Path) -> None:
    assert documents(table, column="words") == TEXTS
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(b"x\twords\n1\thello\n"))
    assert documents(tmp_path / "t.tsv.gz", column="words") == ["hello"]
    assert documents(tmp_path, column="words") == [*TEXTS, "hello"]


def test_a_column_of_a_parquet_and_a_jsonl(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["no"] * 3, "words": TEXTS}), tmp_path / "t.parquet")
    assert documents(tmp_path / "t.parquet", column="words") == TEXTS
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"words": text}) + "\n" for text in TEXTS))
    assert documents(tmp_path / "t.jsonl", column="words") == TEXTS
    with pytest.raises(FileFormatError, match='no "text" field'):
        documents(tmp_path / "t.jsonl")


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_dict({"text": ["no"] * 3, "words": TEXTS})
    data.save_to_disk(tmp_path / "one", num_shards=2)
    DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(tmp_path / "two")
    DatasetDict({"test": data}).save_to_disk(tmp_path / "three")
    assert documents(tmp_path / "one", column="words") == TEXTS
    assert documents(tmp_path / "two", column="words") == TEXTS
    assert documents(tmp_path / "two" / "test") == ["no"]
    with pytest.raises(FileFormatError, match="the splits test, and no train"):
        documents(tmp_path / "three")
    with pytest.raises(FileFormatError, match='no column "gone"; its columns are text, words'):
        documents(tmp_path / "one", column="gone")
    state = tmp_path / "one" / "state.json"
    state.write_text(state.read_text().replace("data-00000", "../x"))
    with pytest.raises(FileFormatError, match="not there"):
        documents(tmp_path / "one")
    (tmp_path / "two" / "train" / "state.json").write_text("{}")
    with pytest.raises(FileFormatError, match="damaged"):
        documents(tmp_path / "two")
    arrow = next((tmp_path / "three" / "test").glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:100])
    with pytest.raises(FileFormatError, match="damaged"):
        documents(tmp_path / "three" / "test", column="words")


def write_arrow(folder: Path, values: Any, **options: Any) -> Path:
    """A folder as `datasets` writes it, with one batch."""
    import pyarrow

    folder.mkdir()
    batch = pyarrow.record_batch([values], ["text"])
    with (
        pyarrow.OSFile(str(folder / "data.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, batch.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as stream,
    ):
        stream.write(batch)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


@pytest.mark.parametrize("offsets", [[0, 1 << 30, 5], [0, -5, 5], [0, 3, 5]])
def test_offsets_that_lie_are_damage(offsets: list[int], tmp_path: Path) -> None:
    """Not the end of the process: pyarrow follows them without a look."""
    import pyarrow

    buffers = [None, pyarrow.py_buffer(np.array(offsets, "<i4").tobytes()), pyarrow.py_buffer(b"ab\xff\xfec")]
    folder = write_arrow(tmp_path / "a", pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers))
    with pytest.raises(FileFormatError, match=r"data\.arrow is damaged"):
        documents(folder)


def test_a_column_that_has_no_texts_is_named(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    dates = pyarrow.array([2**31 - 1], pyarrow.date32())  # which Python has not
    parquet.write_table(pyarrow.table({"text": dates}), tmp_path / "t.parquet")
    for path in (write_arrow(tmp_path / "a", dates), tmp_path / "t.parquet"):
        with pytest.raises(FileFormatError, match="has no texts but date32"):
            documents(path)


def test_batches_that_expand_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pyarrow

    monkeypatch.setattr("glassgpt.files.tables.MOST_BATCH_BYTES", 100_000)
    short, long = (pyarrow.array(["ab " * length] * 3) for length in (10_000, 20_000))
    words = pyarrow.array(["ab " * 10_000, "c"])
    folders = [write_arrow(tmp_path / kind, short, compression=kind) for kind in ("zstd", "lz4")]
    for folder in (*folders, write_arrow(tmp_path / "plain", short)):
        assert documents(folder) == short.to_pylist()
    few, many = (pyarrow.DictionaryArray.from_arrays(np.zeros(count, int), words) for count in (3, 4))
    assert documents(write_arrow(tmp_path / "few", few)) == short.to_pylist()
    bombs = [write_arrow(tmp_path / f"{kind} bomb", long, compression=kind) for kind in ("zstd", "lz4")]
    for folder in (*bombs, write_arrow(tmp_path / "many", many)):
        with pytest.raises(FileFormatError, match="a batch has more than"):
            documents(folder)
    numbers = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 9_000_000]), words, safe=False)
    with pytest.raises(FileFormatError, match="damaged"):
        documents(write_arrow(tmp_path / "numbers", numbers))


def test_mistakes_are_named(table: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("x")
    for file, reading, says in (
        (table, {}, "name its column of texts with --column"),
        (text, {"column": "words"}, "has no columns"),
        (table, {"lines": True}, "not a text of lines|with --column"),
        (text, {"lines": True, "column": "x"}, "use one of them"),
        (text, {"column": ""}, "--column is empty"),
    ):
        with pytest.raises(SettingError, match=says):
            documents(file, **reading)
    with pytest.raises(FileFormatError, match='no column "gone"; its columns are id, words'):
        documents(table, column="gone")
    table.write_text("id,words\n1,a,b\n")
    with pytest.raises(FileFormatError, match="row 1 has 3 columns; the head has 2"):
        documents(table, column="words")
    table.write_bytes(b"id,words\n1,\xff\n")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        documents(table, column="words")


def test_prepare_and_tune_read_them(table: Path, tmp_path: Path) -> None:
    index = prepare([table], tmp_path / "shards", ByteTokenizer(), reading=Reading(column="words"))
    assert sum(split["documents"] for split in index["splits"].values()) == len(TEXTS)
    tokens = read_tokens([table], ByteTokenizer(), Reading(column="words"))
    assert len(tokens) == sum(1 + len(text.encode()) for text in TEXTS)
    plain, other = (find_sources([table], reading=Reading(column=name)) for name in ("words", "id"))
    assert describe_sources(plain) != describe_sources(other)  # other work is not resumed
