"""A column of texts of a .csv or .tsv file, and of an Arrow file of a Hugging Face dataset, streamed."""

from __future__ import annotations

import codecs
import csv
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError
from glassgpt.files.optional import import_package
from glassgpt.files.parquet import check_text_type, damaged_error

LONGEST_FIELD = 1 << 27  # characters: as the longest line of a .jsonl
MOST_BATCH_BYTES = 1 << 30  # of the texts that one batch of an Arrow file holds
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_csv_column(
    blocks: Iterable[bytes], path: Path, delimiter: str, column: str
) -> Iterator[tuple[int, str]]:
    """The number and the text of each row, after a head line with the columns' names."""
    csv.field_size_limit(LONGEST_FIELD)
    rows = csv.reader(_text_lines(blocks, path), delimiter=delimiter)
    try:
        head = next(rows, [])
        if column not in head:
            raise FileFormatError(f'{path} has no column "{column}"; its columns are {", ".join(head):.500}.')
        place = head.index(column)
        for number, row in enumerate(rows, start=1):
            if not row:
                continue
            if len(row) != len(head):
                raise FileFormatError(
                    f"{path}, row {number} has {len(row)} columns; the head has {len(head)}."
                )
            yield number, row[place]
    except csv.Error as error:
        raise damaged_error(path, error) from None


def _text_lines(blocks: Iterable[bytes], path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    try:
        for block in blocks:
            rest += decoder.decode(block)
            *lines, rest = rest.split("\n")
            if len(rest) > LONGEST_FIELD:
                raise FileFormatError(f"{path} has a line longer than {LONGEST_FIELD >> 20} MiB.")
            yield from (f"{line}\n" for line in lines)
        rest += decoder.decode(b"", True)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 ({error.reason}). Convert it to UTF-8.") from None
    if rest:
        yield rest


def is_dataset(folder: Path) -> bool:
    """Whether `datasets` wrote this folder, with save_to_disk."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a dataset's folder, in order; of several splits, those of `train`."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = _read_list(splits, "splits")
        if "train" not in names:
            raise FileFormatError(
                f"{folder} has the splits {', '.join(map(str, names)):.300}, and no train. Name one folder."
            )
        return dataset_files(folder / "train")
    entries = _read_list(folder / "state.json", "_data_files")
    files = [folder / str(entry.get("filename")) for entry in entries if isinstance(entry, dict)]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise FileFormatError(
                f"{folder}/state.json names {file.name!r}, which is not there. Save it again."
            )
    return files


def _read_list(file: Path, name: str) -> list[Any]:
    try:
        values = json.loads(file.read_bytes())[name]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged_error(file, error) from None
    if not isinstance(values, list):
        raise damaged_error(file, TypeError(f"{name} is not a list"))
    return values


def read_arrow_column(
    path: Path, column: str, on_rows: Callable[[int], None] = lambda n: None
) -> Iterator[Any]:
    """The values of a column of an Arrow stream, as `datasets` writes it."""
    pyarrow = import_package("pyarrow", path)
    compute = import_package("pyarrow.compute", path)
    try:
        with pyarrow.memory_map(str(path)) as source:
            check_sizes(pyarrow, source, path)
            source.seek(0)
            with pyarrow.ipc.open_stream(source) as reader:
                names = reader.schema.names
                if column not in names:
                    raise FileFormatError(
                        f'{path} has no column "{column}"; its columns are {", ".join(names):.500}. '
                        "Say --column."
                    )
                place = names.index(column)
                check_text_type(reader.schema.field(place), path)
                for batch in reader:
                    values = batch.column(place)
                    values.validate(full=True)  # offsets are pointers: with wrong ones the process would end
                    if size_of_texts(compute, values) > MOST_BATCH_BYTES:
                        raise too_large(path)
                    for value in values:
                        yield value.as_py()
                    on_rows(batch.num_rows)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged_error(path, error) from None


def size_of_texts(compute: Any, values: Any) -> int:
    """The bytes of a column's texts; many rows may point to one text of a dictionary."""
    if not hasattr(values, "dictionary"):
        return int(values.nbytes)
    lengths = compute.binary_length(values.dictionary).take(values.indices)
    return int(compute.sum(lengths.cast("int64")).as_py() or 0)


def too_large(path: Path) -> FileFormatError:
    return FileFormatError(f"{path}: a batch has more than {MOST_BATCH_BYTES >> 30} GiB of text.")


# A compressed batch is expanded as a whole, with columns that nobody asked for. The size of each of its
# buffers is written before it; where they are is in a flatbuffer, which pyarrow has checked.


def check_sizes(pyarrow: Any, source: Any, path: Path) -> None:
    """Raise an error if a batch of an Arrow stream expands to too much."""
    for message in pyarrow.ipc.MessageReader.open_stream(source):
        head, kind = message.metadata.to_pybytes(), message.type
        if kind not in ("record batch", "dictionary"):
            continue
        batch = follow(head, field_of(head, follow(head, 0), 2))
        if kind == "dictionary":
            batch = follow(head, field_of(head, batch, 1))
        if field_of(head, batch, 3) is not None and expanded_size(message, head, batch) > MOST_BATCH_BYTES:
            raise too_large(path)


def expanded_size(message: Any, head: bytes, batch: int) -> int:
    """The bytes of a compressed batch's buffers, as they say themselves."""
    buffers = follow(head, field_of(head, batch, 2))
    (count,) = struct.unpack_from("<I", head, buffers)
    total = 0
    for number in range(count):
        start, length = struct.unpack_from("<qq", head, buffers + 4 + 16 * number)
        if length >= 8 and 0 <= start <= message.body.size - length:
            (size,) = struct.unpack("<q", message.body.slice(start, 8).to_pybytes())
            total += length if size < 0 else size  # -1: it is stored as it is
    return total


def field_of(head: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table is; None if it is left out."""
    places = table - int(struct.unpack_from("<i", head, table)[0])
    if 4 + 2 * number >= int(struct.unpack_from("<H", head, places)[0]):
        return None
    at = int(struct.unpack_from("<H", head, places + 4 + 2 * number)[0])
    return table + at if at else None


def follow(head: bytes, at: int | None) -> int:
    """What an offset in a flatbuffer points to."""
    if at is None:
        raise OSError("a batch is incomplete")
    return at + int(struct.unpack_from("<I", head, at)[0])
