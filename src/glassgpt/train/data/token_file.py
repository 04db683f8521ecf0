"""A file of token ids: one of our shards, nanoGPT's `train.bin`, or llm.c's with its header.

Files are not memory-mapped: truncating a mapped file would kill the process with SIGBUS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.files import file_size
from glassgpt.files.byte_reader import ByteReader
from glassgpt.train.data.file_kinds import detect_content

LLMC_MAGIC = 20240520
LLMC_HEADER = 1024  # bytes: 256 int32: magic, version, number of tokens, zeros
SCAN_BLOCK = 1 << 22  # tokens (or bytes) scanned at a time


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Two bytes per token if the vocabulary allows it."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class TokenFile:
    """The ids in a file, read on demand."""

    def __init__(self, path: Path, dtype: str | np.dtype[Any], offset: int, count: int) -> None:
        self.path, self.dtype, self.offset, self.count = path, np.dtype(dtype), offset, count
        self._bytes = ByteReader(path)

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, count: int) -> np.ndarray:
        """Up to `count` ids from `start` on; fewer at the end of the file."""
        ids = max(0, min(count, self.count - start))
        return self._bytes.array(self.offset + start * self.dtype.itemsize, (ids,), self.dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All ids, a block at a time, each with its position."""
        for at in range(0, self.count, SCAN_BLOCK):
            yield at, self.read(at, SCAN_BLOCK)


def open_token_file(path: Path) -> TokenFile:
    """Open a token file of nanoGPT or llm.c (the latter starts with a header)."""
    size = file_size(path)
    header = np.fromfile(path, dtype="<i4", count=3) if size >= LLMC_HEADER else np.zeros(3, "<i4")
    if header[0] == LLMC_MAGIC:
        if header[1] != 1:
            raise FileFormatError(
                f"{path} is llm.c data of version {header[1]}; only version 1 is supported."
            )
        expected = LLMC_HEADER + 2 * int(header[2])
        if expected != size:
            raise FileFormatError(
                f"{path} declares {int(header[2]):,} tokens ({expected:,} bytes) but has {size:,} bytes. "
                "Get the file again."
            )
        return TokenFile(path, "<u2", LLMC_HEADER, int(header[2]))
    kind = detect_content(path)
    if kind is not None:
        raise FileFormatError(f"{path} is {kind.name}, not a file of token ids. {kind.hint_for(path)}")
    if size == 0 or size % 2:
        raise FileFormatError(f"{path} has {size:,} bytes, which is not a whole number of 2-byte token ids.")
    return TokenFile(path, "<u2", 0, size // 2)


def is_llmc(path: Path) -> bool:
    """Whether a token file has llm.c's header. There <|endoftext|> precedes a document."""
    return file_size(path) >= LLMC_HEADER and np.fromfile(path, "<i4", count=1)[0] == LLMC_MAGIC
