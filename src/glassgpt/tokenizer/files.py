"""Tokenizer files: which kind a folder or file holds, and safe writing. Each format has its own module."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, ModelNotFoundError
from glassgpt.tokenizer.base import PathLike, Tokenizer
from glassgpt.tokenizer.bpe import BPETokenizer

LARGEST_FILE = 1 << 25  # bytes; GPT-2's tokenizer.json has 2 MB, the largest published about 30

PAIRS_OF_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def load(path: PathLike) -> Tokenizer:
    """Open a tokenizer from a folder (the first format found in it) or from one file of it."""
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
        f"{path} is no tokenizer file by its name; known are tokenizer.json, vocab.json + merges.txt, "
        "encoder.json + vocab.bpe, and *.tiktoken"
    )


def _find_in(folder: Path) -> Path:
    names = ["tokenizer.json", *(vocab for vocab, _ in PAIRS_OF_FILES)]
    found = [folder / name for name in names if (folder / name).is_file()]
    found += sorted(folder.glob("*.tiktoken"))
    if not found:
        raise ModelNotFoundError(
            f"{folder} holds no tokenizer; it needs tokenizer.json, vocab.json + merges.txt, "
            "encoder.json + vocab.bpe, or a .tiktoken file"
        )
    return found[0]


def read_text(path: Path) -> str:
    """A whole small file as text."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise FileFormatError(
                f"{path} is larger than {LARGEST_FILE >> 20} MiB; that is no tokenizer file"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text (byte {error.start}); fetch it again") from None
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror}); check the file") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"{path}, line {error.lineno} is not JSON: {error.msg}; fetch it again"
        ) from None
    except ValueError as error:  # an integer of thousands of digits
        raise FileFormatError(f"{path} is not JSON that can be read: {error}") from None
    except RecursionError:
        raise FileFormatError(f"{path} is nested too deeply for a tokenizer file") from None
    if not isinstance(data, dict):
        raise FileFormatError(
            f"{path} holds {type(data).__name__}, not a JSON object; it is no tokenizer file"
        )
    return data


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write all files under temporary names, then rename them: a full disk leaves the old ones whole."""
    temporary: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            handle, path = tempfile.mkstemp(".part", f".{name}.", folder)
            temporary[name] = Path(path)
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(path, 0o666 & ~umask)  # mkstemp makes files that only their owner may read
        for name, made in list(temporary.items()):
            os.replace(made, folder / name)
            del temporary[name]
    except OSError as error:
        reason = error.strerror
        raise FileFormatError(
            f"cannot write the tokenizer into {folder} ({reason}); choose another folder"
        ) from None
    finally:
        for made in temporary.values():
            with contextlib.suppress(OSError):
                made.unlink()
