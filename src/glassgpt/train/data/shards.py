"""Tokens on disk as one stream: a folder made by `prepare`, or files of nanoGPT or llm.c, read in place.

A prepared folder holds `shards.json` (the index), token files (`train-*.bin`, `val-*.bin`: nothing but ids,
little-endian), next to each a `.starts` file with the positions where documents start, and the tokenizer.
Tokens are read on demand.
"""

from __future__ import annotations

import glob
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import expand_user, file_size, path_inside, read_json
from glassgpt.progress import Progress, no_progress
from glassgpt.train.data.token_file import SCAN_BLOCK, TokenFile, is_llmc, open_token_file

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

INDEX = "shards.json"
FORMAT = "glassgpt-shards"
VERSION = 1
INDEX_LIMIT = 1 << 26  # bytes: a line for each of a hundred thousand files

OPEN_FILES = 256  # at a time; systems allow about a thousand


class Shards:
    """The tokens of one split, in several files or an array, as one stream."""

    def __init__(
        self,
        name: str,
        files: Sequence[Path],
        lengths: Sequence[int],
        *,
        dtype: np.dtype[Any],
        prepared: bool,
        vocab_size: int | None,
        eot_id: int | None,
        identity: str,
    ) -> None:
        self.name = name  # for messages
        self.files = list(files)
        self.ends = np.cumsum([0, *lengths], dtype=np.int64)  # file i contains tokens ends[i] to ends[i + 1]
        self.dtype = dtype
        self.prepared = prepared
        self.vocab_size = vocab_size
        self.eot_id = eot_id
        self.identity = identity  # equal only for the same tokens; compared when a run is resumed
        self.checksum: str | None = None  # of all tokens, if `check_ids` had to read them
        self._memory: np.ndarray | None = None  # the tokens, if they are in memory
        self._tokens = lru_cache(OPEN_FILES)(self._open)

    @classmethod
    def open(cls, path: str | Path, split: str = "train", tokenizer: Tokenizer | None = None) -> Shards:
        """Open a prepared folder, a folder with `train.bin` and `val.bin`, llm.c's files, or one such file.

        With a tokenizer (the model's), tokens of another tokenizer are refused. Files of nanoGPT and llm.c do
        not say which tokenizer made them; there, ids beyond the vocabulary are refused when they are read
        (see also `check_ids`).
        """
        path = expand_user(path)
        if (path / INDEX).is_file():
            return _open_prepared(path, split, tokenizer)
        if path.is_dir():
            return _open_token_files(path, _find_token_files(path, split), tokenizer)
        if not path.exists():
            if files := sorted(Path(name) for name in glob.glob(str(path))):
                return _open_token_files(path, files, tokenizer)
            raise SettingError(
                f"{path} does not exist. Name a folder made by glassgpt prepare, or a .bin file."
            )
        return _open_token_files(path, [path], tokenizer)

    @classmethod
    def from_array(cls, ids: np.ndarray, starts: Sequence[int] | np.ndarray = (0,)) -> Shards:
        """Tokens in memory."""
        identity = hashlib.sha256(np.ascontiguousarray(ids, dtype="<u4").tobytes()).hexdigest()
        shards = cls(
            "these tokens",
            [],
            [len(ids)],
            dtype=ids.dtype,
            prepared=False,
            vocab_size=None,
            eot_id=None,
            identity=identity,
        )
        shards._memory = ids
        shards.__dict__["document_starts"] = np.asarray(starts, dtype=np.int64)
        return shards

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from `start` on, across files."""
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"tokens {start:,} to {start + count:,} of {len(self):,}")
        parts = []
        number = int(np.searchsorted(self.ends, start, "right")) - 1
        while count > 0:
            part = self._part(number, start - int(self.ends[number]), count)
            parts.append(part)
            start, count, number = start + len(part), count - len(part), number + 1
        ids = np.asarray(parts[0]) if len(parts) == 1 else np.concatenate([np.zeros(0, self.dtype), *parts])
        if self.vocab_size is not None and len(ids) and int(ids.max()) >= self.vocab_size:
            raise self._id_error(int(ids.max()), self.vocab_size)
        return ids

    def find_largest_id(self, on_read: Callable[[int], None] = lambda n: None) -> int:
        """The largest id, found in one pass over all tokens, which also computes their checksum."""
        if self._memory is not None:
            return int(self._memory.max(initial=0))
        largest = crc = 0
        for number in range(len(self.files)):
            for _, ids in self._tokens(number).blocks():
                largest = max(largest, int(ids.max()))
                crc = zlib.crc32(ids.tobytes(), crc)
                on_read(ids.nbytes)
        self.checksum = f"{crc:08x}"
        return largest

    def check_ids(self, vocab_size: int, progress: Progress = no_progress) -> None:
        """Refuse ids beyond `vocab_size`, now and in all later reads.

        Data prepared for a vocabulary of at most that size is not read for this.
        """
        fits = self.vocab_size is not None and self.vocab_size <= vocab_size
        if not fits:
            with progress(
                f"checking the ids in {self.name}", len(self) * self.dtype.itemsize, unit="bytes"
            ) as advance:
                largest = self.find_largest_id(advance)
            if largest >= vocab_size:
                raise self._id_error(largest, vocab_size)
            self.vocab_size = vocab_size

    def _id_error(self, id: int, vocab_size: int) -> FileFormatError:
        return FileFormatError(
            f"{self.name} contains the id {id:,}, but the vocabulary has {vocab_size:,}: it was made with "
            "another tokenizer, is damaged, or is not a file of token ids. Run glassgpt prepare again."
        )

    @cached_property
    def document_starts(self) -> np.ndarray:
        """The positions, in order, where documents start (int64).

        In files of nanoGPT and llm.c they are found in one pass over all tokens if a tokenizer defines
        `<|endoftext|>`; otherwise there is only the first.
        """
        parts = [np.zeros(0, np.int64)]
        for number, file in enumerate(self.files):
            base = int(self.ends[number])
            if self.prepared:
                parts.append(np.fromfile(_starts_file(file), dtype="<u4").astype(np.int64) + base)
            elif self.eot_id is not None:
                after = 0 if is_llmc(file) else 1
                for at, ids in self._tokens(number).blocks():
                    slots = np.flatnonzero(ids == self.eot_id)
                    parts.append(slots.astype(np.int64) + (base + at + after))
        starts = np.concatenate(parts)
        if not self.prepared:
            starts = np.unique(np.concatenate([np.zeros(1, np.int64), starts]))
        return starts[starts < len(self)]

    def _part(self, number: int, start: int, count: int) -> np.ndarray:
        if self._memory is not None:
            return self._memory[start : start + count]
        return self._tokens(number).read(start, count)

    def _open(self, number: int) -> TokenFile:
        file, length = self.files[number], int(self.ends[number + 1] - self.ends[number])
        if self.prepared:
            return TokenFile(file, self.dtype, 0, length)
        opened = open_token_file(file)
        if len(opened) != length:
            raise FileFormatError(
                f"{file} had {length:,} tokens and has {len(opened):,}: it changed while in use."
            )
        return opened


class Split:
    """Tokens `start` to `stop` of a stream: data without a validation split is divided this way."""

    def __init__(self, shards: Shards, start: int, stop: int) -> None:
        self.shards, self.start, self.stop = shards, start, stop
        self.name = shards.name
        self.identity = f"{shards.identity}[{start}:{stop}]"
        self.check_ids = shards.check_ids
        starts = shards.document_starts
        self.document_starts = starts[(starts >= start) & (starts < stop)] - start

    @property
    def checksum(self) -> str | None:
        return self.shards.checksum

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, start: int, count: int) -> np.ndarray:
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"tokens {start:,} to {start + count:,} of {len(self):,}")
        return self.shards.read(self.start + start, count)


def open_splits(path: str | Path, val_fraction: float = 0.05) -> tuple[Shards | Split, Shards | Split]:
    """The train and val splits. Without a val split (one long document, a single file), val is the end."""
    train = Shards.open(path, "train")
    if expand_user(path).is_dir():
        with suppress(SettingError):  # there is no val split
            return train, Shards.open(path, "val")
    cut = int(len(train) * (1 - val_fraction))
    return Split(train, 0, cut), Split(train, cut, len(train))


def _open_prepared(folder: Path, split: str, tokenizer: Tokenizer | None) -> Shards:
    index = read_index(folder)
    made_with = index["tokenizer"]
    if tokenizer is not None and tokenizer.hash != made_with["hash"]:
        raise SettingError(
            f"{folder} was prepared with another tokenizer ({made_with['vocab_size']:,} tokens, hash "
            f"{made_with['hash'][:12]}) than the model's ({tokenizer.vocab_size:,} tokens, hash "
            f"{tokenizer.hash[:12]}). Prepare the text again with this model as --tokenizer."
        )
    if split not in index["splits"]:
        raise SettingError(f"{folder} has no split {split!r}, only {', '.join(index['splits'])}.")
    dtype = np.dtype({"uint16": "<u2", "uint32": "<u4"}[index["dtype"]])
    entries = index["splits"][split]["files"]
    files, lengths = [], []
    for entry in entries:
        file = path_inside(folder, entry["name"])
        _check_size(file, entry["tokens"] * dtype.itemsize)
        _check_size(_starts_file(file), entry["documents"] * 4)
        files.append(file)
        lengths.append(entry["tokens"])
    if not files:
        raise SettingError(
            f"{folder} has no tokens for {split!r}. Prepare it with more text or a larger --val-fraction."
        )
    return Shards(
        f"{folder} ({split})",
        files,
        lengths,
        dtype=dtype,
        prepared=True,
        vocab_size=made_with["vocab_size"],
        eot_id=made_with["eot_id"],
        identity=hashlib.sha256(json.dumps([index, split], sort_keys=True).encode()).hexdigest(),
    )


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a prepared folder, after checking every field that is used."""
    index = read_json(folder / INDEX, INDEX_LIMIT)
    if index.get("format") != FORMAT or index.get("version") != VERSION:
        raise FileFormatError(
            f"{folder / INDEX} is {index.get('format')!r} version {index.get('version')!r}; this is "
            f"{FORMAT!r} version {VERSION}. Prepare the text again, or use a newer GlassGPT."
        )
    try:
        tokenizer = index["tokenizer"]
        valid = isinstance(tokenizer["hash"], str) and _is_count(tokenizer["vocab_size"])
        valid = valid and (tokenizer["eot_id"] is None or _is_count(tokenizer["eot_id"]))
        valid = valid and index["dtype"] in ("uint16", "uint32")
        for split in index["splits"].values():
            for entry in split["files"]:
                valid = valid and _is_count(entry["tokens"]) and _is_count(entry["documents"])
                valid = valid and isinstance(entry["name"], str) and entry["tokens"] > 0
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise FileFormatError(f"{folder / INDEX} is damaged. Prepare the text again.")
    return index


