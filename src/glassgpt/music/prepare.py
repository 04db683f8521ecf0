"""From a folder of MIDI files to shards for `glassgpt train`.

    glassgpt music prepare maestro-v3.0.0/ -o shards/ --tempi 5
    glassgpt train --data shards/ --out runs/piano --steps 5000 --context 2048 --transpose 3

The Music Transformer's augmentation: every piece of the train split at five tempi (0.95 to 1.05 of its
duration; another tempo is another sequence of events, so they are written here), and each window of training
transposed by up to three semitones (which only renames its pitches, so the loader does it, `--transpose`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import (
    atomic_write,
    check_target,
    expand_user,
    lock_folder,
    read_text,
    remove,
    replace_path,
    resolve_symlink,
    write_text_files,
)
from glassgpt.music.event_codec import PerformanceTokenizer
from glassgpt.music.interleave import interleave
from glassgpt.music.midi import read_melody, read_midi
from glassgpt.music.performance import Performance
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import SEEDS, check_number, check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.tokenizer.events import EventTokenizer
from glassgpt.train.data.shards import FORMAT, INDEX, VERSION
from glassgpt.train.data.token_file import token_dtype

TEMPI = (1.0, 0.95, 1.05, 0.975, 1.025)  # of which --tempi takes the first ones
SPLITS = {"train": "train", "validation": "val", "val": "val", "test": "test"}  # in a CSV -> ours
CSV_LIMIT = 1 << 24  # bytes; MAESTRO's has 300 kB
FILES_PER_WORKER = 100  # fewer are read sooner than a worker starts

Documents = list[np.ndarray]


@dataclass(frozen=True)
class Encoding:
    """How a file becomes documents."""

    tokenizer: EventTokenizer
    melody: str | None = None  # the name of a track: each song also as melody and accompaniment in turn


@dataclass(frozen=True)
class PieceFile:
    """A MIDI file, and the split it belongs to."""

    path: Path
    split: str


@dataclass(frozen=True)
class Skipped:
    """A file that could not be read, and why."""

    path: Path
    reason: str


def prepare_midi(
    inputs: Iterable[str | Path],
    out: str | Path,
    *,
    events: str = "performance",
    melody: str | None = None,
    tempi: int = 1,
    val_fraction: float = 0.1,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Encode MIDI files as events, write them as shards into the folder `out` and return its index.

    A folder with a CSV that has the columns `midi_filename` and `split` (MAESTRO's) is split by it; of other
    files a `val_fraction` is held out, chosen by their content and `seed`. Files that cannot be read are
    left out; the index lists them under "skipped".
    """
    check_whole("--tempi", tempi, 1, len(TEMPI), "1 is none but its own")
    check_number("--val-fraction", val_fraction, 0, 1, "0.1 is usual", below=True)
    check_whole("--seed", seed, 0, SEEDS)
    pieces = find_pieces(inputs, val_fraction, seed)
    encoding = Encoding(EventTokenizer(events, melody=melody is not None), melody)
    skipped: list[Skipped] = []

    def documents() -> Iterator[tuple[str, np.ndarray]]:
        with progress("encoding", len(pieces), unit="files") as advance:
            for piece, result in zip(pieces, encode_files(pieces, encoding, tempi, workers), strict=True):
                advance(1)
                if isinstance(result, Skipped):
                    skipped.append(result)
                else:
                    yield from ((piece.split, ids) for ids in result)

    def facts() -> dict[str, Any]:
        return {
            "seed": seed,
            "val_fraction": val_fraction,
            "sources": [{"name": p.path.as_posix(), "bytes": p.path.stat().st_size} for p in pieces],
            "skipped": [{"name": s.path.as_posix(), "reason": s.reason} for s in skipped],
        }

    return write_shards(out, encoding.tokenizer, documents(), facts, force)


