"""The interface of all tokenizers: text to ids and back."""

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

from glassgpt.errors import SettingError, short_repr

PathLike = str | Path


@dataclass(frozen=True)
class Merge:
    """One merge: the pair of rank `rank`, and the pieces of the word after it."""

    rank: int
    left: bytes
    right: bytes
    pieces: tuple[bytes, ...]


@dataclass(frozen=True)
class WordMerges:
    """The tokenization of one word: its bytes, every merge, and the resulting ids."""

    text: str
    start: tuple[bytes, ...]
    merges: tuple[Merge, ...]
    ids: tuple[int, ...]


class Tokenizer(ABC):
    """Text to ids and back. `Tokenizer.load` and `Tokenizer.train` create one; the kinds are subclasses."""

    kind: ClassVar[str]
    eot_id: int | None

    @staticmethod
    def load(path: PathLike) -> Tokenizer:
        """Load a tokenizer of any kind from a folder or one of its files."""
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
        """The highest id plus one."""

    @property
    def text_size(self) -> int:
        """The highest id of ordinary text plus one: special tokens may have higher ids."""
        return self.vocab_size

    def fits(self, n_embeddings: int) -> bool:
        """Whether this can be the tokenizer of a model with `n_embeddings` token embeddings.

        A special token that was added later, and never learned, may have no embedding. There may also be more
        embeddings than tokens: vocabularies are padded to a round number, and the padding is never drawn
        (50,257 tokens have 50,304 embeddings in nanoGPT, 50,400 in GPT-J, 51,200 in Megatron; 257 may have
        384). If more tokens are missing, the tokenizer is another model's: what it lacks would be lost to
        every text.
        """
        padding = n_embeddings - self.vocab_size
        return self.text_size <= n_embeddings and padding <= min(1023, max(127, self.vocab_size // 8))

    @property
    def special_tokens(self) -> dict[str, int]:
        """The tokens that ordinary text never becomes, by name."""
        return {} if self.eot_id is None else {"<|endoftext|>": self.eot_id}

    @abstractmethod
    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text. `<|endoftext|>` in it is ordinary text unless `allow_special`."""

    def explain(self, text: str, allow_special: bool = False) -> list[WordMerges]:
        """The tokenization of each word; without merges every token is a word."""
        return [
            WordMerges(data.decode("utf-8", "replace"), (data,), (), (token_id,))
            for token_id in self.encode(text, allow_special)
            for data in (self.token_bytes(token_id),)
        ]

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, possibly only a part of a character."""

    @abstractmethod
    def files(self) -> dict[str, str]:
        """What `save` writes: file name -> content."""

    @abstractmethod
    def vocabulary(self) -> object:
        """Everything that determines the ids, as JSON data, for `hash`."""

    def encode_array(self, text: str, allow_special: bool = False) -> npt.NDArray[np.uint32]:
        """The ids as an array, for large texts: a list of Python ints costs more than the encoding."""
        return np.array(self.encode(text, allow_special), dtype=np.uint32)

    def encode_batch(self, texts: Iterable[str], allow_special: bool = False) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text, allow_special) for text in texts]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of the tokens."""
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> DecodeStream:
        """An incremental decoder."""
        return DecodeStream(self)

    def save(self, folder: PathLike) -> None:
        """Write the tokenizer's files into a folder, which is created if necessary."""
        from glassgpt.files import write_text_files

        write_text_files(Path(folder), self.files())

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the vocabulary: equal for two tokenizers if and only if all their ids are."""
        canonical = json.dumps([self.kind, self.vocabulary()], separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _unknown_id(self, token_id: object) -> SettingError:
        return SettingError(
            f"{short_repr(token_id)} is not a token id of this vocabulary; "
            f"ids go from 0 to {self.vocab_size - 1}"
        )


class DecodeStream:
    """Decodes ids one at a time; bytes of an incomplete character wait for the rest."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """The pending bytes, as U+FFFD if they are not a complete character; resets the stream."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def lookup_token(tokenizer: Tokenizer, token_id: object, tokens: Sequence[bytes | None]) -> bytes:
    """The bytes of an id; raises for an unknown id.

    An unused id, as added tokens may leave, has no bytes: a model may still sample it.
    """
    try:
        if token_id >= 0 and not isinstance(token_id, bool):  # type: ignore[operator]  # also numpy's
            data = tokens[token_id]  # type: ignore[call-overload]
            return b"" if data is None else data
    except (IndexError, TypeError):
        pass
    raise tokenizer._unknown_id(token_id)
