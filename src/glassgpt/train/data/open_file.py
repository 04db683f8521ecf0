"""Opening files of every kind that may be given: what they need, and what to say when they are damaged."""

from __future__ import annotations

import gzip
import importlib
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from glassgpt.errors import FileFormatError, UserError

BLOCK = 1 << 20  # bytes read at a time


def needed(name: str, path: Path) -> Any:
    """A package that only some files need."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{path} needs {name}, which is not installed. Type: pip install {name}") from None


def row_group_sizes(path: Path) -> list[int]:
    with open_table(path) as table:
        groups = table.metadata.num_row_groups
        return [table.metadata.row_group(i).total_byte_size for i in range(groups)]


def open_table(path: Path) -> Any:
    pyarrow = needed("pyarrow", path)
    parquet = needed("pyarrow.parquet", path)
    try:
        table = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged(path, error) from None
    names = table.schema_arrow.names
    if "text" not in names:
        raise FileFormatError(f'{path} has no column "text"; its columns are {", ".join(names)}.')
    return table


def unpacked(raw: IO[bytes], packing: str, path: Path) -> Iterator[bytes]:
    if packing == ".zst":
        yield from _unpacked_zst(raw, path)
        return
    with gzip.GzipFile(fileobj=raw) if packing == ".gz" else lzma.LZMAFile(raw) as file:
        while block := file.read(BLOCK):
            yield block


def _unpacked_zst(raw: IO[bytes], path: Path) -> Iterator[bytes]:
    zstandard = needed("zstandard", path)
    unpacker = zstandard.ZstdDecompressor()
    frame = None
    out: list[bytes] = []
    length = 0
    # Little by little: 4 KiB can hold at most 128 MiB, whoever made the file.
    while data := raw.read(1 << 12):
        while data:
            frame = unpacker.decompressobj() if frame is None else frame
            try:
                out.append(frame.decompress(data))
            except zstandard.ZstdError as error:
                raise damaged(path, error) from None
            length += len(out[-1])
            data = b""
            if frame.eof:  # files may be several frames one after the other
                data, frame = frame.unused_data, None
        if length >= BLOCK:
            yield b"".join(out)
            out, length = [], 0
    if frame is not None:
        raise damaged(path, EOFError("it ends too early"))
    yield b"".join(out)


def damaged(path: Path, error: BaseException) -> FileFormatError:
    return FileFormatError(f"{path} is damaged or not what its name says ({error}). Get the file again.")
