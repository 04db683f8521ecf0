"""The fast engine: fastokens, compiled, with the same ids as the readable way.

Chosen over gigatoken (faster still, but its cache grows without bound and its Unicode tables are older) and
over tiktoken and tokenizers (far slower); figures in docs/tokenizer.md.
"""

from __future__ import annotations

import json
import warnings
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from glassgpt.tokenizer.bpe import Vocabulary
from glassgpt.tokenizer.tokenizer_json import content

# Every alternative of the pattern, several scripts, an unfinished contraction, runs of blanks.
SAMPLE = (
    "It's 1984: the naïve café's 日本語 42%...\n\n\tdon't  shout   ÅÄÖ! 🙂🙂 '' x²³\u3000z <|endoftext|> "
)


class Readable(Protocol):
    """What the engine is checked against."""

    data: Vocabulary

    def encode_readable(self, text: str, allow_special: bool = False) -> list[int]: ...


class FastEngine:
    """Encodes ordinary text; special and added tokens are found before it is called."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = self._native.encode(text).ids
        return ids

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids as an array, without making a Python int of each."""
        ids, _ = self._native.encode_batch_flat([text])
        return np.frombuffer(ids, dtype="<u4")


def fast_engine(tokenizer: Readable) -> FastEngine | None:
    """An engine for this vocabulary, or None where fastokens is not installed.

    An engine that disagrees with the readable way, say after an update, is not used: wrong ids would make
    wrong text everywhere after.
    """
    try:
        import fastokens  # type: ignore[import-untyped]
    except ImportError:
        return None
    data = content(tokenizer.data)
    data["added_tokens"] = []
    for name in (*tokenizer.data.special, *tokenizer.data.added):
        data["model"]["vocab"].pop(name, None)
    try:
        engine = FastEngine(fastokens.Tokenizer.from_json_str(json.dumps(data, ensure_ascii=False)))
        agrees = engine.encode(SAMPLE) == tokenizer.encode_readable(SAMPLE)
    except Exception as error:  # whatever a compiled library may raise: the readable way is there
        warnings.warn(f"the fast tokenizer engine fails ({error}); the readable one is used", stacklevel=2)
        return None
    if not agrees:
        warnings.warn(
            "the fast tokenizer engine disagrees with the readable one, which is used", stacklevel=2
        )
        return None
    return engine
