"""Records of a task from files, and what is wrong with them.

A .jsonl file has one object per line, a .tsv or .csv file a head line with the names of its columns, any
other file one text per line. Compressed files (.gz, .xz, .zst) are read as well. A bad record is skipped
and reported with its number, and counted at the end: one bad line in a million should cost one line.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, SettingError, iconv_advice, short_repr
from glassgpt.files import expand_user
from glassgpt.files.text import TEXT_KINDS, parse_json_lines, read_bytes, refuse_utf16, split_suffix

SHOWN = 20  # problems reported one by one; the others are only counted
TABLES = {".tsv": "\t", ".csv": ","}
TEXT_FIELD = "text"


@dataclass
class Problems:
    """What is wrong with records: a line each through `report`, and a count for the end."""

    report: Callable[[str], None] = lambda line: None
    skipped: int = 0
    last: str = ""  # why the last record was skipped
    noted: int = 0
    file: str = ""  # the current one, where there are several
    kinds: Counter[str] = field(default_factory=Counter)

    def skip(self, number: int, problem: str, kind: str) -> None:
        """A record that cannot be used."""
        self.skipped += 1
        self.last = problem
        self._add(f"record {number}: {problem}; skipped", kind)

    def note(self, number: int, remark: str, kind: str) -> None:
        """A record that is used, but not as a user may expect."""
        self.noted += 1
        self._add(f"record {number}: {remark}", kind)

    def _add(self, line: str, kind: str) -> None:
        self.kinds[kind] += 1
        if self.skipped + self.noted <= SHOWN:
            self.report(f"{self.file}, {line}" if self.file else line)

    def summary(self, total: int) -> str | None:
        """The line for the end; None if there were no problems."""
        if not self.kinds:
            return None
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return f"{self.skipped} of {total} records skipped, {self.noted} noted: {kinds}"


@dataclass(frozen=True)
class Record:
    number: int  # from 1, as a person counts them
    values: dict[str, Any]
    problem: tuple[str, str] | None = None  # what is wrong with a line that could not be read, and its kind

    def text(self, name: str, problems: Problems) -> str | None:
        """The text of a field; None, and a problem, if it is missing, empty or not a text."""
        if self.problem is not None:
            problems.skip(self.number, *self.problem)
            return None
        if name not in self.values:
            held = ", ".join(map(repr, list(self.values)[:5])) if self.values else "nothing"
            problems.skip(self.number, f"has no field {name!r} (it has {held})", "without a field")
            return None
        value = self.values[name]
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            problems.skip(self.number, f"{name} is {short_repr(value)}, not a text", "not a text")
            return None
        if not value.strip():
            problems.skip(self.number, f"{name} is empty", "empty")
            return None
        if any("\ud800" <= char <= "\udfff" for char in value):  # JSON can say half of a character
            problems.skip(self.number, f"{name} has an unpaired surrogate", "not Unicode")
            return None
        return value.strip()


def read_records(file: str | Path) -> Iterator[Record]:
    """The records of a file. A line that cannot be read is a record with a problem, so that every record has
    its place in the output; a file that cannot be read is an error."""
    path = expand_user(file)
    if path.is_dir():
        raise SettingError(f"{path} is a folder. Name a .jsonl, .tsv, .csv or text file.")
    try:
        data = read_bytes(path)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    refuse_utf16(data, path, path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileFormatError(f"{path}, line {line} is not UTF-8. {iconv_advice(path)}") from None
    suffix, _ = split_suffix(path)
    if TEXT_KINDS.get(suffix) == "jsonl":
        yield from read_json_lines(text)
    elif suffix in TABLES:
        yield from read_table(text, TABLES[suffix], path)
    else:
        yield from (Record(i, {TEXT_FIELD: line}) for i, line in enumerate(split_lines(text), start=1))


def split_lines(text: str) -> Iterator[str]:
    """The lines as an editor counts them, one by one: a list of a hundred million takes gigabytes.
    `str.splitlines` also cuts at form feeds and U+2028, which a text may contain."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return (line[0].removesuffix("\n") for line in re.finditer(r"[^\n]*\n|[^\n]+", text))


def is_table(path: Path) -> bool:
    """Whether the records of a file have named fields."""
    suffix, _ = split_suffix(path)
    return suffix in TABLES or TEXT_KINDS.get(suffix) == "jsonl"


def read_json_lines(text: str) -> Iterator[Record]:
    for number, line, values in parse_json_lines(text):
        if isinstance(values, Exception):
            yield Record(number, {}, (f"is not JSON: {short_repr(line)}", "not JSON"))
        elif isinstance(values, str):
            yield Record(number, {TEXT_FIELD: values})
        elif isinstance(values, dict):
            yield Record(number, values)
        else:
            yield Record(number, {}, (f"is {short_repr(values)}, not a JSON object", "not an object"))


def read_table(text: str, delimiter: str, path: Path) -> Iterator[Record]:
    """The rows below a head line, without empty lines."""
    rows = read_rows(text, delimiter)
    names = next(rows, [])
    if isinstance(names, csv.Error) or len(set(names)) < len(names):
        raise FileFormatError(
            f"{path} does not begin with the names of its columns, all different. Add such a line."
        )
    for number, row in enumerate(rows, start=1):
        if isinstance(row, csv.Error):
            yield Record(number, {}, (f"is not a row of a table ({row})", "not a row"))
        elif row and len(row) != len(names):
            problem = f"has {len(row)} columns, not the {len(names)} of the head line"
            yield Record(number, {}, (problem, "with other columns"))
        elif row:
            yield Record(number, dict(zip(names, row, strict=True)))


def read_rows(text: str, delimiter: str) -> Iterator[list[str] | csv.Error]:
    """The columns of each line, or what is wrong with it. In a .tsv a quotation mark is an
    ordinary character."""
    if delimiter == "\t":
        yield from (line.split(delimiter) if line else [] for line in split_lines(text))
        return
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield error


def source_of(record: Record, fields: Sequence[str], problems: Problems) -> str | None:
    """The text to work on: the first of the fields that a record has."""
    name = next((name for name in fields if name in record.values), fields[0])
    return record.text(name, problems)
