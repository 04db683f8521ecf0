"""What may be given to `prepare`, found, and divided into units of work. `documents.py` reads them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import file_size
from glassgpt.train.data.open_file import needed, row_group_sizes
from glassgpt.train.data.shards import INDEX, token_file

KINDS = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "table",
    ".bin": "tokens",
}
PACKINGS = (".gz", ".xz", ".zst")
KNOWN = ".txt, .md, .jsonl (also .gz, .xz, .zst), .parquet, or .bin of nanoGPT or llm.c"

SMALL = 1 << 20  # bytes of a packed file that may share a unit


@dataclass(frozen=True)
class Source:
    path: Path
    kind: str
    packing: str  # ".gz" and so on, or ""
    size: int  # bytes on the disk
    changed: int  # time of the last change, in ns


@dataclass(frozen=True)
class Stretch:
    """A part of a source: bytes, row groups of a table, or tokens; `stop` None is the whole source."""

    source: Source
    start: int = 0
    stop: int | None = None


Unit = tuple[Stretch, ...]  # what one worker does in one go


# Finding.


def find_sources(inputs: Iterable[str | Path], besides: Sequence[Path] = ()) -> list[Source]:
    """Files, the files in folders, and the files that patterns match; each once, in a fixed order.

    What lies in the folders `besides`, or in one that was prepared, is no text but a tokenizer's merges.txt.
    """
    found: dict[Path, Source] = {}
    outside = [folder.resolve() for folder in besides]
    for given in inputs:
        for path in _expand(str(given), outside):
            found.setdefault(path.resolve(), _source(path))
    if not found:
        raise SettingError(f"no files to read. Name files or folders: {KNOWN}.")
    return list(found.values())


def _expand(given: str, outside: Sequence[Path]) -> list[Path]:
    path = Path(given).expanduser()
    if path.is_dir():
        outside = [*outside, *(index.parent.resolve() for index in path.rglob(INDEX))]
        inside = sorted(
            p
            for p in path.rglob("*")
            if p.is_file()
            and not _hidden(p.relative_to(path))
            and not any(p.resolve().is_relative_to(folder) for folder in outside)
        )
        texts = [p for p in inside if _kind_of(p)[0] not in ("", "tokens")]
        if not texts:
            hint = "Name the .bin files themselves." if any(p.suffix == ".bin" for p in inside) else ""
            raise SettingError(f"{path} holds no .txt, .md, .jsonl or .parquet file. {hint}".rstrip())
        return texts
    if path.exists():
        return [path]
    matched = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    files = [p for p in matched if p.is_file()]
    if not files:
        raise SettingError(f"{path} does not exist. Name files or folders: {KNOWN}.")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _kind_of(path: Path) -> tuple[str, str]:
    """("text", ".gz") for a.txt.gz; ("", "") for what cannot be read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in PACKINGS else ""
    kind = KINDS.get(suffixes[-1], "") if suffixes else ""
    if packing and kind not in ("text", "lines"):
        return "", ""
    return kind, packing


def _source(path: Path) -> Source:
    kind, packing = _kind_of(path)
    if not kind:
        raise SettingError(f"{path} is no file that can be read here by its name. Known are {KNOWN}.")
    size = file_size(path)
    if size == 0:
        raise FileFormatError(f"{path} is empty. Leave it out.")
    if packing == ".zst":
        needed("zstandard", path)
    if kind == "table":
        needed("pyarrow", path)
    return Source(path, kind, packing, size, path.stat().st_mtime_ns)


# Dividing.


def divide(sources: Sequence[Source], size: int) -> list[Unit]:
    """Units of about `size` bytes: long files in several, short ones together. A packed file stays whole."""
    units: list[Unit] = []
    gathered: list[Stretch] = []
    weight = 0
    for source in sources:
        for stretch in _stretches(source, size):
            # A packed file cannot be divided, and unpacking takes longest of all: to each its own worker.
            alone = source.packing and source.size > SMALL
            heavy = size if alone else min(source.size, size)
            if gathered and weight + heavy > size:
                units.append(tuple(gathered))
                gathered, weight = [], 0
            gathered.append(stretch)
            weight += heavy
    return [*units, tuple(gathered)] if gathered else units


def _stretches(source: Source, size: int) -> list[Stretch]:
    if source.packing:
        return [Stretch(source)]
    if source.kind == "table":
        groups = row_group_sizes(source.path)
        cuts, weight = [0], 0
        for number, n_bytes in enumerate(groups):
            if weight and weight + n_bytes > size:
                cuts.append(number)
                weight = 0
            weight += n_bytes
        ends = [*cuts[1:], len(groups)]
    else:
        whole = len(token_file(source.path)) if source.kind == "tokens" else source.size
        count = -(-source.size // size)
        cuts = [whole * i // count for i in range(count)]
        ends = [*cuts[1:], whole]
        if count == 1 and source.kind != "tokens":
            return [Stretch(source)]
    return [Stretch(source, start, stop) for start, stop in zip(cuts, ends, strict=True)]


def order_key(sources: Sequence[Source]) -> list[list[str | int]]:
    """What must be unchanged for work begun earlier to be of use."""
    return [[os.fspath(s.path.resolve()), s.size, s.changed] for s in sources]
