"""Text files of any size as chunks of whole words, for learning a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from glassgpt.errors import SettingError
from glassgpt.files.text import read_texts
from glassgpt.tokenizer.base import PathLike
from glassgpt.tokenizer.pre_tokenizer import last_word_end, replace_surrogates

CHUNK = 1 << 20  # characters


def checked_files(files: Iterable[PathLike] | PathLike) -> list[Path]:
    """The files as a list. Raises an error if one is missing."""
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
    if not paths:
        raise SettingError(
            "no files to read; name at least one .txt, .jsonl or .parquet file (also .gz, .xz, .zst)"
        )
    for path in paths:
        if not path.exists():
            raise SettingError(f"{path} does not exist; check the name of the text file")
        if path.is_dir():
            raise SettingError(f"{path} is a folder; name the text files in it, as in {path}/*.txt")
    return paths


def read_chunks(paths: Iterable[Path], max_bytes: int | None = None) -> Iterator[str]:
    """Texts of about `CHUNK` characters which together are the files; no word is cut in two.

    Reading stops after the text that reaches `max_bytes` (of UTF-8).
    """
    remaining = max_bytes
    for path in paths:
        for text in _whole_words((replace_surrogates(text), is_end) for text, is_end in read_texts(path)):
            yield text
            if remaining is not None:
                remaining -= len(text.encode("utf-8", "surrogatepass"))
                if remaining <= 0:
                    return


def read_batches(paths: Iterable[Path], max_bytes: int | None = None) -> Iterator[list[str]]:
    """Group texts in lists of about `CHUNK` characters, since many documents are short."""
    batch: list[str] = []
    size = 0
    for text in read_chunks(paths, max_bytes):
        batch.append(text)
        size += len(text)
        if size >= CHUNK:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _whole_words(texts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Cut long texts between words. Documents stay separate: a document's end is a word's end."""
    rest = ""
    for text, is_end in texts:
        rest += text
        while len(rest) > CHUNK or (is_end and rest):
            cut = len(rest)
            if cut > CHUNK:
                end = last_word_end(rest, CHUNK)
                # A megabyte without a space is not a text to learn words from.
                cut = CHUNK if end is None else end
            yield rest[:cut]
            rest = rest[cut:]
