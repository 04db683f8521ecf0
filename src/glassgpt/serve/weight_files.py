"""The files that a model's weights are mapped from. If one is written over, the model changes.

A file that is replaced (written elsewhere and renamed) is harmless: the mapped one stays as it was. One that
is written in place, or truncated, is not: answers would be garbage.
"""

from __future__ import annotations

import os
from pathlib import Path

SUFFIXES = (".safetensors", ".gguf", ".bin")


class WeightFiles:
    """Their state when the model was loaded."""

    def __init__(self, path: Path) -> None:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        self._found = {
            file: file.stat()
            for file in files
            if file.is_file() and (file == path or file.suffix in SUFFIXES)
        }

    def find_changed(self) -> Path | None:
        """A file that was written in place since then."""
        return next((file for file, before in self._found.items() if is_rewritten(file, before)), None)


def is_rewritten(file: Path, before: os.stat_result) -> bool:
    try:
        now = os.stat(file)
    except OSError:  # removed: who has it mapped keeps it
        return False
    same_file = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    return same_file and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