def find_pieces(inputs: Iterable[str | Path], val_fraction: float, seed: int) -> list[PieceFile]:
    pieces: list[PieceFile] = []
    files: list[Path] = []
    for source in map(Path, inputs):
        table = find_split_table(source)
        if table is not None:
            pieces += read_split_table(table)
        elif source.is_dir():
            midi_files = (p for p in source.rglob("*") if p.suffix.lower() in (".mid", ".midi"))
            files += sorted(p for p in midi_files if p.is_file())  # a folder may also be called x.mid
        elif source.is_file():
            files.append(source)
        else:
            raise SettingError(f"{source} does not exist. Name MIDI files, or folders of them.")
    pieces += split_files(files, val_fraction, seed)
    if not pieces:
        raise SettingError("no .mid or .midi files were found. Name others.")
    return pieces


def find_split_table(folder: Path) -> Path | None:
    """A CSV that says which file belongs to which split."""
    for table in sorted(folder.glob("*.csv")) if folder.is_dir() else []:
        header = read_text(table, CSV_LIMIT).split("\n", 1)[0]
        if {"midi_filename", "split"} <= set(next(csv.reader([header]), [])):
            return table
    return None


def read_split_table(table: Path) -> list[PieceFile]:
    pieces = []
    for row in csv.DictReader(io.StringIO(read_text(table, CSV_LIMIT))):
        path = table.parent / row["midi_filename"]
        if row["split"] not in SPLITS:
            raise FileFormatError(
                f"{table} names the split {row['split']!r}: train, validation or test is one."
            )
        if not path.resolve().is_relative_to(table.parent.resolve()):
            raise FileFormatError(f"{table} names {row['midi_filename']}, which lies outside of its folder.")
        pieces.append(PieceFile(path, SPLITS[row["split"]]))
    return pieces


def split_files(files: Sequence[Path], val_fraction: float, seed: int) -> list[PieceFile]:
    """The files with the lowest hashes of their content are held out: at least one, if there are two."""
    key = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
    hashes = {path: hash_content(path, key) for path in files}
    count = round(val_fraction * len(files))
    if val_fraction > 0 and len(files) > 1:
        count = min(max(1, count), len(files) - 1)
    held_out = set(sorted(files, key=lambda path: (hashes[path], path))[:count])
    return [PieceFile(path, "val" if path in held_out else "train") for path in files]


def hash_content(path: Path, key: bytes) -> bytes:
    hasher = hashlib.blake2b(digest_size=8, key=key)
    with suppress(OSError), path.open("rb") as file:  # one that cannot be read is left out later, and counted
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.digest()


