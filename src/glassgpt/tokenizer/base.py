"""What every tokenizer does: text to ids and back. The kinds differ only in what a token is."""

from __future__ import annotations

import codecs
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassgpt.errors import SettingError

PathLike = str | Path


@dataclass(frozen=True)
class Merge:
    """One step: the pair of rank `rank` was joined, and the word is now cut into `pieces`."""

    rank: int
    left: bytes
    right: bytes
    pieces: tuple[bytes, ...]


@dataclass(frozen=True)
class Word:
    """How one word became tokens: its bytes, every merge, and the ids in the end."""

    text: str
    start: tuple[bytes, ...]
    merges: tuple[Merge, ...]
    ids: tuple[int, ...]


class Tokenizer(ABC):
    """Text to ids and back. `Tokenizer.load` and `Tokenizer.train` make one; the kinds are subclasses."""

    kind: ClassVar[str]
    eot_id: int | None

    @staticmethod
    def load(path: PathLike) -> Tokenizer:
        """Open a tokenizer of any kind from a folder or from one of its files."""
        from glassgpt.tokenizer.files import load

        return load(path)

    @classmethod
    def train(cls, files: Iterable[PathLike] | PathLike, vocab_size: int, **options: Any) -> Tokenizer:
        """Learn a byte-level BPE vocabulary from text files; see `glassgpt.tokenizer.trainer.train`."""
        from glassgpt.tokenizer.trainer import train

        return train(files, vocab_size, **options)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """One more than the highest id."""

    @property
    def text_size(self) -> int:
        """One more than the highest id that ordinary text is cut into: special tokens may lie above it."""
        return self.vocab_size

    @abstractmethod
    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text. `<|endoftext|>` in it is ordinary text unless `allow_special`."""

    def explain(self, text: str, allow_special: bool = False) -> list[Word]:
        """How each word became tokens; without merges every token is a word."""
        return [
            Word(data.decode("utf-8", "replace"), (data,), (), (token_id,))
            for token_id in self.encode(text, allow_special)
            for data in (self.token_bytes(token_id),)
        ]

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for (maybe only a part of a character)."""

    @abstractmethod
    def files(self) -> dict[str, str]:
        """What `save` writes: file name -> content."""

    @abstractmethod
    def vocabulary(self) -> object:
        """Everything that decides the ids, as plain JSON data, for `hash`."""

    def encode_array(self, text: str, allow_special: bool = False) -> npt.NDArray[np.uint32]:
        """The ids as an array, for big texts: a list of Python ints costs more than finding the ids."""
        return np.array(self.encode(text, allow_special), dtype=np.uint32)

    def encode_batch(self, texts: Iterable[str], allow_special: bool = False) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text, allow_special) for text in texts]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes that the ids stand for."""
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the ids stand for; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> TextStream:
        """A decoder to which ids are given one at a time."""
        return TextStream(self)

    def save(self, folder: PathLike) -> None:
        """Write the tokenizer's files into a folder, which is made if need be."""
        from glassgpt.files import write_text_files

        write_text_files(Path(folder), self.files())

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the vocabulary: equal for two tokenizers exactly when all their ids are."""
        canonical = json.dumps([self.kind, self.vocabulary()], separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _unknown_id(self, token_id: object) -> SettingError:
        return SettingError(
            f"{token_id!r} is not a token id of this vocabulary; ids go from 0 to {self.vocab_size - 1}"
        )


class TextStream:
    """Turns ids into text piece by piece, holding back the first bytes of a character until the rest came."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What was held back, as U+FFFD if it never became a character; the stream can then start anew."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def checked_id(tokenizer: Tokenizer, token_id: object, tokens: Sequence[bytes | None]) -> bytes:
    """The bytes of an id, or an error that names the id.

    An id in a gap, as tokens that were added later may leave one, has none: a model may still draw it.
    """
    try:
        if token_id >= 0 and not isinstance(token_id, bool):  # type: ignore[operator]  # numpy ints too
            data = tokens[token_id]  # type: ignore[call-overload]
            return b"" if data is None else data
    except (IndexError, TypeError):
        pass
    raise tokenizer._unknown_id(token_id)
