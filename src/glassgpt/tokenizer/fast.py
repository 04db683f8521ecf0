"""The fast implementation: fastokens, a compiled library, with the same ids as bpe.py.

Chosen over gigatoken (faster still, but its cache grows without bound and its Unicode tables are older) and
over tiktoken and tokenizers (far slower); measurements in docs/tokenizer.md.
"""

from __future__ import annotations

import json
import warnings
from types import ModuleType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from glassgpt.tokenizer.bpe import BPEVocabulary
from glassgpt.tokenizer.gpt2_files import visible_merges
from glassgpt.tokenizer.pre_tokenizer import (
    bytes_in_id_order,
    replace_surrogates,
    split_into_pieces,
    to_visible,
)
from glassgpt.tokenizer.tokenizer_json import layout

# Characters at a time: fastokens is twice as fast on pieces of this size as on one text of megabytes.
PIECE = 20_000

# Every alternative of the pattern, several scripts, an incomplete contraction, runs of spaces.
SAMPLE = (
    "It's 1984: the naïve café's 日本語 42%...\n\n\tdon't  shout   ÅÄÖ! 🙂🙂 '' x²³\u3000z <|endoftext|> "
)


class ReadableTokenizer(Protocol):
    """What the engine is compared with."""

    data: BPEVocabulary

    def encode_readable(self, text: str, allow_special: bool = False) -> list[int]: ...


class FastEngine:
    """Encodes ordinary text; special and added tokens are found before it is called."""

    def __init__(self, vocabulary: BPEVocabulary, library: ModuleType) -> None:
        # fastokens needs contiguous ids: it gets its own, in the order of the merges, which for GPT-2's
        # vocabulary and for those trained here are the real ones.
        byte_ids = vocabulary.byte_ids
        first = [byte_ids[byte] for byte in bytes_in_id_order()]
        real_ids = list(dict.fromkeys([*first, *vocabulary.merged]))
        self._real_ids = (
            None if real_ids == list(range(len(real_ids))) else np.array(real_ids, dtype=np.uint32)
        )
        tokens = {to_visible(vocabulary.tokens[real] or b""): i for i, real in enumerate(real_ids)}
        data = layout(tokens, visible_merges(vocabulary), [])
        self._native = library.Tokenizer.from_json_str(json.dumps(data, ensure_ascii=False))

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        if self._real_ids is not None:
            mapped: list[int] = self.encode_array(text).tolist()
            return mapped
        ids: list[int] = []
        for piece in split_into_pieces(text, PIECE):
            try:
                ids += self._native.encode(piece).ids
            except UnicodeEncodeError:  # a lone surrogate; checking beforehand would cost 10%
                ids += self._native.encode(replace_surrogates(piece)).ids
        return ids

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids as an array, without a Python int for each."""
        pieces = []
        for piece in split_into_pieces(text, PIECE):
            try:
                data, _ = self._native.encode_batch_flat([piece])
            except UnicodeEncodeError:
                data, _ = self._native.encode_batch_flat([replace_surrogates(piece)])
            pieces.append(np.frombuffer(data, dtype="<u4"))
        ids = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return ids if self._real_ids is None else self._real_ids[ids]


def build_fast_engine(tokenizer: ReadableTokenizer) -> FastEngine | None:
    """An engine for this vocabulary, or None where fastokens is not installed.

    An engine that gives other ids than the readable implementation, say after an update, is not used.
    """
    try:
        import fastokens  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        engine = FastEngine(tokenizer.data, fastokens)
        agrees = engine.encode(SAMPLE) == tokenizer.encode_readable(SAMPLE)
    except Exception as error:  # a compiled library may raise anything
        warnings.warn(f"the fast tokenizer engine fails ({error}); the readable one is used", stacklevel=2)
        return None
    if not agrees:
        warnings.warn(
            "the fast tokenizer engine disagrees with the readable one, which is used", stacklevel=2
        )
        return None
    return engine
