"""A corpus as windows of tokens that a model reads one by one, always the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.errors import UserError
from glassgpt.files.text import detect_kind, read_texts

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

SHORTEST = 8  # tokens at the end of a text that make a window of their own
MAX_PART = 1 << 20  # characters of a long text that are tokenized together


@dataclass(frozen=True)
class CorpusWindow:
    """Tokens of one text, at most `length` of them."""

    start: int  # of its first token among those of all windows
    ids: list[int]


def read_windows(corpus: Any, tokenizer: Tokenizer, length: int, most: int | None) -> Iterator[CorpusWindow]:
    """The windows of a corpus in order, until they have `most` tokens: a path, paths, or a list of texts."""
    start = 0
    for text in iterate_texts(corpus):
        ids = tokenizer.encode(text)
        for begin in range(0, len(ids), length):
            part = ids[begin : begin + length]
            if most is not None:
                part = part[: most - start]
            if len(part) < min(SHORTEST, length):
                continue
            yield CorpusWindow(start, part)
            start += len(part)
            if start == most:
                return
    if start == 0:
        raise UserError("the corpus has no text of a few words. Give .txt, .jsonl or .parquet files.")


def iterate_texts(corpus: Any) -> Iterator[str]:
    several = [corpus] if isinstance(corpus, str | Path) else corpus
    for each in several:
        if isinstance(each, Path):
            for path in text_files(each):
                yield from whole_texts(path)
        else:
            yield str(each)


def text_files(path: Path) -> list[Path]:
    """A file, or the text files of a folder in the order of their names."""
    if not path.is_dir():
        if not path.exists():
            raise UserError(f"{path} does not exist. Check the path.")
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and detect_kind(file)[0])
    if not files:
        raise UserError(f"{path} has no .txt, .jsonl or .parquet file. Give another folder.")
    return files


def whole_texts(path: Path) -> Iterator[str]:
    """The texts of a file; a long one in parts."""
    parts: list[str] = []
    size = 0
    blocks: Iterable[tuple[str, bool]] = read_texts(path)
    for text, ends in blocks:
        parts.append(text)
        size += len(text)
        if ends or size > MAX_PART:
            yield "".join(parts)
            parts, size = [], 0
    if parts:
        yield "".join(parts)
