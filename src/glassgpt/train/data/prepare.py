"""From text to shards: `prepare` reads documents, cuts them into tokens and divides them into train and val.

The work is divided into units (a file, a part of a long one, several short ones), each unit into chunks of a
bounded length. A chunk is the step that is done or not: its files are renamed into place before its record
is, so whoever comes after a kill finds the records and does the rest. Nothing depends on who did what when:
the result is the same, bit for bit, for any number of workers and any number of kills.

    OUT.part/train-00002-000.bin, .starts    the tokens of chunk 0 of unit 2 that go to train, and where
                                             documents begin
    OUT.part/done-00002-000.json             its record
    OUT.part/plan.json                       what was asked; another plan begins anew

At the end the records become `shards.json` and the folder is renamed to OUT.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing import connection, get_context, parent_process
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.files import (
    atomic_write,
    check_target,
    lock_folder,
    read_json,
    recover_interrupted_write,
    remove,
    replace_path,
    resolve_symlink,
    write_text_files,
)
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import SEEDS, check_number, check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.find_files import Source, Unit, divide, find_sources, order_key
from glassgpt.train.data.readers import SECTION, OnRead, Piece, read_pieces
from glassgpt.train.data.shards import FORMAT, INDEX, VERSION, token_dtype

UNIT = 1 << 26  # bytes of a unit and characters of a chunk: what is in memory at most, as tokens
LONGEST = 1 << 24  # characters of a .txt that may still be one document
SPLITS = ("train", "val")
MOST_WORKERS = 1024  # more processes than any one machine has cores
LIMIT = 1 << 26  # bytes of JSON that we wrote ourselves


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know."""

    folder: Path
    units: list[Unit]
    tokenizer: Tokenizer
    val_share: float
    seed: int
    longest: int  # characters of a text that is not cut into sections
    chunk: int


@dataclass
class Record:
    """What became of a chunk."""

    tokens: dict[str, int]
    documents: dict[str, int]
    hashes: dict[str, str]  # of the token files, so that the index tells one set of shards from every other
    pieces: int  # documents and sections
    lowest: int  # the smallest lot that any of them drew
    at_lowest: int  # how many drew it (equal texts draw equal lots)
    characters: int


class Interrupted(Exception):  # no error: the wish to stop, on its way out of a worker
    pass


