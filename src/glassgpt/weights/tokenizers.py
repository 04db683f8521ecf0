"""The tokenizer next to a weight file, if there is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.errors import FileFormatError

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# Any of these sets of files is a tokenizer; `glassgpt.tokenizer` decides which one it reads.
_FILE_SETS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


# Files of other kinds of tokenizers: with only one of these, the model takes token ids.
_OTHER_KINDS = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json")


def find_tokenizer(folder: str | Path) -> tuple[Tokenizer | None, dict[str, str]]:
    """The tokenizer in the folder, or None, with a note if there is one that cannot be read.

    Weights are usable without it, on token ids, so an unsupported or damaged tokenizer is not an error.
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
