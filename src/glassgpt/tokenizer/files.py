"""Loading a tokenizer from a folder or a file: finds the format. Each format has its own module."""

from __future__ import annotations

from pathlib import Path

from glassgpt.errors import FileFormatError, ModelNotFoundError
from glassgpt.tokenizer.base import PathLike, Tokenizer
from glassgpt.tokenizer.bpe import BPETokenizer

LARGEST_FILE = 1 << 25  # bytes; GPT-2's tokenizer.json has 2 MB, the largest published about 30

PAIRS_OF_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def load(path: PathLike) -> Tokenizer:
    """Load a tokenizer from a folder (the first format found) or one of its files."""
    from glassgpt.tokenizer import gpt2_files, tiktoken_files, tokenizer_json

    path = Path(path)
    if not path.exists():
        raise ModelNotFoundError(
            f"{path} does not exist; give a folder with tokenizer.json or vocab.json and merges.txt"
        )
    if path.is_dir():
        path = _find_in(path)
    if path.suffix == ".tiktoken":
        return BPETokenizer(tiktoken_files.read(path))
    for names in PAIRS_OF_FILES:
        if path.name in names:
            vocab, merges = (path.parent / name for name in names)
            for missing in (vocab, merges):
                if not missing.is_file():
                    raise FileFormatError(f"{path} needs {missing.name} beside it; put both into one folder")
            return BPETokenizer(gpt2_files.read(vocab, merges))
    if path.suffix == ".json":
        return tokenizer_json.read(path)
    raise FileFormatError(
        f"{path} is not a known tokenizer file; known are tokenizer.json, vocab.json + merges.txt, "
        "encoder.json + vocab.bpe, and *.tiktoken"
    )


def _find_in(folder: Path) -> Path:
    names = ["tokenizer.json", *(vocab for vocab, _ in PAIRS_OF_FILES)]
    candidates = [folder / name for name in names if (folder / name).is_file()]
    candidates += sorted(folder.glob("*.tiktoken"))
    if not candidates:
        raise ModelNotFoundError(
            f"{folder} contains no tokenizer; it needs tokenizer.json, vocab.json + merges.txt, "
            "encoder.json + vocab.bpe, or a .tiktoken file"
        )
    return candidates[0]
