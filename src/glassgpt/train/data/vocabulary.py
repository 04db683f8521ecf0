"""A vocabulary for the texts at hand: their characters, their bytes, or merges learned from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from glassgpt.errors import SettingError
from glassgpt.ranges import check_whole
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.tokenizer.trainer import train_on
from glassgpt.train.data.find_files import Source, divide, find_sources
from glassgpt.train.data.readers import OnRead, read_pieces

KINDS = ("chars", "bytes", "bpe")
MOST_TOKENS = 1 << 20  # four times the largest vocabulary in use
VOCAB_SIZE = 4096  # of a bpe unless told
UNIT = 1 << 24  # bytes of text read in one go
ENOUGH = 1 << 26  # characters to learn merges from: more change few of them, and 64 million take 20 s


def learn_vocabulary(
    kind: str,
    inputs: Iterable[str | Path],
    *,
    vocab_size: int | None = None,
    besides: tuple[Path, ...] = (),
    on_read: OnRead = lambda n: None,
) -> Tokenizer:
    """The tokenizer of this kind for these texts; for the same texts always the same one."""
    if kind not in KINDS:
        raise SettingError(f"tokenizer {kind!r} is not one of {', '.join(KINDS)}.")
    if kind != "bpe" and vocab_size is not None:
        raise SettingError(f"--vocab-size is for --tokenizer bpe; {kind} has as many tokens as it takes.")
    size = VOCAB_SIZE if vocab_size is None else vocab_size
    check_whole("--vocab-size", size, 257, MOST_TOKENS, "257 is all bytes and one mark")
    if kind == "bytes":
        return ByteTokenizer()
    sources = find_sources(inputs, besides)
    if kind == "bpe":
        return train_on(read_some(sources, ENOUGH, on_read), size)
    characters: set[str] = set()
    for text in read_some(sources, None, on_read):
        characters.update(text)
    return CharTokenizer(characters)


def read_some(sources: list[Source], most: int | None, on_read: OnRead) -> Iterator[str]:
    """The texts, or about `most` characters of them: the beginning of each unit, so that all are heard."""
    units = divide(sources, UNIT)
    for unit in units:
        left = None if most is None else max(1, most // len(units))
        for piece in read_pieces(unit, UNIT, on_read, None, 1 << 32):
            if not isinstance(piece.content, str):
                names = ", ".join(str(s.source.path) for s in unit if s.source.kind == "tokens")
                raise SettingError(
                    f"{names} holds tokens, not text, so no vocabulary can be learned from it. "
                    "Name the tokenizer that made it with --tokenizer."
                )
            yield piece.content
            if left is not None:
                left -= len(piece.content)
                if left <= 0:
                    break
