"""Tokenizers without merges, for character-level models: one id per character, or one per byte.

Their tokenizer.json is Hugging Face's format, a BPE without merges, so that transformers opens the folder and
finds the same ids. (A character that is not in the vocabulary is an error here; transformers leaves it out.)

Al-Rfou et al. (2018), "Character-Level Language Modeling with Deeper Self-Attention", train on bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassgpt.errors import FileFormatError, SettingError, short_repr
from glassgpt.tokenizer.base import PathLike, Tokenizer, lookup_token
from glassgpt.tokenizer.pre_tokenizer import END_OF_TEXT, replace_surrogates, unicode_to_bytes

OUR_KEY = "glassgpt_tokenizer"


class ByteTokenizer(Tokenizer):
    """The ids are the UTF-8 bytes themselves; 256 is `<|endoftext|>`."""

    kind: ClassVar[str] = "byte"

    def __init__(self) -> None:
        self.eot_id: int = 256
        self._tokens = [*(bytes([byte]) for byte in range(256)), END_OF_TEXT.encode()]

    @classmethod
    def train(
        cls, files: Iterable[PathLike] | PathLike = (), vocab_size: int = 257, **options: Any
    ) -> ByteTokenizer:
        """Return a tokenizer. Bytes need no training, but the other kinds have this method."""
        _check_no_options(options)
        return cls()

    @property
    def vocab_size(self) -> int:
        return 257

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        text = replace_surrogates(text)
        first, *rest = text.split(END_OF_TEXT) if allow_special else [text]
        ids = list(first.encode("utf-8"))
        for piece in rest:
            ids.append(self.eot_id)
            ids.extend(piece.encode("utf-8"))
        return ids

    def encode_array(self, text: str, allow_special: bool = False) -> npt.NDArray[np.uint32]:
        if allow_special:
            return super().encode_array(text, allow_special)
        return np.frombuffer(replace_surrogates(text).encode("utf-8"), np.uint8).astype(np.uint32)

    def token_bytes(self, token_id: int) -> bytes:
        return lookup_token(self, token_id, self._tokens)

    def files(self) -> dict[str, str]:
        whole_bytes = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        return _write({**unicode_to_bytes(), END_OF_TEXT: self.eot_id}, whole_bytes, whole_bytes)

    def vocabulary(self) -> object:
        return END_OF_TEXT


class CharTokenizer(Tokenizer):
    """One id per character of a fixed set, in code point order; the last id is `<|endoftext|>`."""

    kind: ClassVar[str] = "char"

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(set(characters)))
        self.eot_id: int = len(self.characters)
        self._ids = {char: i for i, char in enumerate(self.characters)}
        self._tokens = [*(char.encode("utf-8") for char in self.characters), END_OF_TEXT.encode()]

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """A tokenizer for the characters of this text."""
        return cls(replace_surrogates(text))

    @classmethod
    def train(
        cls, files: Iterable[PathLike] | PathLike, vocab_size: int | None = None, **options: Any
    ) -> CharTokenizer:
        """A tokenizer for all characters of these files; an error if there are more than `vocab_size` - 1."""
        from glassgpt.tokenizer.text_chunks import checked_files, read_chunks

        _check_no_options(options)
        characters: set[str] = set()
        for text in read_chunks(checked_files(files)):
            characters.update(text)
        if vocab_size is not None and len(characters) >= vocab_size:
            raise SettingError(
                f"the files have {len(characters)} characters, too many for vocab_size {vocab_size}; "
                f"give {len(characters) + 1}"
            )
        return cls(characters)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        text = replace_surrogates(text)
        first, *rest = text.split(END_OF_TEXT) if allow_special else [text]
        try:
            ids = [self._ids[char] for char in first]
            for piece in rest:
                ids.append(self.eot_id)
                ids.extend([self._ids[char] for char in piece])
        except KeyError as error:
            raise SettingError(
                f"{error.args[0]!r} is not among the {len(self.characters)} characters of this vocabulary; "
                "remove it, or train on text that contains it"
            ) from None
        return ids

    def encode_array(self, text: str, allow_special: bool = False) -> npt.NDArray[np.uint32]:
        """By binary search in the sorted characters: twice as fast as one by one, without a list of ids."""
        if allow_special:
            return super().encode_array(text, allow_special)
        known = np.frombuffer(self.characters.encode("utf-32-le"), np.uint32)
        wanted = np.frombuffer(replace_surrogates(text).encode("utf-32-le"), np.uint32)
        ids = np.searchsorted(known, wanted).astype(np.uint32)
        if len(wanted) and not (len(known) and (known[ids.clip(max=len(known) - 1)] == wanted).all()):
            self.encode(text)  # raises for the unknown character
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return lookup_token(self, token_id, self._tokens)

    def files(self) -> dict[str, str]:
        return _write({**self._ids, END_OF_TEXT: self.eot_id}, None, {"type": "Fuse"})

    def vocabulary(self) -> object:
        return self.characters


def _check_no_options(options: dict[str, Any]) -> None:
    if options:
        raise SettingError(f"{', '.join(options)}: unknown option for this kind of tokenizer")


def _write(vocab: dict[str, int], pre_tokenizer: object, decoder: object) -> dict[str, str]:
    """tokenizer.json and tokenizer_config.json, as transformers reads them."""
    from glassgpt.tokenizer.tokenizer_json import layout

    content = {
        **layout(vocab, [], [(END_OF_TEXT, vocab[END_OF_TEXT], True)]),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
    }  # fmt: skip
    return {
        "tokenizer.json": json.dumps(content, ensure_ascii=False) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


def detect_char_level(data: dict[str, Any]) -> Tokenizer | None:
    """The byte or character tokenizer of this tokenizer.json; None if it is of another kind."""
    model = data.get("model")
    if not isinstance(model, dict) or model.get("merges") != [] or not isinstance(model.get("vocab"), dict):
        return None
    names = list(model["vocab"])
    characters = names[:-1]
    if all(len(name) == 1 and not "\ud800" <= name <= "\udfff" for name in characters):
        for tokenizer in (ByteTokenizer(), CharTokenizer(characters)):
            expected: dict[str, Any] = json.loads(tokenizer.files()["tokenizer.json"])
            if all(data.get(key) == value for key, value in expected.items()):
                return tokenizer
    return None


def read_char_level(path: Path, data: dict[str, Any]) -> Tokenizer:
    """A byte or character tokenizer from the small JSON that version 0.1 wrote."""
    kind = data[OUR_KEY]
    if kind == ByteTokenizer.kind:
        return ByteTokenizer()
    if kind == CharTokenizer.kind:
        characters = data.get("characters")
        if not isinstance(characters, str) or "".join(sorted(set(characters))) != characters:
            raise FileFormatError(
                f"{path}: characters must be a string of different characters in code point order"
            )
        return CharTokenizer(replace_surrogates(characters))
    raise FileFormatError(
        f"{path}: {OUR_KEY} is {short_repr(kind)}; known are 'byte', 'char', 'performance' and 'chorale'"
    )
