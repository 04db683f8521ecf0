"""A column of texts of a .csv or .tsv file, and of an Arrow file of a Hugging Face dataset, streamed."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError
from glassgpt.files.optional import import_package
from glassgpt.files.parquet import damaged_error

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
    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as reader:
            names = reader.schema.names
            if column not in names:
                raise FileFormatError(
                    f'{path} has no column "{column}"; its columns are {", ".join(names):.500}. Say --column.'
                )
            for batch in reader:
                values = batch.column(names.index(column))
                if values.nbytes > MOST_BATCH_BYTES:
                    raise FileFormatError(
                        f"{path}: a batch has more than {MOST_BATCH_BYTES >> 30} GiB of text."
                    )
                for value in values:
                    yield value.as_py()
                on_rows(batch.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged_error(path, error) from None