def check_hashes(folder: Path, progress: Progress = no_progress) -> Iterator[tuple[Path, str]]:
    """Every token file of a prepared folder and what is wrong with it, or ""."""
    index = read_index(folder)
    itemsize = np.dtype(index["dtype"]).itemsize
    entries = [entry for split in index["splits"].values() for entry in split["files"]]
    with progress(
        f"checking {folder}", sum(entry["tokens"] for entry in entries) * itemsize, unit="bytes"
    ) as advance:
        for entry in entries:
            file = path_inside(folder, entry["name"])
            yield file, _find_difference(file, entry, itemsize, advance)


def _find_difference(file: Path, entry: dict[str, Any], itemsize: int, advance: Callable[[int], None]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        _check_size(file, entry["tokens"] * itemsize)
        _check_size(_starts_file(file), entry["documents"] * 4)
        with file.open("rb") as handle:
            while block := handle.read(SCAN_BLOCK):
                digest.update(block)
                advance(len(block))
        starts = np.fromfile(_starts_file(file), "<u4")
    except FileFormatError as error:
        return str(error)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}."
    if digest.hexdigest() != entry.get("blake2b"):
        return f"{file} has changed since it was prepared. Prepare the text again."
    if len(starts) and (starts[-1] >= entry["tokens"] or (np.diff(starts.astype(np.int64)) <= 0).any()):
        return f"{_starts_file(file)} has changed since it was prepared. Prepare the text again."
    return ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_size(file: Path, expected: int) -> None:
    size = file_size(file)
    if size != expected:
        raise FileFormatError(
            f"{file} should have {expected:,} bytes and has {size:,}: truncated or changed. "
            "Prepare the text again."
        )


