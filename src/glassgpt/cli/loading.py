"""A model for a command: the facade's `load`, with a sign of life while it takes its time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import glassgpt
from glassgpt.cli import terminal

if TYPE_CHECKING:
    from glassgpt.gpt import GPT


def load(model: str, device: str | None, dtype: str | None) -> GPT:
    from glassgpt.weights import shipped_names

    local = model in shipped_names() or Path(model).exists()
    # A model that may have to be fetched draws a progress bar of its own.
    with terminal.waiting(f"loading {model}") if local else contextlib.nullcontext():
        return glassgpt.load(model, device=device, dtype=dtype)
