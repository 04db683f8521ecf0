"""What the commands of tasks share: where their texts come from, and how problems are reported."""

from __future__ import annotations

import codecs
import json as jsonlib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from glassgpt.cli import terminal
from glassgpt.cli.parser.options import Flag
from glassgpt.cli.text import read_stdin
from glassgpt.errors import UserError, iconv_advice
from glassgpt.files.text import MAX_BYTES, refuse_utf16
from glassgpt.tasks.records import TEXT_FIELD, Problems, Record, read_records

BATCH = 32  # records that are computed together

File = Annotated[
    str | None, Flag("a .jsonl, .tsv or .csv file of records, or a text file, one text per line", "FILE")
]
Beams = Annotated[int | None, Flag("beam search of this width", "N", default="as the task says")]
Json = Annotated[bool, Flag("print a JSON object for each text, one per line")]

Item = TypeVar("Item")


def make_problems() -> Problems:
    return Problems(lambda line: terminal.note(f"note: {line}"))


def read_inputs(text: str | None, file: str | None, command: str) -> Iterator[Record]:
    """The records of a command: a typed text, the lines of stdin (for `-`), or those of a file.

    What is wrong with the arguments is an error now, before a model is loaded.
    """
    if file is not None:
        if text is not None:
            raise UserError(f"TEXT and --file {file} are both given. Leave one of them out.")
        check_file(file)
        return read_records(Path(file))
    if text is None and not sys.stdin.isatty():
        text = "-"
    if text == "-":
        return stdin_lines(command)
    if text is None or not text.strip():
        raise UserError(f"the text is empty. Type: glassgpt {command} 'some text'")
    if is_file(text):
        terminal.note(f"note: {text} is taken as a text; to read the file of that name: --file {text}")
    return iter([Record(1, {TEXT_FIELD: text})])


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        return False


def check_file(name: str) -> None:
    if name != "-" and not Path(name).exists():
        raise UserError(f"{name} does not exist. Check the path.")


def stdin_lines(command: str) -> Iterator[Record]:
    """Each line as it comes, so that a command works in a pipe."""
    number = 0
    lines = iter(lambda: sys.stdin.buffer.readline(MAX_BYTES + 1), b"")
    for number, raw in enumerate(lines, start=1):
        if len(raw) > MAX_BYTES:
            raise UserError(
                f"stdin, line {number} is longer than {MAX_BYTES >> 20} MiB. Split it into lines."
            )
        if number == 1:
            refuse_utf16(raw, "stdin")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"stdin, line {number} is not UTF-8: byte 0x{raw[error.start]:02x}. {iconv_advice()}"
            ) from None
        yield Record(number, {TEXT_FIELD: line.rstrip("\r\n")})
    if number == 0:
        raise UserError(f"stdin is empty. Pipe some text in, or type: glassgpt {command} 'some text'")


def read_whole(name: str) -> str:
    """A text file, or stdin, as one text."""
    if name == "-":
        return read_stdin()
    texts = []
    for record in read_records(Path(name)):
        text = record.values.get(TEXT_FIELD)
        if not isinstance(text, str):
            problem = "it has no text" if record.problem is None else record.problem[0]
            raise UserError(f'{name}, record {record.number}: {problem}. Each needs a "{TEXT_FIELD}".')
        texts.append(text)
    return "\n".join(texts)


def in_batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while some := list(islice(items, size)):
        yield some


def print_json(values: dict[str, Any]) -> None:
    """One line of JSON, with readable accents where stdout is UTF-8: the escapes of other streams, `\\xf9`,
    are not JSON's."""
    encoding = sys.stdout.encoding
    readable = encoding is None or codecs.lookup(encoding).name == "utf-8"
    print(jsonlib.dumps(values, ensure_ascii=not readable), flush=True)


def print_line(text: str) -> None:
    """One line of output for one record."""
    print(terminal.sanitize(" ".join(text.split())), flush=True)


def finish(problems: Problems, records: int, file: str | None) -> int:
    """Print the count of problems; the exit code: an error only if no record could be used."""
    if records == 0:
        raise UserError(f"{'stdin' if file is None else file} has no records. Name another file.")
    summary = problems.summary(records)
    if summary is not None and records > 1:
        terminal.note(f"note: {summary}")
    return 2 if problems.skipped >= records else 0


def note_all(notes: Sequence[str]) -> None:
    for message in dict.fromkeys(notes):
        terminal.note(f"note: {message}")
