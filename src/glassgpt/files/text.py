"""The one reader of text files: .txt, .md, .jsonl and .parquet, plain or compressed (.gz, .xz, .zst).

Files are streamed: only a few blocks are in memory, except for a single .jsonl or .parquet record, which is
one document and is read whole.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from glassgpt.errors import FileFormatError, iconv_advice
from glassgpt.files import file_size
from glassgpt.files.optional import import_package
from glassgpt.files.parquet import damaged_error, open_parquet, read_column
from glassgpt.files.tables import DELIMITERS, read_arrow_column, read_csv_column
from glassgpt.progress import Advance

BLOCK = 1 << 20  # bytes read at a time
LONGEST_LINE = 1 << 27  # bytes of one line of .jsonl; a longer one is a mistake, not a document
MAX_BYTES = 1 << 28  # of a file or stream that is read whole; decoded it may take four times as much memory

TEXT_KINDS = {".txt": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSIONS = (".gz", ".xz", ".zst")


@dataclass(frozen=True)
class SourceFile:
    """An input file as it was found; `read_documents` reads it."""

    path: Path
    kind: str  # "text", "lines", "jsonl", "parquet", "csv", "arrow"; `train.data` adds "tokens"
    compression: str  # ".gz", ".xz", ".zst" or ""
    size: int  # bytes on disk
    mtime_ns: int
    column: str = "text"  # of a table, or the field of a .jsonl

    @classmethod
    def open(cls, path: Path) -> SourceFile:
        """A file of any name: unknown suffixes are plain text."""
        kind, compression = detect_kind(path)
        return cls.of_kind(path, kind if kind else "text", compression)

    @classmethod
    def of_kind(cls, path: Path, kind: str, compression: str, column: str = "text") -> SourceFile:
        size = file_size(path)
        if compression == ".zst":
            import_package("zstandard", path)
        if kind in ("parquet", "arrow"):
            import_package("pyarrow", path)
        return cls(path, kind, compression, size, path.stat().st_mtime_ns, column)


@dataclass(frozen=True)
class Chunk:
    """A range of a source, in bytes, row groups of a table or tokens. `stop=None` means the whole source."""

    source: SourceFile
    start: int = 0
    stop: int | None = None


def detect_kind(path: Path) -> tuple[str, str]:
    """`("text", ".gz")` for a.txt.gz; `("", compression)` for an unknown suffix."""
    suffix, compression = split_suffix(path)
    kind = TEXT_KINDS.get(suffix, "")
    return ("" if compression and kind == "parquet" else kind), compression


def split_suffix(path: Path) -> tuple[str, str]:
    """`(".txt", ".gz")` for a.txt.gz: the suffixes of the content and of its compression, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    return suffixes[-1] if suffixes else "", compression


# Documents.


def read_texts(path: Path) -> Iterator[tuple[str, bool]]:
    """The texts of a whole file in order, each with whether it ends a document."""
    return read_documents(Chunk(SourceFile.open(path)))


def read_documents(chunk: Chunk, on_read: Advance = lambda n: None) -> Iterator[tuple[str, bool]]:
    """The texts of a chunk in order, each with whether it ends a document.

    A .txt arrives in blocks, the last of them empty; a .jsonl line and a .parquet row are a document each.
    """
    readers = {
        "text": _read_text, "lines": _read_plain_lines, "jsonl": _read_json_lines, "parquet": _read_parquet,
        "csv": _read_csv, "arrow": _read_arrow,
    }  # fmt: skip
    with explain_read_errors(chunk.source):
        yield from readers[chunk.source.kind](chunk, on_read)


@contextmanager
def explain_read_errors(source: SourceFile) -> Iterator[None]:
    """Turn what the system says into an error that names the file, and name a file that changed as such."""
    try:
        yield
    except OSError as error:
        reason = error.strerror if error.strerror is not None else str(error)
        raise FileFormatError(f"{source.path} cannot be read: {reason}. Check the file.") from None
    except FileFormatError:
        if _has_changed(source):  # which is why it appears damaged
            raise changed_error(source) from None
        raise