def _starts_file(file: Path) -> Path:
    return file.with_suffix(".starts")


def _find_token_files(folder: Path, split: str) -> list[Path]:
    """nanoGPT's `train.bin`, or llm.c's `fineweb_train_000001.bin`, ..."""
    single = folder / f"{split}.bin"
    if single.is_file():
        return [single]
    files = [f for f in sorted(folder.glob("*.bin")) if split in f.stem.split("_") and is_llmc(f)]
    if not files:
        raise SettingError(
            f"{folder} contains neither {INDEX} nor {single.name} nor llm.c's *_{split}_*.bin. "
            f"Prepare it with: glassgpt prepare TEXT -o {folder}"
        )
    return files


def _open_token_files(name: Path, files: list[Path], tokenizer: Tokenizer | None) -> Shards:
    lengths = [len(open_token_file(file)) for file in files]
    if sum(lengths) == 0:
        raise FileFormatError(f"{name} contains no tokens.")
    return Shards(
        str(name),
        files,
        lengths,
        dtype=np.dtype("<u2"),
        prepared=False,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        eot_id=None if tokenizer is None else tokenizer.eot_id,
        identity=_hash_files(files),
    )


def _hash_files(files: list[Path]) -> str:
    """A hash of the length and both ends of each file: all tokens may be many gigabytes."""
    digest = hashlib.sha256()
    for file in files:
        tokens = open_token_file(file)
        digest.update(f"{len(tokens)} ".encode())
        digest.update(tokens.read(0, 8192).tobytes())
        digest.update(tokens.read(max(0, len(tokens) - 8192), 8192).tobytes())
    return digest.hexdigest()
