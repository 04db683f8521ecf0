"""The tokenizer that lies beside a weight file, if one does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# Any one of these sets of files is a tokenizer; the tokenizer room decides which of them it reads.
_FILE_SETS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def tokenizer_beside(folder: str | Path) -> Tokenizer | None:
    """The tokenizer in the folder, or None where it holds none."""
    folder = Path(folder)
    if not any(all((folder / name).is_file() for name in names) for names in _FILE_SETS):
        return None
    from glassgpt.tokenizer import Tokenizer

    return Tokenizer.load(folder)
