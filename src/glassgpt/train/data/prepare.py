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

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from glassgpt.errors import SettingError, UserError
from glassgpt.files import (
    atomic_write,
    check_target,
    expand_user,
    lock_folder,
    read_json,
    recover_interrupted_write,
    remove,
    replace_path,
    resolve_symlink,
    write_text_files,
)
from glassgpt.files.text import SourceFile
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import SEEDS, check_number, check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.document_parts import SECTION
from glassgpt.train.data.find_files import WHOLE, Reading, describe_sources, divide, find_sources
from glassgpt.train.data.shard_writer import (
    SPLITS,
    PrepareConfig,
    ShardRecord,
    read_record,
    read_shards,
    shard_name,
    write_shard,
)
from glassgpt.train.data.shards import FORMAT, INDEX, VERSION
from glassgpt.train.data.token_file import token_dtype
from glassgpt.train.data.workers import UNIT, process_units

LONGEST = 1 << 24  # characters of a .txt that is still one document
MAX_WORKERS = 1024  # more processes than any one machine has cores
PLAN_LIMIT = 1 << 26  # bytes of plan.json: a line for each of a million files


def prepare(
    inputs: Iterable[str | Path],
    out: str | Path,
    tokenizer: Tokenizer,
    *,
    val_fraction: float = 0.01,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
    reading: Reading = WHOLE,
    unit_bytes: int = UNIT,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Tokenize the texts, write them as shards into the folder `out` and return its index."""
    out = resolve_symlink(expand_user(out))
    check_number("--val-fraction", val_fraction, 0, 1, "0.01 is usual", below=True)
    check_whole("--seed", seed, 0, SEEDS)
    if workers is not None:
        check_whole("--workers", workers, 1, MAX_WORKERS)
    check_target(out)
    part = out.with_name(out.name + ".part")
    recover_interrupted_write(out)
    sources = find_sources(inputs, exclude=(out, part), reading=reading)
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
    with progress("preparing", total, unit="bytes") as advance, _work_in_part(config, sources):
        tokenizer_files = tokenizer.files()
        write_text_files(config.folder, tokenizer_files)
        process_units(config, workers, advance)
        files = _fill_splits(config)
        index = _make_index(config, sources, files)
        with atomic_write(config.folder / INDEX) as file:
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
    with lock_folder(folder, "prepare"):
        if not _has_plan(folder, plan):
            for entry in folder.iterdir():
                if entry.name != "lock":
                    remove(entry)
            with atomic_write(folder / "plan.json") as part:
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
        return read_json(folder / "plan.json", PLAN_LIMIT) == plan
    except UserError:
        return False


# Finishing.


def _fill_splits(config: PrepareConfig) -> list[tuple[str, dict[str, Any]]]:
    """Every file: its split and its entry in the index.

    With few documents, chance may give none or all of them to val. Then val gets the one with the lowest hash
    and train the others (or all, if all are equal), and the affected shards are written again. The decision
    depends on the first records alone, so a kill in between changes nothing.
    """
    records: dict[tuple[int, int], ShardRecord] = {}
    for number in range(len(config.units)):
        for shard in range(read_json(config.folder / f"unit-{number:05d}.json")["shards"]):
            record = read_record(config, number, shard)
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
        if read_record(config, number, shard, again=True) is None:
            for at, parts in read_shards(config, number, lambda n: None):
                if at == shard:
                    write_shard(config, number, shard, parts, 0 if all_equal else lowest + 1, again=True)
                    break
        record = read_record(config, number, shard, again=True)
        assert record is not None
        records[number, shard] = record
    return [
        (
            split,
            {
                "name": f"{shard_name(split, number, shard)}.bin",
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
        entries = [entry for entry_split, entry in files if entry_split == split]
        splits[split] = {
            "tokens": sum(entry["tokens"] for entry in entries),
            "documents": sum(entry["documents"] for entry in entries),
            "files": entries,
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
        replaced = replace_path(folder, out)
    except OSError as error:
        raise UserError(f"cannot rename {folder} to {out}: {error.strerror}.") from None
    if replaced is not None:
        _discard(replaced)


def _discard(folder: Path) -> None:
    """Remove a folder of ours, the markers last, so that after a kill it is still known to be ours."""
    with suppress(OSError):  # leftovers do no harm
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name in MARKERS):
            remove(entry)
        folder.rmdir()
