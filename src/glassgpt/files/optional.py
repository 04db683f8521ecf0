"""Packages that only some files need."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from glassgpt.errors import UserError


def import_package(name: str, path: Path) -> Any:
    """Import an optional package that only some files need."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{path} needs {name}, which is not installed. Type: pip install {name}") from None
