"""From text to shards: `prepare` reads documents, tokenizes them and splits them into train and val.

The work is divided into units (a file, a range of a long one, several short ones), and the output of a unit
into shards of bounded size. A shard is atomic: its files are renamed into place before its record is, so
after a kill the next run finds the records and does the rest. The result is the same, bit for bit, for any
number of workers and any number of kills.

    OUT.part/train-00002-000.bin, .starts    the train tokens of shard 0 of unit 2, and where documents start
    OUT.part/done-00002-000.json             its record
    OUT.part/plan.json                       the inputs and settings; if they differ, the work starts over

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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    alone_in,
    check_target,
    followed,
    put_in_place,
    read_json,
    remove,
    settle,
    writing,
)
from glassgpt.ranges import SEEDS, check_number, check_whole
from glassgpt.text_files import OnRead, SourceFile
from glassgpt.tokenizer import Tokenizer
from glassgpt.tokenizer.files import write_files
from glassgpt.train.data.find_files import Unit, describe_sources, divide, find_sources
from glassgpt.train.data.readers import SECTION, Piece, read_pieces
from glassgpt.train.data.shards import FORMAT, INDEX, VERSION, token_dtype

UNIT = 1 << 26  # bytes per unit and characters per shard, which bounds the memory used
LONGEST = 1 << 24  # characters of a .txt that is still one document
SPLITS = ("train", "val")
MAX_WORKERS = 1024  # more processes than any one machine has cores
JSON_LIMIT = 1 << 26  # bytes of JSON files of our own


@dataclass(frozen=True)
class PrepareConfig:
    """Everything a worker needs."""

    folder: Path
    units: list[Unit]
    tokenizer: Tokenizer
    val_fraction: float
    seed: int
    longest: int  # characters of a text that is not split into sections
    shard_size: int  # characters, at most


@dataclass
class ShardRecord:
    """The contents of a finished shard."""

    tokens: dict[str, int]
    documents: dict[str, int]
    hashes: dict[str, str]  # of the token files, so that the index identifies the data
    pieces: int  # documents and sections
    lowest_hash: int  # of all pieces
    lowest_count: int  # how many pieces have it (equal texts have equal hashes)
    characters: int


class Interrupted(Exception):  # not an error: the parent asked the worker to stop
    pass


def prepare(
    inputs: Iterable[str | Path],
    out: str | Path,
    tokenizer: Tokenizer,
    *,
    val_fraction: float = 0.01,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
    unit_bytes: int = UNIT,
    on_start: Callable[[int], None] | None = None,
    on_read: OnRead | None = None,
) -> dict[str, Any]:
    """Tokenize the texts, write them as shards into the folder `out` and return its index.

    `on_start` is called with the number of bytes to read, `on_read` with the bytes read since its last call.
    """
    out = followed(Path(out).expanduser())
    check_number("--val-fraction", val_fraction, 0, 1, "0.01 is usual", below=True)
    check_whole("--seed", seed, 0, SEEDS)
    if workers is not None:
        check_whole("--workers", workers, 1, MAX_WORKERS)
    check_target(out)
    part = out.with_name(out.name + ".part")
    settle(out)
    sources = find_sources(inputs, exclude=(out, part))
    _check_output(out, part, force)
    check_target(out, [source.path for source in sources])
    total = sum(source.size for source in sources)
    config = PrepareConfig(
        part,
        divide(sources, unit_bytes),
        tokenizer,
        val_fraction,
        seed,
        # A text longer than the whole val split cannot go to either split as a whole.
        max(SECTION, min(LONGEST, unit_bytes, int(val_fraction * total))),
        unit_bytes,
    )
    if on_start is not None:
        on_start(total)
    with _work_in_part(config, sources):
        tokenizer_files = tokenizer.files()
        write_files(config.folder, tokenizer_files)
        _process_units(config, workers, (lambda n: None) if on_read is None else on_read)
        files = _fill_splits(config)
        index = _make_index(config, sources, files)
        with writing(config.folder / INDEX) as file:
            file.write_text(json.dumps(index, indent=1) + "\n", "utf-8")
        _finish(config.folder, out, index, tokenizer_files)
    return index


MARKERS = (INDEX, "plan.json", "lock")  # at least one of them is in OUT.part at any time


def _check_output(out: Path, part: Path, force: bool) -> None:
    if part.exists() and not _is_empty(part) and not any((part / marker).is_file() for marker in MARKERS):
        raise SettingError(f"{part} exists and was not made by prepare. Move it, or choose another -o.")
    if not out.exists() or _is_empty(out):
        return
    if not (out / INDEX).is_file():
        raise SettingError(f"{out} exists and was not made by prepare. Choose another folder with -o.")
    if not force:
        if (part / INDEX).is_file() and not (part / "plan.json").exists():
            _discard(part)  # killed while the old shards were being replaced
        raise SettingError(
            f"{out} already exists. Add --force to replace it, or choose another folder with -o."
        )


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


@contextmanager
def _work_in_part(config: PrepareConfig, sources: Sequence[SourceFile]) -> Iterator[None]:
    """Work in OUT.part, reusing the work of an earlier run of the same plan; a user error removes it."""
    folder = config.folder
    plan = {
        "version": VERSION,
        "tokenizer": config.tokenizer.hash,
        "val_fraction": config.val_fraction,
        "seed": config.seed,
        "shard_size": config.shard_size,
        "sources": describe_sources(sources),
    }
    with alone_in(folder, "prepare"):
        if not _has_plan(folder, plan):
            for entry in folder.iterdir():
                if entry.name != "lock":
                    remove(entry)
            with writing(folder / "plan.json") as part:
                part.write_text(json.dumps(plan), "utf-8")
        try:
            yield
        except BrokenProcessPool:
            raise UserError(
                "a worker was killed, perhaps because memory ran out. Run it again with --workers 1: "
                "it resumes where this one stopped."
            ) from None
        except UserError:
            _discard(folder)
            raise


def _has_plan(folder: Path, plan: dict[str, Any]) -> bool:
    try:
        return read_json(folder / "plan.json", JSON_LIMIT) == plan
    except UserError:
        return False


# Workers.


def _process_units(config: PrepareConfig, workers: int | None, on_read: OnRead) -> None:
    todo = []
    for number, unit in enumerate(config.units):
        if _is_done(config, number):
            on_read(sum(_weight(chunk.source.size, unit) for chunk in unit))
        else:
            todo.append(number)
    if workers is None:
        # A worker takes more than a second to start, so each should get at least 64 MiB of text.
        weight = sum(
            s.source.size * (3 if s.source.compression else 1) for n in todo for s in config.units[n]
        )
        workers = min(_cores(), 1 + weight // UNIT)
    workers = min(len(todo), workers)
    if workers <= 1:
        for number in todo:
            process_unit(config, number, on_read)
        return
    context = get_context("spawn")  # a fork would copy locks of other threads, such as the progress bar's
    read, stop = context.Value("q", 0), context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (config, read, stop)) as pool:
        try:
            pending = {pool.submit(_process_unit_in_worker, number) for number in todo}
            seen = 0
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                now = read.value
                on_read(now - seen)
                seen = now
                for future in done:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _is_done(config: PrepareConfig, number: int) -> bool:
    """Whether all its records are there: a kill during the final clean-up may have removed some."""
    marker = config.folder / f"unit-{number:05d}.json"
    return marker.is_file() and all(
        _read_record(config, number, shard) is not None for shard in range(read_json(marker)["shards"])
    )


def _weight(size: int, unit: Unit) -> int:
    return size if len(unit) > 1 or unit[0].stop is None else min(size, UNIT)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_in_worker: dict[str, Any] = {}  # how a pool's functions reach what its processes were started with


def _start_worker(config: PrepareConfig, read: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the workers
    _in_worker.update(config=config, read=read, stop=stop)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _process_unit_in_worker(number: int) -> None:
    def on_read(n: int) -> None:
        if _in_worker["stop"].is_set():
            raise Interrupted
        with _in_worker["read"].get_lock():
            _in_worker["read"].value += n

    process_unit(_in_worker["config"], number, on_read)


# A unit and its shards.


def process_unit(config: PrepareConfig, number: int, on_read: OnRead) -> None:
    """Write all shards of a unit that do not exist yet."""
    shards = 0
    for shard, pieces in _read_shards(config, number, on_read):
        shards += 1
        if _read_record(config, number, shard) is None:
            # A record of a second pass, left by a kill during the clean-up, would no longer match.
            remove(config.folder / _record_name(number, shard, again=True))
            write_shard(config, number, shard, pieces, val_threshold(config.val_fraction))
    with writing(config.folder / f"unit-{number:05d}.json") as part:
        part.write_text(json.dumps({"shards": shards}), "utf-8")


def _read_shards(
    config: PrepareConfig, number: int, on_read: OnRead
) -> Iterator[tuple[int, Iterator[Piece]]]:
    tokenizer = config.tokenizer
    pieces = read_pieces(
        config.units[number], config.longest, on_read, tokenizer.eot_id, tokenizer.vocab_size
    )
    for shard, group in itertools.groupby(_number_pieces(pieces, config.shard_size), key=itemgetter(0)):
        yield shard, (piece for _, piece in group)


def _number_pieces(pieces: Iterable[Piece], limit: int) -> Iterator[tuple[int, Piece]]:
    shard = size = 0
    for piece in pieces:
        if size and size + len(piece.content) > limit:
            shard, size = shard + 1, 0
        size += len(piece.content)
        yield shard, piece


def val_threshold(val_fraction: float) -> int:
    """Documents with a hash below this go to val."""
    return int(val_fraction * 2**64)


def hash_document(content: bytes, seed: int) -> int:
    """A number below 2 ** 64 that decides the split of a document, from its content and the seed alone."""
    key = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=key).digest(), "little")


def write_shard(
    config: PrepareConfig, number: int, shard: int, pieces: Iterable[Piece], below: int, again: bool = False
) -> None:
    """Write the tokens and document starts of a shard, and last its record.

    A document is `<|endoftext|>` followed by its tokens: without a prompt a model starts from that token.
    Sections of a long text follow each other without it, unless the section between them went to the other
    split or a new shard starts.
    """
    eot = [] if config.tokenizer.eot_id is None else [config.tokenizer.eot_id]
    dtype = token_dtype(config.tokenizer.vocab_size)
    tokens = {split: bytearray() for split in SPLITS}
    starts = {split: array("I") for split in SPLITS}
    hashes: list[int] = []
    characters = 0
    previous = ""
    for piece in pieces:
        if isinstance(piece.content, str):
            raw = piece.content.encode("utf-8")
            ids: np.ndarray = config.tokenizer.encode_array(piece.content)
        else:
            raw = piece.content.tobytes()
            ids = piece.content
        hashed = hash_document(raw, config.seed)
        split = "val" if hashed < below else "train"
        if piece.starts_document or split != previous:
            starts[split].append(len(tokens[split]) // dtype.itemsize)
            tokens[split] += np.array(eot, dtype).tobytes()
        tokens[split] += ids.astype(dtype).tobytes()
        previous = split
        hashes.append(hashed)
        characters += len(piece.content)
    for split in SPLITS:
        if tokens[split]:
            with writing(
                config.folder / f"{_shard_name(split, number, shard)}.bin", needs=len(tokens[split])
            ) as part:
                part.write_bytes(tokens[split])
            with writing(config.folder / f"{_shard_name(split, number, shard)}.starts") as part:
                part.write_bytes(np.array(starts[split], "<u4").tobytes())
    record = ShardRecord(
        {split: len(tokens[split]) // dtype.itemsize for split in SPLITS},
        {split: len(starts[split]) for split in SPLITS},
        {split: hashlib.blake2b(tokens[split], digest_size=16).hexdigest() for split in SPLITS},
        len(hashes),
        min(hashes),
        hashes.count(min(hashes)),
        characters,
    )
    with writing(config.folder / _record_name(number, shard, again)) as part:
        part.write_text(json.dumps(asdict(record)), "utf-8")


def _shard_name(split: str, number: int, shard: int) -> str:
    return f"{split}-{number:05d}-{shard:03d}"


def _record_name(number: int, shard: int, again: bool) -> str:
    return f"{'again' if again else 'done'}-{number:05d}-{shard:03d}.json"


def _read_record(config: PrepareConfig, number: int, shard: int, again: bool = False) -> ShardRecord | None:
    path = config.folder / _record_name(number, shard, again)
    return ShardRecord(**read_json(path)) if path.is_file() else None


# Finishing.


def _fill_splits(config: PrepareConfig) -> list[tuple[str, dict[str, Any]]]:
    """Every file: its split and its entry in the index.

    With few documents, chance may give none or all of them to val. Then val gets the one with the lowest hash
    and train the others (or all, if all are equal), and the affected shards are written again. The decision
    depends on the first records alone, so that a kill in between changes nothing.
    """
    records: dict[tuple[int, int], ShardRecord] = {}
    for number in range(len(config.units)):
        for shard in range(read_json(config.folder / f"unit-{number:05d}.json")["shards"]):
            record = _read_record(config, number, shard)
            assert record is not None
            records[number, shard] = record
    if not records:
        raise SettingError("these files contain no text. Name others.")
    lowest = min(record.lowest_hash for record in records.values())
    holders = {key for key, record in records.items() if record.lowest_hash == lowest}
    pieces = sum(record.pieces for record in records.values())
    all_equal = sum(records[key].lowest_count for key in holders) == pieces
    if not any(record.tokens["train"] for record in records.values()):
        again = sorted(records)
    elif config.val_fraction > 0 and not all_equal and not any(r.tokens["val"] for r in records.values()):
        again = sorted(holders)
    else:
        again = []
    for number, shard in again:
        if _read_record(config, number, shard, again=True) is None:
            for at, found in _read_shards(config, number, lambda n: None):
                if at == shard:
                    write_shard(config, number, shard, found, 0 if all_equal else lowest + 1, again=True)
                    break
        record = _read_record(config, number, shard, again=True)
        assert record is not None
        records[number, shard] = record
    return [
        (
            split,
            {
                "name": f"{_shard_name(split, number, shard)}.bin",
                "tokens": record.tokens[split],
                "documents": record.documents[split],
                "blake2b": record.hashes[split],
            },
        )
        for (number, shard), record in sorted(records.items())
        for split in SPLITS
        if record.tokens[split]
    ]


def _make_index(
    config: PrepareConfig, sources: Sequence[SourceFile], files: list[tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
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
            "hash": config.tokenizer.hash,
            "vocab_size": config.tokenizer.vocab_size,
            "eot_id": config.tokenizer.eot_id,
        },
        "dtype": {2: "uint16", 4: "uint32"}[token_dtype(config.tokenizer.vocab_size).itemsize],
        "seed": config.seed,
        "val_fraction": config.val_fraction,
        "splits": splits,
        "sources": [{"name": source.path.as_posix(), "bytes": source.size} for source in sources],
    }


def _finish(folder: Path, out: Path, index: dict[str, Any], tokenizer_files: Iterable[str]) -> None:
    """Remove everything but the indexed files and the tokenizer, then rename the folder."""
    names = {entry["name"] for split in index["splits"].values() for entry in split["files"]}
    starts = {Path(name).with_suffix(".starts").name for name in names}
    keep = {INDEX, "plan.json", *names, *starts, *tokenizer_files}
    for entry in list(folder.iterdir()):
        if entry.name not in keep:
            remove(entry)
    remove(folder / "plan.json")
    try:
        replaced = put_in_place(folder, out)
    except OSError as error:
        raise UserError(f"cannot rename {folder} to {out}: {error.strerror}.") from None
    if replaced is not None:
        _discard(replaced)


def _discard(folder: Path) -> None:
    """Remove a folder of ours, the markers last, so that after a kill it is still known to be ours."""
    with suppress(OSError):  # what cannot be removed does no harm
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name in MARKERS):
            remove(entry)
        folder.rmdir()
