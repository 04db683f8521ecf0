"""`--lines` and `--column`: a document for each line of a text, or each row of a table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

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