def _read_text(chunk: Chunk, on_read: Advance) -> Iterator[tuple[str, bool]]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = 0
    first = chunk.start == 0
    for block, last in _mark_last(read_blocks(chunk, on_read)):
        if first:
            refuse_utf16(block, chunk.source.path, chunk.source.path)
        try:
            text = decoder.decode(block, last)
        except UnicodeDecodeError as error:
            line = lines + bytes(error.object[: error.start]).count(b"\n") + 1
            raise _not_utf8(chunk, line, error) from None
        lines += block.count(b"\n")
        # A byte order mark is not part of the text.
        yield text.removeprefix("\ufeff") if first else text, last
        first = False


def _mark_last(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    for block in blocks:
        yield block, False
    yield b"", True


def _read_json_lines(chunk: Chunk, on_read: Advance) -> Iterator[tuple[str, bool]]:
    for number, line in _read_lines(chunk, on_read):
        if number == 1 and chunk.start == 0:
            refuse_utf16(line, chunk.source.path, chunk.source.path)
        if line.isspace() or not line:
            continue
        try:
            record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise _not_utf8(chunk, number, error) from None
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{_locate(chunk, number)} is not JSON: {error.msg}.") from None
        except (ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{_locate(chunk, number)} is not JSON that can be read: {error}."
            ) from None
        name = chunk.source.column
        text = record.get(name) if isinstance(record, dict) else None
        if not isinstance(text, str):
            wrong = isinstance(record, dict) and name in record
            problem = (
                f'"{name}" of type {type(text).__name__}, not a string' if wrong else f'no "{name}" field'
            )
            raise FileFormatError(
                f'{_locate(chunk, number)} has {problem}. Each line must look like {{"{name}": "..."}}.'
            )
        yield text, True


def _read_plain_lines(chunk: Chunk, on_read: Advance) -> Iterator[tuple[str, bool]]:
    """A document for each line that is not blank."""
    for number, line in _read_lines(chunk, on_read):
        if number == 1 and chunk.start == 0:
            refuse_utf16(line, chunk.source.path, chunk.source.path)
        if line.isspace() or not line:
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 and chunk.start == 0 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(chunk, number, error) from None
        yield text.rstrip("\r"), True


def _read_csv(chunk: Chunk, on_read: Advance) -> Iterator[tuple[str, bool]]:
    source = chunk.source
    delimiter = DELIMITERS[split_suffix(source.path)[0]]
    for _, text in read_csv_column(read_blocks(chunk, on_read), source.path, delimiter, source.column):
        if text:
            yield text, True


def _read_arrow(chunk: Chunk, on_read: Advance) -> Iterator[tuple[str, bool]]:
    path, column = chunk.source.path, chunk.source.column
    on_read(chunk.source.size)
    for row, text in enumerate(read_arrow_column(path, column), start=1):
        if not isinstance(text, str):
            raise FileFormatError(f"{path}, row {row} has no text. Remove such rows.")
        if text:
            yield text, True


def _read_lines(chunk: Chunk, on_read: Advance) -> Iterator[tuple[int, bytes]]:
    pending: list[bytes] = []  # the blocks of a line longer than one block
    length = number = 0
    for block in read_blocks(chunk, on_read):
        first, *others = block.split(b"\n")
        pending.append(first)
        length += len(first)
        if length > LONGEST_LINE:
            raise FileFormatError(
                f"{_locate(chunk, number + 1)} is longer than {LONGEST_LINE >> 20} MiB. "
                "Store long texts as .txt files."
            )
        if not others:
            continue
        number += 1
        yield number, b"".join(pending)
        for line in others[:-1]:
            number += 1
            yield number, line
        pending, length = [others[-1]], len(others[-1])
    yield number + 1, b"".join(pending)


def _read_parquet(chunk: Chunk, on_read: Advance) -> Iterator[tuple[str, bool]]:
    path = chunk.source.path
    column = chunk.source.column
    with open_parquet(path, column) as table:
        metadata = table.metadata
        row = sum(metadata.row_group(i).num_rows for i in range(min(chunk.start, metadata.num_row_groups)))
        bytes_per_row = chunk.source.size / max(1, metadata.num_rows)
    is_empty = True
    texts = read_column(
        path, column, chunk.start, chunk.stop, lambda rows: on_read(int(bytes_per_row * rows))
    )
    for text in texts:
        row, is_empty = row + 1, False
        if not isinstance(text, str):
            raise FileFormatError(f"{path}, row {row} has no text. Remove such rows.")
        yield text, True
    if is_empty:
        raise FileFormatError(f"{path} has no rows. Leave it out.")


def parse_json_lines(text: str) -> Iterator[tuple[int, str, Any]]:
    """The number, the text and the value of each line of a .jsonl that is not blank. The value of a line that
    is not JSON is the error."""
    for number, line in lines_with_text(text):  # no string of JSON has the end of a line in it
        try:
            yield number, line, json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, line, error


def lines_with_text(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers, one by one; blank ones are passed over all at once: a
    few hundred kilobytes of .gz can be as many millions of them."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    number, end = 1, 0
    for found in re.finditer(r"\S[^\n]*", text):
        number += text.count("\n", end, found.start())
        end = found.end()
        yield number, text[text.rfind("\n", 0, found.start()) + 1 : end]


# Bytes.


def read_bytes(path: Path) -> bytes:
    """All of a file, decompressed if its suffix says so: at most MAX_BYTES, since a device never ends and a
    few compressed kilobytes can be gigabytes. A pipe is read like a file."""
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    with open(path, "rb") as raw:
        if not compression:
            return read_stream(raw, path)
        return _join_bounded(decompress(raw, compression, path), path)


def read_stream(raw: IO[bytes], name: object) -> bytes:
    """All of an open stream, at most MAX_BYTES."""
    return _join_bounded(iter(lambda: raw.read(BLOCK), b""), name)


def _join_bounded(blocks: Iterator[bytes], name: object) -> bytes:
    data = bytearray()
    for block in blocks:
        if len(data) + len(block) > MAX_BYTES:
            raise FileFormatError(
                f"{name} has more than {MAX_BYTES >> 20} MiB of text, too much to read at once. "
                "Split it into smaller files."
            )
        data += block
    return bytes(data)


def read_blocks(chunk: Chunk, on_read: Advance) -> Iterator[bytes]:
    """The decompressed bytes of a chunk; an uncompressed file can be cut at the places `align` finds."""
    source = chunk.source
    with open(source.path, "rb") as raw:
        if not source.compression:
            stop = source.size if chunk.stop is None else align(raw, source, chunk.stop)
            at = align(raw, source, chunk.start)
            raw.seek(at)
            while at < stop:
                block = raw.read(min(BLOCK, stop - at))
                if not block:
                    raise changed_error(source)
                on_read(len(block))
                at += len(block)
                yield block
            return
        at = 0
        for block in decompress(raw, source.compression, source.path):
            if raw.tell() != at:
                on_read(raw.tell() - at)
                at = raw.tell()
            yield block


def decompress(raw: IO[bytes], compression: str, path: Path) -> Iterator[bytes]:
    if compression == ".zst":
        yield from _decompress_zst(raw, path)
        return
    try:
        with gzip.GzipFile(fileobj=raw) if compression == ".gz" else lzma.LZMAFile(raw) as file:
            while block := file.read(BLOCK):
                yield block
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged_error(path, error) from None


def _decompress_zst(raw: IO[bytes], path: Path) -> Iterator[bytes]:
    zstandard = import_package("zstandard", path)
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    out: list[bytes] = []
    length = 0
    # 4 KiB at a time: they expand to at most 128 MiB, whoever made the file.
    while data := raw.read(1 << 12):
        while data:
            frame = decompressor.decompressobj() if frame is None else frame
            try:
                out.append(frame.decompress(data))
            except zstandard.ZstdError as error:
                raise damaged_error(path, error) from None
            length += len(out[-1])
            data = b""
            if frame.eof:  # a file may be several frames in sequence
                data, frame = frame.unused_data, None
        if length >= BLOCK:
            yield b"".join(out)
            out, length = [], 0
    if frame is not None:
        raise damaged_error(path, EOFError("it ends too early"))
    yield b"".join(out)


def align(raw: IO[bytes], source: SourceFile, offset: int) -> int:
    """The first position at or after `offset` where the file can be cut: a pure function of the file.

    A .jsonl, or a text of lines, is cut after a line. Another text is cut before a newline that follows a
    visible ASCII character, so that no word is cut in two; if there is none for a megabyte, between any two
    characters.
    """
    if offset in (0, source.size):
        return offset
    raw.seek(offset - 1)
    if source.kind in ("jsonl", "lines"):
        at = offset - 1
        while block := raw.read(BLOCK):
            newline = block.find(b"\n")
            if newline >= 0:
                return at + newline + 1
            at += len(block)
        if at < source.size:
            raise changed_error(source)
        return source.size
    block = raw.read(BLOCK)
    if len(block) < 2:  # the file was longer when it was listed
        raise changed_error(source)
    newline = block.find(b"\n", 1)
    while newline >= 0:
        if 0x21 <= block[newline - 1] <= 0x7E:
            return offset - 1 + newline
        newline = block.find(b"\n", newline + 1)
    inner = next(i for i in range(1, len(block) + 1) if i == len(block) or block[i] & 0xC0 != 0x80)
    return offset - 1 + inner


# Encodings.

# What begins each of them, the longer ones first: UTF-32's little-endian mark begins with that of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def detect_utf16(data: bytes) -> str | None:
    """iconv's name for the encoding of a text in UTF-16 or UTF-32, from its first bytes, or None.

    Without a byte order mark, half of the bytes of most texts in UTF-16 are zero, and always every other one.
    UTF-8 allows zeros, so that such a text is not found by decoding it.
    """
    for mark, name in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return name
    even, odd = data[:256:2], data[1:256:2]
    if len(odd) >= 4 and 0 not in even and odd.count(0) > len(odd) / 2:
        return "UTF-16LE"
    if len(odd) >= 4 and 0 not in odd and even.count(0) > len(even) / 2:
        return "UTF-16BE"
    return None


def refuse_utf16(data: bytes, name: object, path: Path | None = None) -> None:
    """Raise an error with the command that converts it if a text begins as UTF-16 does."""
    encoding = detect_utf16(data)
    if encoding is not None:
        raise FileFormatError(f"{name} is {encoding[:6]}, not UTF-8. {iconv_advice(path, encoding)}")


# Errors.


def _locate(chunk: Chunk, line: int) -> str:
    """File and line. The lines before this chunk are counted only now that they are needed."""
    source = chunk.source
    if chunk.start and not source.compression:
        with open(source.path, "rb") as raw:
            remaining = align(raw, source, chunk.start)
            raw.seek(0)
            while remaining and (block := raw.read(min(BLOCK, remaining))):
                line += block.count(b"\n")
                remaining -= len(block)
    return f"{source.path}, line {line}"


def _has_changed(source: SourceFile) -> bool:
    try:
        now = source.path.stat()
    except OSError:
        return True
    return (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns)


def changed_error(source: SourceFile) -> FileFormatError:
    return FileFormatError(
        f"{source.path} changed while it was being read: it had {source.size:,} bytes. "
        "Run the command again once the file is no longer being written."
    )


def _not_utf8(chunk: Chunk, line: int, error: UnicodeDecodeError) -> FileFormatError:
    byte = error.object[error.start]
    return FileFormatError(
        f"{_locate(chunk, line)} is not UTF-8 (byte 0x{byte:02x}: {error.reason}). "
        f"{iconv_advice(chunk.source.path)}"
    )
