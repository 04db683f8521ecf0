"""Units of work, read as pieces of documents.

Reading is streaming: of a file of any size only a few blocks are in memory, except for a single record of
.jsonl or .parquet, which is one document and is held whole.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.tokenizer.byte_level import last_word_end, replace_surrogates, white_space_characters
from glassgpt.train.data.find_files import Source, Stretch, Unit
from glassgpt.train.data.open_file import BLOCK, damaged, needed, open_table, unpacked
from glassgpt.train.data.shards import token_file

LONGEST_LINE = 1 << 27  # bytes of one line of .jsonl; a longer one is no document but a mistake
SECTION = 1 << 14  # characters of a section of a long text, tokens of one in a .bin

OnRead = Callable[[int], None]  # told how many bytes of an input file were read


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a section of a long one."""

    content: str | np.ndarray
    begins: bool  # whether a document begins here


def read_pieces(
    unit: Unit, longest: int, on_read: OnRead, eot_id: int | None, vocab_size: int
) -> Iterator[Piece]:
    """The documents of a unit. A text longer than `longest` comes in sections of about `SECTION`."""
    for stretch in unit:
        source = stretch.source
        empty = True
        try:
            for piece in _read(stretch, longest, on_read, eot_id, vocab_size):
                if len(piece.content):
                    empty = False
                    yield piece
        except OSError as error:
            reason = error.strerror if error.strerror is not None else str(error)
            raise FileFormatError(f"{source.path} cannot be read: {reason}. Check the file.") from None
        except FileFormatError:
            if is_changed(source):  # which is why it seems to be damaged
                raise changed(source) from None
            raise
        if empty and stretch.stop is None:
            raise FileFormatError(f"{source.path} holds no text. Leave it out.")


def _read(
    stretch: Stretch, longest: int, on_read: OnRead, eot_id: int | None, vocab_size: int
) -> Iterator[Piece]:
    kind = stretch.source.kind
    if kind == "text":
        return _sections(_texts(stretch, on_read), longest if stretch.stop is None else 0)
    if kind == "lines":
        return _json_lines(stretch, on_read)
    if kind == "table":
        return _rows(stretch, on_read)
    return _runs(stretch, longest, on_read, eot_id, vocab_size)


def _texts(stretch: Stretch, on_read: OnRead) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = 0
    first = stretch.start == 0
    for block, last in _with_last(_blocks(stretch, on_read)):
        try:
            text = decoder.decode(block, last)
        except UnicodeDecodeError as error:
            line = lines + bytes(error.object[: error.start]).count(b"\n") + 1
            raise _not_utf8(stretch, line, error) from None
        lines += block.count(b"\n")
        yield text.removeprefix("\ufeff") if first else text  # a byte order mark is no part of the text
        first = False


def _with_last(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    for block in blocks:
        yield block, False
    yield b"", True


def _sections(texts: Iterator[str], longest: int) -> Iterator[Piece]:
    """The whole text if it is short, else sections that begin where a paragraph, a line or a word ends."""
    held: list[str] = []
    length = 0
    for text in texts:
        held.append(text)
        length += len(text)
        if length > longest:
            break
    else:
        yield Piece("".join(held), True)
        return
    rest = "".join(held)
    begins = True
    for text in texts:
        at = 0
        while len(rest) - at > 2 * SECTION:
            cut = _section_end(rest, at)
            yield Piece(rest[at:cut], begins)
            at, begins = cut, False
        rest = rest[at:] + text
    at = 0
    while len(rest) - at > 2 * SECTION:
        cut = _section_end(rest, at)
        yield Piece(rest[at:cut], begins)
        at, begins = cut, False
    yield Piece(rest[at:], begins)


def _section_end(text: str, start: int) -> int:
    """A place between one and two sections further on, at the end of a word: the tokens stay the same."""
    spaces = white_space_characters()
    low, high = start + SECTION, start + 2 * SECTION
    for mark in ("\n\n", "\n"):
        cut = text.find(mark, low, high)
        while cut > start and text[cut - 1] in spaces:
            cut -= 1
        if cut > start:
            return cut
    end = last_word_end(text, high, low)
    return high if end is None else end


def _json_lines(stretch: Stretch, on_read: OnRead) -> Iterator[Piece]:
    for number, line in _lines(stretch, on_read):
        if line.isspace() or not line:
            continue
        try:
            record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise _not_utf8(stretch, number, error) from None
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{_place(stretch, number)} is not JSON: {error.msg}.") from None
        except (ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{_place(stretch, number)} is not JSON that can be read: {error}."
            ) from None
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            wrong = isinstance(record, dict) and "text" in record
            raise FileFormatError(
                f"{_place(stretch, number)} has {'a text that is no string' if wrong else 'no text'}. "
                'Each line must be like {"text": "..."}.'
            )
        yield Piece(replace_surrogates(text), True)


def _lines(stretch: Stretch, on_read: OnRead) -> Iterator[tuple[int, bytes]]:
    held: list[bytes] = []  # the parts of a line that is longer than a block
    length = number = 0
    for block in _blocks(stretch, on_read):
        first, *others = block.split(b"\n")
        held.append(first)
        length += len(first)
        if length > LONGEST_LINE:
            raise FileFormatError(
                f"{_place(stretch, number + 1)} is longer than {LONGEST_LINE >> 20} MiB. "
                "Give long texts as .txt files."
            )
        if not others:
            continue
        number += 1
        yield number, b"".join(held)
        for line in others[:-1]:
            number += 1
            yield number, line
        held, length = [others[-1]], len(others[-1])
    yield number + 1, b"".join(held)


def _rows(stretch: Stretch, on_read: OnRead) -> Iterator[Piece]:
    path = stretch.source.path
    pyarrow = needed("pyarrow", path)
    assert stretch.stop is not None
    groups = range(stretch.start, stretch.stop)
    with open_table(stretch.source.path) as table:
        row = sum(table.metadata.row_group(i).num_rows for i in range(stretch.start))
        rows = sum(table.metadata.row_group(i).num_rows for i in groups)
        share = stretch.source.size / max(1, table.metadata.num_rows)
        try:
            for batch in table.iter_batches(batch_size=256, row_groups=list(groups), columns=["text"]):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str):
                        raise FileFormatError(f"{path}, row {row + 1} has no text. Leave such rows out.")
                    row += 1
                    yield Piece(replace_surrogates(text), True)
                on_read(int(share * batch.num_rows))
        except pyarrow.ArrowException as error:
            raise damaged(path, error) from None
    if rows == 0:
        raise FileFormatError(f"{path} has no rows. Leave it out.")