def prepare(
    inputs: Iterable[str | Path],
    out: str | Path,
    tokenizer: Tokenizer,
    *,
    val_share: float = 0.01,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
    unit_bytes: int = UNIT,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the texts as token shards into the folder `out` and return its index."""
    out = resolve_symlink(Path(out).expanduser())
    check_number("--val-share", val_share, 0, 1, "0.01 is usual", below=True)
    check_whole("--seed", seed, 0, SEEDS)
    if workers is not None:
        check_whole("--workers", workers, 1, MOST_WORKERS)
    check_target(out)
    part = out.with_name(out.name + ".part")
    recover_interrupted_write(out)
    sources = find_sources(inputs, besides=(out, part))
    _check_target(out, part, force)
    check_target(out, [source.path for source in sources])
    total = sum(source.size for source in sources)
    job = Job(
        part,
        divide(sources, unit_bytes),
        tokenizer,
        val_share,
        seed,
        # A text that is more than the validation part should be cannot be given to either side as a whole.
        max(SECTION, min(LONGEST, unit_bytes, int(val_share * total))),
        unit_bytes,
    )
    with progress("preparing", total, unit="bytes") as advance, _working_in(job, sources):
        tokenizer_files = tokenizer.files()
        write_text_files(job.folder, tokenizer_files)
        _do_units(job, workers, advance)
        files = _fill_splits(job)
        index = _index(job, sources, files)
        with atomic_write(job.folder / INDEX) as file:
            file.write_text(json.dumps(index, indent=1) + "\n", "utf-8")
        _finish(job.folder, out, index, tokenizer_files)
    return index


MARKS = (INDEX, "plan.json", "lock")  # at least one of them lies in OUT.part from the beginning to the end


def _check_target(out: Path, part: Path, force: bool) -> None:
    if part.exists() and not _is_empty(part) and not any((part / mark).is_file() for mark in MARKS):
        raise SettingError(f"{part} is in the way, and prepare did not make it. Move it, or change -o.")
    if not out.exists() or _is_empty(out):
        return
    if not (out / INDEX).is_file():
        raise SettingError(f"{out} exists and is no folder made by prepare. Name another place with -o.")
    if not force:
        if (part / INDEX).is_file() and not (part / "plan.json").exists():
            _discard(part)  # a kill fell into the exchange of the old shards for the new ones
        raise SettingError(f"{out} is prepared already. Add --force to replace it, or name another folder.")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


@contextmanager
def _working_in(job: Job, sources: Sequence[Source]) -> Iterator[None]:
    """The folder OUT.part, with what an earlier run of the same plan left; gone after a mistake."""
    folder = job.folder
    plan = {
        "version": VERSION,
        "tokenizer": job.tokenizer.hash,
        "val_share": job.val_share,
        "seed": job.seed,
        "chunk": job.chunk,
        "sources": order_key(sources),
    }
    with lock_folder(folder, "prepare"):
        if not _is_plan(folder, plan):
            for entry in folder.iterdir():
                if entry.name != "lock":
                    remove(entry)
            with atomic_write(folder / "plan.json") as part:
                part.write_text(json.dumps(plan), "utf-8")
        try:
            yield
        except BrokenProcessPool:
            raise UserError(
                "a worker was killed, maybe for want of memory. Repeat the command with --workers 1: "
                "it goes on where this one stopped."
            ) from None
        except UserError:
            _discard(folder)
            raise


def _is_plan(folder: Path, plan: dict[str, Any]) -> bool:
    try:
        return read_json(folder / "plan.json", LIMIT) == plan
    except UserError:
        return False


# Workers.


def _do_units(job: Job, workers: int | None, advance: OnRead) -> None:
    todo = []
    for number, unit in enumerate(job.units):
        if _is_done(job, number):
            advance(sum(_weight(stretch.source.size, unit) for stretch in unit))
        else:
            todo.append(number)
    if workers is None:
        # A worker starts for a second and more: it must have some 64 MiB of text to do.
        weight = sum(s.source.size * (3 if s.source.packing else 1) for n in todo for s in job.units[n])
        workers = min(_cores(), 1 + weight // UNIT)
    workers = min(len(todo), workers)
    if workers <= 1:
        for number in todo:
            do_unit(job, number, advance)
        return
    context = get_context("spawn")  # a fork would copy the threads' locks, say of the progress bar
    read, stop = context.Value("q", 0), context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (job, read, stop)) as pool:
        try:
            pending = {pool.submit(_do_unit_in_worker, number) for number in todo}
            seen = 0
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                now = read.value
                advance(now - seen)
                seen = now
                for future in done:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _is_done(job: Job, number: int) -> bool:
    """All its records, too: a kill in the clean-up at the end may have left any part of them."""
    marker = job.folder / f"unit-{number:05d}.json"
    return marker.is_file() and all(
        _record(job, number, chunk) is not None for chunk in range(read_json(marker)["chunks"])
    )


def _weight(size: int, unit: Unit) -> int:
    return size if len(unit) > 1 or unit[0].stop is None else min(size, UNIT)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_in_worker: dict[str, Any] = {}  # a pool's functions get at what its processes were started with only here


def _start_worker(job: Job, read: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent tells us to stop
    _in_worker.update(job=job, read=read, stop=stop)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _do_unit_in_worker(number: int) -> None:
    def on_read(n: int) -> None:
        if _in_worker["stop"].is_set():
            raise Interrupted
        with _in_worker["read"].get_lock():
            _in_worker["read"].value += n

    do_unit(_in_worker["job"], number, on_read)


# A unit and its chunks.


def do_unit(job: Job, number: int, on_read: OnRead) -> None:
    """All chunks of a unit that are not there yet."""
    chunks = 0
    for chunk, pieces in _chunks(job, number, on_read):
        chunks += 1
        if _record(job, number, chunk) is None:
            # What is written now undoes what that record, left by a kill in the clean-up, tells of.
            remove(job.folder / _record_name(number, chunk, again=True))
            write_chunk(job, number, chunk, pieces, threshold(job.val_share))
    with atomic_write(job.folder / f"unit-{number:05d}.json") as part:
        part.write_text(json.dumps({"chunks": chunks}), "utf-8")


def _chunks(job: Job, number: int, on_read: OnRead) -> Iterator[tuple[int, Iterator[Piece]]]:
    tokenizer = job.tokenizer
    pieces = read_pieces(job.units[number], job.longest, on_read, tokenizer.eot_id, tokenizer.vocab_size)
    for chunk, group in itertools.groupby(_numbered(pieces, job.chunk), key=itemgetter(0)):
        yield chunk, (piece for _, piece in group)


def _numbered(pieces: Iterable[Piece], limit: int) -> Iterator[tuple[int, Piece]]:
    chunk = size = 0
    for piece in pieces:
        if size and size + len(piece.content) > limit:
            chunk, size = chunk + 1, 0
        size += len(piece.content)
        yield chunk, piece


def threshold(val_share: float) -> int:
    """The lots below this go to val."""
    return int(val_share * 2**64)


def lot(content: bytes, seed: int) -> int:
    """The number from 0 to 2 ** 64 that a document draws: a function of its content and the seed alone."""
    key = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=key).digest(), "little")


def write_chunk(
    job: Job, number: int, chunk: int, pieces: Iterable[Piece], below: int, again: bool = False
) -> None:
    """Tokens and document starts of a chunk, and last its record.

    A document is `<|endoftext|>` and its tokens: a model starts from that token when it has no prompt.
    Sections of a long text follow each other without it, unless the section between them went to the other
    split or another chunk begins.
    """
    eot = [] if job.tokenizer.eot_id is None else [job.tokenizer.eot_id]
    dtype = token_dtype(job.tokenizer.vocab_size)
    tokens = {split: bytearray() for split in SPLITS}
    starts = {split: array("I") for split in SPLITS}
    lots: list[int] = []
    characters = 0
    previous = ""
    for piece in pieces:
        if isinstance(piece.content, str):
            raw = piece.content.encode("utf-8")
            ids: np.ndarray = job.tokenizer.encode_array(piece.content)
        else:
            raw = piece.content.tobytes()
            ids = piece.content
        drawn = lot(raw, job.seed)
        split = "val" if drawn < below else "train"
        if piece.begins or split != previous:
            starts[split].append(len(tokens[split]) // dtype.itemsize)
            tokens[split] += np.array(eot, dtype).tobytes()
        tokens[split] += ids.astype(dtype).tobytes()
        previous = split
        lots.append(drawn)
        characters += len(piece.content)
    for split in SPLITS:
        if tokens[split]:
            with atomic_write(
                job.folder / f"{_name(split, number, chunk)}.bin", needs=len(tokens[split])
            ) as part:
                part.write_bytes(tokens[split])
            with atomic_write(job.folder / f"{_name(split, number, chunk)}.starts") as part:
                part.write_bytes(np.array(starts[split], "<u4").tobytes())
    record = Record(
        {split: len(tokens[split]) // dtype.itemsize for split in SPLITS},
        {split: len(starts[split]) for split in SPLITS},
        {split: hashlib.blake2b(tokens[split], digest_size=16).hexdigest() for split in SPLITS},
        len(lots),
        min(lots),
        lots.count(min(lots)),
        characters,
    )
    with atomic_write(job.folder / _record_name(number, chunk, again)) as part:
        part.write_text(json.dumps(asdict(record)), "utf-8")


def _name(split: str, number: int, chunk: int) -> str:
    return f"{split}-{number:05d}-{chunk:03d}"


def _record_name(number: int, chunk: int, again: bool) -> str:
    return f"{'again' if again else 'done'}-{number:05d}-{chunk:03d}.json"


def _record(job: Job, number: int, chunk: int, again: bool = False) -> Record | None:
    path = job.folder / _record_name(number, chunk, again)
    return Record(**read_json(path)) if path.is_file() else None


# The end.


def _fill_splits(job: Job) -> list[tuple[str, dict[str, Any]]]:
    """Every file: its split and its entry in the index.

    Of few documents chance may give none to val, or all. Then val gets the one with the lowest lot and train
    the others (or all, where all are equal), and the chunks that this changes are done again. Whether to do
    so is told from the first records alone, so that a kill in between changes nothing.
    """
    records: dict[tuple[int, int], Record] = {}
    for number in range(len(job.units)):
        for chunk in range(read_json(job.folder / f"unit-{number:05d}.json")["chunks"]):
            record = _record(job, number, chunk)
            assert record is not None
            records[number, chunk] = record
    if not records:
        raise SettingError("there is no text in these files. Name others.")
    lowest = min(record.lowest for record in records.values())
    holders = {key for key, record in records.items() if record.lowest == lowest}
    pieces = sum(record.pieces for record in records.values())
    all_equal = sum(records[key].at_lowest for key in holders) == pieces
    if not any(record.tokens["train"] for record in records.values()):
        again = sorted(records)
    elif job.val_share > 0 and not all_equal and not any(r.tokens["val"] for r in records.values()):
        again = sorted(holders)
    else:
        again = []
    for number, chunk in again:
        if _record(job, number, chunk, again=True) is None:
            for at, found in _chunks(job, number, lambda n: None):
                if at == chunk:
                    write_chunk(job, number, chunk, found, 0 if all_equal else lowest + 1, again=True)
                    break
        record = _record(job, number, chunk, again=True)
        assert record is not None
        records[number, chunk] = record
    return [
        (
            split,
            {
                "name": f"{_name(split, number, chunk)}.bin",
                "tokens": record.tokens[split],
                "documents": record.documents[split],
                "blake2b": record.hashes[split],
            },
        )
        for (number, chunk), record in sorted(records.items())
        for split in SPLITS
        if record.tokens[split]
    ]


def _index(job: Job, sources: Sequence[Source], files: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    splits = {}
    for split in SPLITS:
        mine = [entry for of, entry in files if of == split]
        splits[split] = {
            "tokens": sum(entry["tokens"] for entry in mine),
            "documents": sum(entry["documents"] for entry in mine),
            "files": mine,
        }
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {
            "hash": job.tokenizer.hash,
            "vocab_size": job.tokenizer.vocab_size,
            "eot_id": job.tokenizer.eot_id,
        },
        "dtype": {2: "uint16", 4: "uint32"}[token_dtype(job.tokenizer.vocab_size).itemsize],
        "seed": job.seed,
        "val_share": job.val_share,
        "splits": splits,
        "sources": [{"name": source.path.as_posix(), "bytes": source.size} for source in sources],
    }


def _finish(folder: Path, out: Path, index: dict[str, Any], tokenizer_files: Iterable[str]) -> None:
    """Nothing but what the index names and the tokenizer stays; then the folder gets its name."""
    names = {entry["name"] for split in index["splits"].values() for entry in split["files"]}
    starts = {Path(name).with_suffix(".starts").name for name in names}
    keep = {INDEX, "plan.json", *names, *starts, *tokenizer_files}
    for entry in list(folder.iterdir()):
        if entry.name not in keep:
            remove(entry)
    remove(folder / "plan.json")
    try:
        replaced = replace_path(folder, out)
    except OSError as error:
        raise UserError(f"cannot rename {folder} to {out}: {error.strerror}.") from None
    if replaced is not None:
        _discard(replaced)


def _discard(folder: Path) -> None:
    """Remove a folder of ours, last of all what tells that it is: a kill may come at any time."""
    with suppress(OSError):  # nobody needs it: what cannot be removed stays
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name in MARKS):
            remove(entry)
        folder.rmdir()
