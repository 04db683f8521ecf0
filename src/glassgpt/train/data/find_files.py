"""Find the input files of `prepare` and `tune` and divide them into units of work for `document_parts.py`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import expand_user
from glassgpt.files.parquet import row_group_sizes
from glassgpt.files.tables import DELIMITERS, dataset_files, is_dataset
from glassgpt.files.text import Chunk, SourceFile, detect_kind, split_suffix
from glassgpt.train.data.shards import INDEX
from glassgpt.train.data.token_file import open_token_file

KNOWN = ".txt, .md, .jsonl (also .gz, .xz, .zst), .parquet, or .bin of nanoGPT or llm.c"
SMALL = 1 << 20  # bytes of a compressed file that may share a unit


@dataclass(frozen=True)
class Reading:
    """What in a file is a document: all of a text, or each of its lines; which column of a table."""

    lines: bool = False
    column: str | None = None

    def __post_init__(self) -> None:
        if self.lines and self.column is not None:
            raise SettingError("--lines is for texts and --column for tables: use one of them.")
        if self.column is not None and not self.column:
            raise SettingError("--column is empty. Name a column of the table.")


WHOLE = Reading()

Unit = tuple[Chunk, ...]  # one task of one worker


# Finding.


def find_sources(
    inputs: Iterable[str | Path], exclude: Sequence[Path] = (), reading: Reading = WHOLE
) -> list[SourceFile]:
    """Files, the files in folders, and the files that patterns match; each once, in a fixed order.

    The folders in `exclude`, and prepared ones, are not searched: a tokenizer's merges.txt is not a text. A
    folder that Hugging Face's `datasets` wrote is its Arrow files.
    """
    sources: dict[Path, SourceFile] = {}
    excluded = [Path(os.path.realpath(folder)) for folder in exclude]
    for pattern in inputs:
        for path in _expand(str(pattern), excluded, reading):
            sources.setdefault(path.resolve(), _open_source(path, reading))
    if not sources:
        raise SettingError(f"no files to read. Name files or folders: {KNOWN}.")
    return list(sources.values())


def _expand(pattern: str, excluded: Sequence[Path], reading: Reading) -> list[Path]:
    path = expand_user(pattern)
    if path.is_dir() and is_dataset(path):
        return dataset_files(path)
    if path.is_dir():
        excluded = [*excluded, *(index.parent.resolve() for index in path.rglob(INDEX))]
        inside = sorted(
            p
            for p in path.rglob("*")
            if p.is_file()
            and not _is_hidden(p.relative_to(path))
            and not any(p.resolve().is_relative_to(folder) for folder in excluded)
        )
        texts = [p for p in inside if _kind(p, reading)[0]]
        if not texts:
            hint = "Name the .bin files themselves." if any(p.suffix == ".bin" for p in inside) else ""
            raise SettingError(f"{path} contains no .txt, .md, .jsonl or .parquet file. {hint}".rstrip())
        return texts
    if path.exists():
        return [path]
    matched = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    files = [p for p in matched if p.is_file()]
    if not files:
        raise SettingError(f"{path} does not exist. Name files or folders: {KNOWN}.")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _kind(path: Path, reading: Reading) -> tuple[str, str]:
    kind, compression = detect_kind(path)
    if reading.lines and kind == "text":
        kind = "lines"
    if reading.column is not None and split_suffix(path)[0] in DELIMITERS:
        kind = "csv"
    if path.suffix.lower() == ".arrow":
        kind = "arrow"
    return kind, compression


def _open_source(path: Path, reading: Reading) -> SourceFile:
    kind, compression = _kind(path, reading)
    if path.suffix.lower() == ".bin":
        kind = "tokens"
    if not kind and split_suffix(path)[0] in DELIMITERS:
        raise SettingError(f"{path} is a table: name its column of texts with --column.")
    if reading.column is not None and kind in ("text", "tokens"):
        raise SettingError(f"{path} has no columns. Leave out --column.")
    if reading.lines and kind not in ("lines", "jsonl"):
        raise SettingError(f"{path} is not a text of lines. Leave out --lines.")
    if not kind:
        raise SettingError(f"{path} is not of a known file type. Known are {KNOWN}.")
    column = "text" if reading.column is None else reading.column
    source = SourceFile.of_kind(path, kind, compression, column)
    if source.size == 0:
        raise FileFormatError(f"{path} is empty. Leave it out.")
    return source


# Dividing.


def divide(sources: Sequence[SourceFile], size: int) -> list[Unit]:
    """Units of about `size` bytes: long files in several, short ones together. A .gz stays whole."""
    units: list[Unit] = []
    expanded: list[Chunk] = []
    weight = 0
    for source in sources:
        for chunk in _split_source(source, size):
            # A compressed file cannot be split, and decompression takes longest: each gets its own worker.
            alone = source.compression and source.size > SMALL
            heavy = size if alone else min(source.size, size)
            if expanded and weight + heavy > size:
                units.append(tuple(expanded))
                expanded, weight = [], 0
            expanded.append(chunk)
            weight += heavy
    return [*units, tuple(expanded)] if expanded else units


def _split_source(source: SourceFile, size: int) -> list[Chunk]:
    if source.compression or source.kind in ("csv", "arrow"):
        return [Chunk(source)]
    if source.kind == "parquet":
        groups = row_group_sizes(source.path, source.column)
        cuts, weight = [0], 0
        for number, n_bytes in enumerate(groups):
            if weight and weight + n_bytes > size:
                cuts.append(number)
                weight = 0
            weight += n_bytes
        ends = [*cuts[1:], len(groups)]
    else:
        total = len(open_token_file(source.path)) if source.kind == "tokens" else source.size
        count = -(-source.size // size)
        cuts = [total * i // count for i in range(count)]
        ends = [*cuts[1:], total]
        if count == 1 and source.kind != "tokens":
            return [Chunk(source)]
    return [Chunk(source, start, stop) for start, stop in zip(cuts, ends, strict=True)]


def describe_sources(sources: Sequence[SourceFile]) -> list[list[str | int]]:
    """The facts that must be unchanged for earlier work on these files to be reused."""
    facts: list[list[str | int]] = []
    for s in sources:
        usual = s.kind not in ("lines", "csv", "arrow") and s.column == "text"
        how = [] if usual else [s.kind, s.column]
        facts.append([os.fspath(s.path.resolve()), s.size, s.mtime_ns, *how])
    return facts
