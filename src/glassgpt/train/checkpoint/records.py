"""The .jsonl files of a run (log, samples, environment), as far as they can be read."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of a file, or none if it does not exist.

    A last line that a kill truncated is dropped; any other line that is not a record gives a warning.
    """
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}. Restore or remove it.") from None
    read = [parse_record(line) for line in lines]
    wrong = [number for number, record in enumerate(read, start=1) if record is None]
    if wrong and wrong != [len(lines)]:
        more = "" if len(wrong) == 1 else f" (nor are {len(wrong) - 1} others)"
        warnings.warn(f"{file}, line {wrong[0]} is not a record of a step{more}: ignored.", stacklevel=2)
    return [record for record in read if record is not None]


def parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line, parse_constant=lambda word: None)  # NaN, which is not JSON
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53 else None
