"""A column of texts of a .parquet file, within bounds.

A page is decompressed as a whole, and a few kilobytes can expand to gigabytes: as one long page, as one long
text that many rows point to (a dictionary), or as texts that share their beginnings (DELTA_BYTE_ARRAY). In
each case no text is longer than the largest page, so the headers of all pages are read first, and fewer rows
are decoded at once where pages are large.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from glassgpt.errors import FileFormatError
from glassgpt.files.optional import import_package

LARGEST_PAGE = 1 << 27  # bytes, decompressed: as the longest line of a .jsonl
BATCH_BYTES = 1 << 26  # of texts that are decoded at once, but for a single longer one
BATCH_ROWS = 256
LONGEST_HEADER = 1 << 20  # of a page; it may have statistics, which are two texts


def damaged_error(path: Path, error: BaseException) -> FileFormatError:
    return FileFormatError(f"{path} is damaged or not what its name says ({error}). Get the file again.")


def open_parquet(path: Path, column: str = "text") -> Any:
    """The file, once it is sure that it has this column."""
    pyarrow = import_package("pyarrow", path)
    parquet = import_package("pyarrow.parquet", path)
    try:
        table = parquet.ParquetFile(path)
        schema = table.schema_arrow
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged_error(path, error) from None
    if column not in schema.names:
        names = ", ".join(schema.names)
        raise FileFormatError(f'{path} has no column "{column}"; its columns are {names:.500}.')
    for field in schema:
        if field.name == column:
            check_text_type(field, path)
    return table


def check_text_type(field: Any, path: Path) -> None:
    """A column must hold texts: some others cannot even be read, such as dates after the year 9999."""
    types = import_package("pyarrow", path).types
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if not is_text and not types.is_null(kind):
        raise FileFormatError(f'the column "{field.name}" of {path} has no texts but {field.type!s:.80}.')


def row_group_sizes(path: Path, column: str = "text") -> list[int]:
    with open_parquet(path, column) as table:
        groups = table.metadata.num_row_groups
        return [table.metadata.row_group(i).total_byte_size for i in range(groups)]


def read_column(
    path: Path,
    column: str = "text",
    start: int = 0,
    stop: int | None = None,
    on_rows: Callable[[int], None] = lambda n: None,
) -> Iterator[Any]:
    """The values of a column in the row groups from `start` to `stop`; `on_rows` gets how many were read."""
    pyarrow = import_package("pyarrow", path)
    with open_parquet(path, column) as table, open(path, "rb") as raw:
        n_groups = table.metadata.num_row_groups
        if stop is not None and stop > n_groups:
            raise damaged_error(path, EOFError(f"it has {n_groups} row groups, not {stop}"))
        for group in range(start, n_groups if stop is None else stop):
            largest = _largest_page(raw, path, _chunks(table.metadata.row_group(group), column))
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, largest)))
            try:
                for batch in table.iter_batches(batch_size=rows, row_groups=[group], columns=[column]):
                    for value in batch.column(0):  # one at a time: a list would be all of them once more
                        yield value.as_py()
                    on_rows(batch.num_rows)
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                raise damaged_error(path, error) from None


def _chunks(group: Any, column: str) -> Iterator[Any]:
    chunks = (group.column(i) for i in range(group.num_columns))
    return (chunk for chunk in chunks if chunk.path_in_schema == column)


def _largest_page(raw: IO[bytes], path: Path, chunks: Iterable[Any]) -> int:
    """The decompressed size of the largest page, by its header. Raises an error if it is too large."""
    largest, size = 0, os.fstat(raw.fileno()).st_size
    for chunk in chunks:
        at = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
            at = chunk.dictionary_page_offset
        stop = min(at + chunk.total_compressed_size, size)
        while 0 <= at < stop:
            length, expanded, compressed = _read_header(raw, path, at)
            if expanded > LARGEST_PAGE:
                raise FileFormatError(
                    f"{path} has a page that expands to {expanded >> 20:,} MiB. The most is "
                    f"{LARGEST_PAGE >> 20}. Write it with smaller pages, or store long texts as .txt files."
                )
            largest = max(largest, expanded)
            at += length + compressed
    return largest


def _read_header(raw: IO[bytes], path: Path, at: int) -> tuple[int, int, int]:
    """The length of a page's header, and the size of the page decompressed and as it is in the file."""
    length = 256
    while True:
        raw.seek(at)
        data = raw.read(length)
        try:
            sizes: dict[int, int] = {}
            end = _read_struct(data, 0, sizes)
            expanded, compressed = sizes[2], sizes[3]
        except IndexError:
            if len(data) < length or length >= LONGEST_HEADER:
                raise damaged_error(path, EOFError("the header of a page is incomplete")) from None
            length *= 8
        except (KeyError, ValueError, RecursionError):
            raise damaged_error(path, ValueError("the header of a page cannot be read")) from None
        else:
            if expanded < 0 or compressed < 0:
                raise damaged_error(path, ValueError("a page has a negative size"))
            return end, expanded, compressed


# Thrift's compact protocol, as far as the header of a page needs it.


def _read_struct(data: bytes, at: int, integers: dict[int, int] | None = None) -> int:
    """Skip a struct; returns where it ends. Its integers are stored under the numbers of their fields."""
    field = 0
    while data[at]:
        kind, delta = data[at] & 15, data[at] >> 4
        at += 1
        if delta:
            field += delta
        else:
            number, at = _read_varint(data, at)
            field = (number >> 1) ^ -(number & 1)
        if kind in (4, 5, 6) and integers is not None:  # zigzag
            number, at = _read_varint(data, at)
            integers[field] = (number >> 1) ^ -(number & 1)
        elif kind > 2:  # 1 and 2 are true and false
            at = _skip(data, at, kind)
    return at + 1


def _skip(data: bytes, at: int, kind: int) -> int:
    if kind in (1, 2, 3):
        return at + 1
    if kind in (4, 5, 6):
        return _read_varint(data, at)[1]
    if kind == 7:
        return at + 8
    if kind == 8:
        length, at = _read_varint(data, at)
        if at + length > len(data):
            raise IndexError
        return at + length
    if kind in (9, 10):
        count, kind, at = data[at] >> 4, data[at] & 15, at + 1
        if count == 15:
            count, at = _read_varint(data, at)
        for _ in range(count):
            at = _skip(data, at, kind)
            data[at - 1]  # its end is there
        return at
    if kind == 12:
        return _read_struct(data, at)
    raise ValueError(kind)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(value)
