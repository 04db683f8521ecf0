"""The files that a model's weights are mapped from. If one is overwritten, the model changes.

A file that is replaced (written elsewhere and renamed) is harmless: the mapped one stays as it was. One that
is written in place, or truncated, is not: answers would be garbage.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path

SUFFIXES = (".safetensors", ".gguf", ".bin")


class WeightFiles:
    """Their state when the model was loaded. They stay open, so renaming or deleting them does not matter."""

    def __init__(self, path: Path) -> None:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        self._files: list[tuple[Path, int, tuple[int, int]]] = []  # with a descriptor
        for file in files:
            if file.is_file() and (file == path or file.suffix in SUFFIXES):
                descriptor = os.open(file, os.O_RDONLY)
                weakref.finalize(self, os.close, descriptor)
                self._files.append((file, descriptor, size_and_time(descriptor)))

    def find_changed(self) -> Path | None:
        """A file that was written in place since then."""
        return next((file for file, now, before in self._files if size_and_time(now) != before), None)


def hash_files(folder: Path) -> str:
    """Identifies a small folder, an adapter's, by the bytes of its files."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (*SUFFIXES, ".json"):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def size_and_time(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