def _runs(
    stretch: Stretch, longest: int, on_read: OnRead, eot_id: int | None, vocab_size: int
) -> Iterator[Piece]:
    """The documents of a .bin: what lies between two <|endoftext|>."""
    path = stretch.source.path
    tokens = token_file(path)
    start, stop = stretch.start, len(tokens) if stretch.stop is None else stretch.stop
    ids = tokens.read(start, stop - start)
    above = ids >= vocab_size
    if above.any():
        at = int(above.argmax())
        raise FileFormatError(
            f"{path}: token {start + at:,} is {ids[at]}, but the vocabulary has {vocab_size:,}. "
            "Name the tokenizer that made this file with --tokenizer."
        )
    ends = np.flatnonzero(ids == eot_id).tolist() if eot_id is not None else []
    begin = 0
    for end in [*ends, len(ids)]:
        document = ids[begin:end]
        if len(document) * 2 <= max(longest, 2 * SECTION):
            yield Piece(document, True)
        else:
            for at in range(0, len(document), SECTION):
                yield Piece(document[at : at + SECTION], at == 0)
        on_read(2 * (end + 1 - begin))
        begin = end + 1


# Bytes.


def _blocks(stretch: Stretch, on_read: OnRead) -> Iterator[bytes]:
    source = stretch.source
    with open(source.path, "rb") as raw:
        if not source.packing:
            stop = source.size if stretch.stop is None else _aligned(raw, source, stretch.stop)
            at = _aligned(raw, source, stretch.start)
            raw.seek(at)
            while at < stop:
                block = raw.read(min(BLOCK, stop - at))
                if not block:
                    raise changed(source)
                on_read(len(block))
                at += len(block)
                yield block
            return
        at = 0
        try:
            for block in unpacked(raw, source.packing, source.path):
                if raw.tell() != at:
                    on_read(raw.tell() - at)
                    at = raw.tell()
                yield block
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged(source.path, error) from None


def _aligned(raw: IO[bytes], source: Source, offset: int) -> int:
    """The first place at or after `offset` where the file can be cut: a pure function of the file.

    A .jsonl is cut after a line. A text is cut before a newline that follows a visible ASCII character, so
    that no word is cut in two; where none comes for a megabyte, between any two characters.
    """
    if offset in (0, source.size):
        return offset
    raw.seek(offset - 1)
    if source.kind == "lines":
        at = offset - 1
        while block := raw.read(BLOCK):
            found = block.find(b"\n")
            if found >= 0:
                return at + found + 1
            at += len(block)
        if at < source.size:
            raise changed(source)
        return source.size
    block = raw.read(BLOCK)
    if len(block) < 2:  # there was more when it was found
        raise changed(source)
    found = block.find(b"\n", 1)
    while found >= 0:
        if 0x21 <= block[found - 1] <= 0x7E:
            return offset - 1 + found
        found = block.find(b"\n", found + 1)
    inner = next(i for i in range(1, len(block) + 1) if i == len(block) or block[i] & 0xC0 != 0x80)
    return offset - 1 + inner


# Complaints.


def _place(stretch: Stretch, line: int) -> str:
    """File and line; the lines before this stretch are counted only now that somebody wants to know."""
    source = stretch.source
    if stretch.start and not source.packing:
        with open(source.path, "rb") as raw:
            left = _aligned(raw, source, stretch.start)
            raw.seek(0)
            while left and (block := raw.read(min(BLOCK, left))):
                line += block.count(b"\n")
                left -= len(block)
    return f"{source.path}, line {line}"


def is_changed(source: Source) -> bool:
    try:
        now = source.path.stat()
    except OSError:
        return True
    return (now.st_size, now.st_mtime_ns) != (source.size, source.changed)


def changed(source: Source) -> FileFormatError:
    return FileFormatError(
        f"{source.path} changed while it was read: it had {source.size:,} bytes. "
        "Repeat the command when nobody writes to it."
    )


def _not_utf8(stretch: Stretch, line: int, error: UnicodeDecodeError) -> FileFormatError:
    byte = error.object[error.start]
    return FileFormatError(
        f"{_place(stretch, line)} is not UTF-8 (byte 0x{byte:02x}: {error.reason}). "
        "Convert the file with iconv -t UTF-8."
    )