def encode_files(
    pieces: Sequence[PieceFile], encoding: Encoding, tempi: int, workers: int | None
) -> Iterator[Documents | Skipped]:
    """The documents of each file, in order: of the train split at several tempi."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, 1 + len(pieces) // FILES_PER_WORKER) if workers is None else workers
    factors = [TEMPI[:tempi] if piece.split == "train" else TEMPI[:1] for piece in pieces]
    paths = [piece.path for piece in pieces]
    encode = partial(encode_file, encoding)
    if workers == 1:
        yield from map(encode, paths, factors)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), ignore_interrupts) as pool:
        try:
            yield from pool.map(encode, paths, factors, chunksize=4)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the workers


def encode_file(encoding: Encoding, path: Path, factors: Sequence[float]) -> Documents | Skipped:
    tokenizer = encoding.tokenizer
    codec = PerformanceTokenizer(tokenizer.events.name)
    try:
        if encoding.melody is None:
            whole, parts = read_midi(path), None
        else:
            parts = read_melody(path, encoding.melody)
            whole = parts[0].merge(parts[1])
    except UserError as error:
        return Skipped(path, str(error))
    if not len(whole):
        return Skipped(path, f"{path} has no notes.")
    documents = [codec.encode(whole.scale_time(factor)) for factor in factors]
    if parts is not None:
        for factor in factors:
            melody, rest = (part.scale_time(factor) for part in parts)
            documents.append(interleave(melody, rest, tokenizer))
    return [ids.astype(token_dtype(tokenizer.vocab_size)) for ids in documents]


def write_shards(
    out: str | Path,
    tokenizer: Tokenizer,
    documents: Iterable[tuple[str, np.ndarray]],
    facts: Any = dict,
    force: bool = False,
) -> dict[str, Any]:
    """Write documents, each with the name of its split, as a folder for `glassgpt train`; its index.

    `facts()` is called after the last document, for what else the index shall record.
    """
    out = resolve_symlink(expand_user(out))
    check_target(out)
    if out.exists() and any(out.iterdir()) and not (force and (out / INDEX).is_file()):
        ours = (out / INDEX).is_file()
        raise SettingError(
            f"{out} already exists. {'Add --force to replace it, or choose' if ours else 'Choose'} another "
            "folder with -o."
        )
    with working_folder(out) as part:
        splits = write_splits(part, tokenizer, documents)
        if "train" not in splits:
            raise SettingError(
                "none of these files can be read, so there is nothing to train on. Name others."
            )
        splits.setdefault("val", {"tokens": 0, "documents": 0, "files": []})
        index = {
            "format": FORMAT,
            "version": VERSION,
            "tokenizer": {
                "hash": tokenizer.hash, "vocab_size": tokenizer.vocab_size, "eot_id": tokenizer.eot_id
            },
            "dtype": {2: "uint16", 4: "uint32"}[token_dtype(tokenizer.vocab_size).itemsize],
            "splits": splits,
            **facts(),
        }  # fmt: skip
        write_text_files(part, tokenizer.files())
        with atomic_write(part / INDEX) as file:
            file.write_text(json.dumps(index, indent=1) + "\n", "utf-8")
        remove(part / "lock")
        replaced = replace_path(part, out)
    if replaced is not None:
        remove(replaced)
    return index


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """OUT.part, which is removed if something fails."""
    part = out.with_name(out.name + ".part")
    with lock_folder(part, "music prepare"):
        try:
            yield part
        except BaseException:
            remove(part)
            raise


def write_splits(
    folder: Path, tokenizer: Tokenizer, documents: Iterable[tuple[str, np.ndarray]]
) -> dict[str, dict[str, Any]]:
    """The token files, one for each split, and their entries in the index."""
    dtype = token_dtype(tokenizer.vocab_size)
    splits: dict[str, SplitWriter] = {}
    for split, ids in documents:
        if split not in splits:
            splits[split] = SplitWriter(folder / f"{split}-00000-000.bin", dtype, tokenizer.eot_id)
        splits[split].add(ids)
    return {split: splits[split].finish() for split in ("train", "val", "test") if split in splits}


class SplitWriter:
    """The token file of a split: each document after an end-of-text."""

    def __init__(self, path: Path, dtype: np.dtype[Any], eot_id: int | None) -> None:
        self.path, self.dtype = path, dtype
        self.before = np.array([] if eot_id is None else [eot_id], dtype)
        self.starts: list[int] = []
        self.tokens = 0
        self.hash = hashlib.blake2b(digest_size=16)
        self.file = path.open("wb")

    def add(self, ids: np.ndarray) -> None:
        data = np.concatenate([self.before, ids.astype(self.dtype)])
        self.starts.append(self.tokens)
        self.tokens += len(data)
        self.file.write(data.tobytes())
        self.hash.update(data.tobytes())

    def finish(self) -> dict[str, Any]:
        self.file.close()
        with atomic_write(self.path.with_suffix(".starts")) as part:
            part.write_bytes(np.array(self.starts, "<u4").tobytes())
        entry = {
            "name": self.path.name,
            "tokens": self.tokens,
            "documents": len(self.starts),
            "blake2b": self.hash.hexdigest(),
        }
        return {"tokens": self.tokens, "documents": len(self.starts), "files": [entry]}


def read_performances(inputs: Iterable[str | Path], progress: Progress = no_progress) -> list[Performance]:
    """The performances of MIDI files or folders of them; of MAESTRO's, those of its train split."""
    pieces = [piece for piece in find_pieces(inputs, 0.0, 0) if piece.split == "train"]
    found = []
    with progress("reading", len(pieces), unit="files") as advance:
        for piece in pieces:
            with suppress(UserError):  # what cannot be read was not learned from
                found.append(read_midi(piece.path))
            advance(1)
    return found
