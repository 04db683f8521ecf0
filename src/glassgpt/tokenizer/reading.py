"""Reading text files of any size, a chunk at a time: .txt and .jsonl, as they are or as .xz or .gz."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.tokenizer.base import PathLike
from glassgpt.tokenizer.byte_level import last_word_end, replace_surrogates

CHUNK = 1 << 20  # characters
LONGEST_LINE = 1 << 28  # characters of one line of .jsonl


def checked_files(files: Iterable[PathLike] | PathLike) -> list[Path]:
    """The files as a list, all of them there."""
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
    if not paths:
        raise SettingError("no files to read; name at least one .txt or .jsonl file (also .xz or .gz)")
    for path in paths:
        if not path.exists():
            raise SettingError(f"{path} does not exist; check the name of the text file")
        if path.is_dir():
            raise SettingError(f"{path} is a folder; name the text files in it, as in {path}/*.txt")
        if path.suffix in (".zst", ".parquet"):
            raise SettingError(
                f"{path} is read by prepare only; type: glassgpt prepare {path} -o DIR --tokenizer bpe"
            )
    return paths


def read_chunks(paths: Iterable[Path], max_bytes: int | None = None) -> Iterator[str]:
    """Texts of about `CHUNK` characters which together are the files; no word is cut in two.

    Reading stops after the text that reaches `max_bytes` (of UTF-8).
    """
    left = max_bytes
    for path in paths:
        for text in _whole_words(read_texts(path)):
            yield text
            if left is not None:
                left -= len(text.encode("utf-8", "surrogatepass"))
                if left <= 0:
                    return


def read_batches(paths: Iterable[Path], max_bytes: int | None = None) -> Iterator[list[str]]:
    """The same texts in lists of about `CHUNK` characters: many documents are short."""
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


def read_texts(path: Path) -> Iterator[tuple[str, bool]]:
    """The texts of a file in order, with whether each ends a document."""
    jsonl = any(suffix in (".jsonl", ".ndjson") for suffix in path.suffixes[-2:])
    try:
        with _open(path) as file:
            if jsonl:
                yield from _json_lines(path, file)
            else:
                while text := file.read(CHUNK):
                    yield text, False
                yield "", True
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not UTF-8 text ({error.reason}); convert it to UTF-8 first"
        ) from None
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(
            f"{path} is damaged or not compressed as its name says ({error}); download it again"
        ) from None
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror}); check the file") from None


def _open(path: Path) -> IO[str]:
    # newline="" keeps \r\n as it is: the tokens must be those of the bytes in the file.
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return open(path, encoding="utf-8", newline="")


def _json_lines(path: Path, file: IO[str]) -> Iterator[tuple[str, bool]]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{path}, line {number} is not JSON: {error.msg}") from None
        except (KeyError, TypeError, RecursionError):
            raise FileFormatError(
                f'{path}, line {number} has no "text" field; each line must be like {{"text": "..."}}'
            ) from None
        if not isinstance(text, str):
            raise FileFormatError(f'{path}, line {number}: "text" is {type(text).__name__}, not a string')
        yield replace_surrogates(text), True


def _whole_words(texts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Cut long texts between words and leave documents apart, for a document's end is a word's end."""
    rest = ""
    for text, is_end in texts:
        rest += text
        while len(rest) > CHUNK or (is_end and rest):
            cut = len(rest)
            if cut > CHUNK:
                end = last_word_end(rest, CHUNK)
                cut = (
                    CHUNK if end is None else end
                )  # a megabyte without a blank is no text to learn words from
            yield rest[:cut]
            rest = rest[cut:]
