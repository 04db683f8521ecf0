"""Reading files that may be hostile: sizes are checked before memory is allocated, errors take one line."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, SettingError, short_repr

# The index of a sharded GPT-2 XL is 50 kB. Parsed JSON takes up to thirty times its own size in memory.
JSON_LIMIT = 2**20


def expand_user(path: str | Path) -> Path:
    """The path with its ~ expanded; pathlib raises a RuntimeError for a user that does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = str(path).split("/")[0][1:]
        raise SettingError(f"{path}: there is no user {user}. Write the path in full.") from None


def file_size(path: str | Path) -> int:
    """The size of a regular file. Devices, pipes and folders raise: reading them might never end."""
    path = Path(path)
    try:
        if not path.is_file():
            kind = "is a folder, not a file" if path.is_dir() else "does not exist or is not a regular file"
            raise FileFormatError(f"{path} {kind}. Check the path.")
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """The contents of a regular file of at most `limit` bytes."""
    path = Path(path)
    size = file_size(path)
    if limit is not None and size > limit:
        raise FileFormatError(f"{path} has {size:,} bytes; at most {limit:,} are expected. Check the file.")
    try:
        with path.open("rb") as file:
            return file.read() if limit is None else file.read(limit)
    except OSError as error:
        raise _unreadable(path, error) from None


def read_text(path: str | Path, limit: int) -> str:
    """A UTF-8 text file of at most `limit` bytes."""
    return _decode(read_bytes(path, limit), path)


def read_json(path: str | Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes."""
    return parse_json(read_bytes(path, limit), path)


def parse_json(data: str | bytes, where: str | Path) -> dict[str, Any]:
    """The object that `data` encodes; `where` names its source in errors."""
    text = data if isinstance(data, str) else _decode(data, where).removeprefix("\ufeff")
    try:
        values = json.loads(text)
    except RecursionError:
        raise FileFormatError(f"{where} is not JSON (nested too deeply). Download the file again.") from None
    except ValueError as error:  # bad JSON, an integer of thousands of digits
        raise FileFormatError(f"{where} is not JSON ({error}). Download the file again.") from None
    if not isinstance(values, dict):
        raise FileFormatError(f"{where} contains a JSON {type(values).__name__}, not an object.")
    return values


def path_inside(folder: str | Path, name: object) -> Path:
    """The file of that plain name in the folder: an index must not lead out of its own folder."""
    if not isinstance(name, str) or not name or name in {".", ".."} or any(c in name for c in "/\\\0:"):
        raise FileFormatError(
            f"{folder}: the index names the file {short_repr(name)}, which is not a plain file name."
        )
    return Path(folder) / name


def file_crc32(file: Path) -> int:
    """CRC-32, as in zip files."""
    value = 0
    with file.open("rb") as handle:
        while chunk := handle.read(1 << 24):
            value = zlib.crc32(chunk, value)
    return value


def _decode(data: bytes, where: str | Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{where} is not UTF-8 text (byte {error.start:,}). Download the file again."
        ) from None


def _unreadable(path: Path, error: OSError) -> FileFormatError:
    return FileFormatError(f"{path} cannot be read: {error.strerror}. Check the path.")
