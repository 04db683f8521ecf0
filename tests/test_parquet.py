"""Tables of a few kilobytes that expand to gigabytes, and the headers of pages."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from glassgpt.errors import FileFormatError
from glassgpt.files.parquet import _largest_page, _read_struct, open_parquet, read_column
from glassgpt.files.text import read_texts

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

MB = 1 << 20


def write(path: Path, texts: Any, **options: Any) -> Path:
    defaults = {"compression": "zstd", "write_statistics": False, "use_dictionary": False}
    parquet.write_table(pa.table({"text": texts}), path, **{**defaults, **options})
    assert path.stat().st_size < 40_000
    return path


def peak_of(path: Path, rows: int) -> int:
    """The bytes that a process needs to read the first rows, beyond what it had."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        texts = read_texts(path)
        for _ in range(rows):
            next(texts)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(write, str(grown << 10).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as found:
        peak = int(found.read())
    os.waitpid(child, 0)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dictionary", "shared beginnings"])
def test_few_kilobytes_do_not_take_gigabytes(tmp_path: Path, kind: str) -> None:
    """256 rows of 4 MB each are a gigabyte."""
    text = "a" * (4 * MB)
    if kind == "dictionary":
        rows = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([text]))
        path = write(tmp_path / "a.parquet", rows, use_dictionary=True, dictionary_pagesize_limit=1 << 30)
    else:
        path = write(tmp_path / "a.parquet", [text] * 64, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    assert peak_of(path, 40) < 300 * MB


def test_a_page_that_expands_too_far_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ["a" * (130 * MB)])
    with pytest.raises(FileFormatError, match=r"a\.parquet has a page that expands to 130 MiB"):
        next(read_texts(path))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_all_pages_are_found(tmp_path: Path, version: str, dictionary: bool) -> None:
    texts = [f"{number}" * (1 + number % 50) for number in range(20_000)]
    table = pa.table({"other": list(range(20_000)), "text": texts})
    path = tmp_path / "a.parquet"
    options = {"data_page_version": version, "use_dictionary": dictionary, "data_page_size": 10_000}
    parquet.write_table(table, path, row_group_size=7_000, **options)
    with open_parquet(path) as file, open(path, "rb") as raw:
        for number in range(3):
            chunk = file.metadata.row_group(number).column(1)
            largest = _largest_page(raw, path, [chunk])
            assert 5_000 < largest <= chunk.total_uncompressed_size
    assert list(read_column(path)) == texts


def test_an_unusual_column_is_named(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": [["a"], ["b"]]}), tmp_path / "a.parquet")
    with pytest.raises(FileFormatError, match=r'the column "text" of .*a\.parquet has no texts but list<'):
        next(read_texts(tmp_path / "a.parquet"))


def test_a_header_that_never_ends_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["one", "two"]}), path, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    with open_parquet(path) as file:
        at = file.metadata.row_group(0).column(0).data_page_offset
    for damage in (b"\x1c" * 60, b"\xff" * 40, b"\x15\x01\x15\x01\x15\x01", b"\x00"):
        changed = bytearray(data)
        changed[at : at + len(damage)] = damage
        path.write_bytes(changed[: len(data)])
        with pytest.raises(FileFormatError, match="damaged"):
            list(read_texts(path))


def test_a_skipped_struct_ends_where_it_ends() -> None:
    integers: dict[int, int] = {}
    binary = b"\x18\x02ab"  # field 1
    inner = b"\x1c" + b"\x15\x04\x00"  # field 2: a struct with the integer 2
    listed = b"\x19\x23\x01\x02"  # field 3: a list of two bytes
    number = b"\x15\x09" + b"\x05\x14\x07"  # field 4: -5; field 10, numbered in full: -4
    data = binary + inner + listed + number + b"\x00tail"
    assert data[_read_struct(data, 0, integers) :] == b"tail"
    assert integers == {4: -5, 10: -4}
