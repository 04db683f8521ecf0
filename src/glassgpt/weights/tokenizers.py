"""The tokenizer that lies beside a weight file, if one does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.errors import FileFormatError

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# Any one of these sets of files is a tokenizer; the tokenizer room decides which of them it reads.
_FILE_SETS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


# What other tokenizers leave beside weights: with one of these alone, the model takes ids.
_OTHER_KINDS = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json")


def tokenizer_beside(folder: str | Path) -> tuple[Tokenizer | None, dict[str, str]]:
    """The tokenizer in the folder, or None, and then a note why if there was one that cannot be read.

    Weights are of use without it, on token ids; so a tokenizer of another kind, or a broken one, is no error.
    """
    folder = Path(folder)
    if not any(all((folder / name).is_file() for name in names) for names in _FILE_SETS):
        others = [name for name in _OTHER_KINDS if (folder / name).is_file()]
        return None, {"tokenizer": f"{others[0]} is not of a byte-level BPE"} if others else {}
    from glassgpt.tokenizer import Tokenizer

    try:
        return Tokenizer.load(folder), {}
    except FileFormatError as error:
        return None, {"tokenizer": str(error)}
