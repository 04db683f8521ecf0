"""Read units of work as documents, or sections of long ones. `glassgpt.files.text` opens the texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.files.text import Chunk, explain_read_errors, read_documents
from glassgpt.progress import Advance
from glassgpt.tokenizer.pre_tokenizer import last_word_end, replace_surrogates, white_space_characters
from glassgpt.train.data.find_files import Unit
from glassgpt.train.data.token_file import open_token_file

SECTION = 1 << 14  # characters of a section of a long text, tokens of one in a .bin


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A document, or a section of a long one."""

    content: str | np.ndarray
    starts_document: bool


def read_document_parts(
    unit: Unit, longest: int, on_read: Advance, eot_id: int | None, vocab_size: int
) -> Iterator[DocumentPart]:
    """The documents of a unit. A text longer than `longest` comes in sections of about `SECTION`."""
    for chunk in unit:
        empty = True
        for part in _read_chunk(chunk, longest, on_read, eot_id, vocab_size):
            if len(part.content):
                empty = False
                yield part
        if empty and chunk.stop is None:
            raise FileFormatError(f"{chunk.source.path} contains no text. Leave it out.")


def _read_chunk(
    chunk: Chunk, longest: int, on_read: Advance, eot_id: int | None, vocab_size: int
) -> Iterator[DocumentPart]:
    if chunk.source.kind == "tokens":
        return _read_token_documents(chunk, longest, on_read, eot_id, vocab_size)
    texts = read_documents(chunk, on_read)
    if chunk.source.kind == "text":
        return _split_into_sections((text for text, _ in texts), longest if chunk.stop is None else 0)
    return (DocumentPart(replace_surrogates(text), True) for text, _ in texts)


def _split_into_sections(texts: Iterator[str], longest: int) -> Iterator[DocumentPart]:
    """The whole text if it is short, else sections that start where a paragraph, a line or a word ends."""
    pending: list[str] = []
    length = 0
    for text in texts:
        pending.append(text)
        length += len(text)
        if length > longest:
            break
    else:
        yield DocumentPart("".join(pending), True)
        return
    rest = "".join(pending)
    starts_document = True
    for text in texts:
        at = 0
        while len(rest) - at > 2 * SECTION:
            cut = _find_section_end(rest, at)
            yield DocumentPart(rest[at:cut], starts_document)
            at, starts_document = cut, False
        rest = rest[at:] + text
    at = 0
    while len(rest) - at > 2 * SECTION:
        cut = _find_section_end(rest, at)
        yield DocumentPart(rest[at:cut], starts_document)
        at, starts_document = cut, False
    yield DocumentPart(rest[at:], starts_document)


def _find_section_end(text: str, start: int) -> int:
    """A position one to two sections further on, at the end of a word, so that the tokens stay the same."""
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


def _read_token_documents(
    chunk: Chunk, longest: int, on_read: Advance, eot_id: int | None, vocab_size: int
) -> Iterator[DocumentPart]:
    """The documents of a .bin: the ids between two <|endoftext|>."""
    path = chunk.source.path
    with explain_read_errors(chunk.source):
        tokens = open_token_file(path)
        start, stop = chunk.start, len(tokens) if chunk.stop is None else chunk.stop
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
                yield DocumentPart(document, True)
            else:
                for at in range(0, len(document), SECTION):
                    yield DocumentPart(document[at : at + SECTION], at == 0)
            on_read(2 * (end + 1 - begin))
            begin = end + 1
