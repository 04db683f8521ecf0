"""One unit of `prepare`: read, tokenized, split, and written as shards, each with its record."""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from glassgpt.files import atomic_write, read_json, remove
from glassgpt.progress import Advance
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.document_parts import DocumentPart, read_document_parts
from glassgpt.train.data.find_files import Unit
from glassgpt.train.data.token_file import token_dtype

SPLITS = ("train", "val")


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


def process_unit(config: PrepareConfig, number: int, on_read: Advance) -> None:
    """Write all shards of a unit that do not exist yet."""
    shards = 0
    for shard, pieces in read_shards(config, number, on_read):
        shards += 1
        if read_record(config, number, shard) is None:
            # A record of a second pass, left by a kill during the clean-up, would no longer match.
            remove(config.folder / _record_name(number, shard, again=True))
            write_shard(config, number, shard, pieces, val_threshold(config.val_fraction))
    with atomic_write(config.folder / f"unit-{number:05d}.json") as part:
        part.write_text(json.dumps({"shards": shards}), "utf-8")


def read_shards(
    config: PrepareConfig, number: int, on_read: Advance
) -> Iterator[tuple[int, Iterator[DocumentPart]]]:
    tokenizer = config.tokenizer
    pieces = read_document_parts(
        config.units[number], config.longest, on_read, tokenizer.eot_id, tokenizer.vocab_size
    )
    for shard, group in itertools.groupby(_number_pieces(pieces, config.shard_size), key=itemgetter(0)):
        yield shard, (piece for _, piece in group)


def _number_pieces(pieces: Iterable[DocumentPart], limit: int) -> Iterator[tuple[int, DocumentPart]]:
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
    config: PrepareConfig,
    number: int,
    shard: int,
    pieces: Iterable[DocumentPart],
    below: int,
    again: bool = False,
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
            with atomic_write(
                config.folder / f"{shard_name(split, number, shard)}.bin", needs=len(tokens[split])
            ) as part:
                part.write_bytes(tokens[split])
            with atomic_write(config.folder / f"{shard_name(split, number, shard)}.starts") as part:
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
    with atomic_write(config.folder / _record_name(number, shard, again)) as part:
        part.write_text(json.dumps(asdict(record)), "utf-8")


def shard_name(split: str, number: int, shard: int) -> str:
    return f"{split}-{number:05d}-{shard:03d}"


def _record_name(number: int, shard: int, again: bool) -> str:
    return f"{'again' if again else 'done'}-{number:05d}-{shard:03d}.json"


def read_record(config: PrepareConfig, number: int, shard: int, again: bool = False) -> ShardRecord | None:
    path = config.folder / _record_name(number, shard, again)
    return ShardRecord(**read_json(path)) if path.is_file() else None
