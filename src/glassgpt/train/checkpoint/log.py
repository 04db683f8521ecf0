"""The .jsonl files of a run (log, samples, environment), as far as they can be read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError

StepRecord = Mapping[str, Any]  # `step`, and the values measured at that step


def read_log(file: Path) -> list[dict[str, Any]]:
    """The records of a file, or none if it does not exist.

    A last line that a kill truncated is dropped; any other line that is not a record gives a warning.
    """
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}. Restore or remove it.") from None
    records = [parse_step_record(line) for line in lines]
    invalid = [number for number, record in enumerate(records, start=1) if record is None]
    if invalid and invalid != [len(lines)]:
        others = "" if len(invalid) == 1 else f" (nor are {len(invalid) - 1} others)"
        warnings.warn(f"{file}, line {invalid[0]} is not a record of a step{others}: ignored.", stacklevel=2)
    return [record for record in records if record is not None]


def parse_step_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line, parse_constant=lambda word: None)  # NaN, which is not JSON
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53 else None
