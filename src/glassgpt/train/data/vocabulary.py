"""Learn a vocabulary from texts: their characters, their bytes, or BPE merges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from glassgpt.errors import SettingError
from glassgpt.files.text import SourceFile
from glassgpt.progress import Advance
from glassgpt.ranges import check_whole
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.tokenizer.trainer import train_on
from glassgpt.train.data.document_parts import read_document_parts
from glassgpt.train.data.find_files import WHOLE, Reading, divide, find_sources

KINDS = ("chars", "bytes", "bpe")
MAX_VOCAB_SIZE = 1 << 20  # four times the largest vocabulary in use
VOCAB_SIZE = 4096  # default of a bpe
UNIT = 1 << 24  # bytes of text per unit
MAX_CHARACTERS = 1 << 26  # to learn merges from: more would change few merges, and 64 million take 20 s


def learn_vocabulary(
    kind: str,
    inputs: Iterable[str | Path],
    *,
    vocab_size: int | None = None,
    exclude: tuple[Path, ...] = (),
    reading: Reading = WHOLE,
    on_read: Advance = lambda n: None,
) -> Tokenizer:
    """Make a tokenizer of this kind for these texts. The same texts always give the same tokenizer."""
    if kind not in KINDS:
        raise SettingError(f"tokenizer {kind!r} is not one of {', '.join(KINDS)}.")
    if kind != "bpe" and vocab_size is not None:
        raise SettingError(f"--vocab-size is for --tokenizer bpe; the size of {kind} follows from the text.")
    size = VOCAB_SIZE if vocab_size is None else vocab_size
    check_whole("--vocab-size", size, 257, MAX_VOCAB_SIZE, "256 bytes and <|endoftext|> are 257")
    if kind == "bytes":
        return ByteTokenizer()
    sources = find_sources(inputs, exclude, reading)
    if kind == "bpe":
        return train_on(read_sample(sources, MAX_CHARACTERS, on_read), size)
    characters: set[str] = set()
    for text in read_sample(sources, None, on_read):
        characters.update(text)
    return CharTokenizer(characters)


def read_sample(sources: list[SourceFile], limit: int | None, on_read: Advance) -> Iterator[str]:
    """The texts, or about `limit` characters of them: the start of each unit, so that all files count."""
    units = divide(sources, UNIT)
    for unit in units:
        remaining = None if limit is None else max(1, limit // len(units))
        for piece in read_document_parts(unit, UNIT, on_read, None, 1 << 32):
            if not isinstance(piece.content, str):
                names = ", ".join(str(s.source.path) for s in unit if s.source.kind == "tokens")
                raise SettingError(
                    f"{names} contains tokens, not text, so no vocabulary can be learned from it. "
                    "Name the tokenizer that made it with --tokenizer."
                )
            yield piece.content
            if remaining is not None:
                remaining -= len(piece.content)
                if remaining <= 0:
                    break
