"""A Modelfile, with which Ollama makes a model of a GGUF file: `ollama create NAME -f Modelfile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.errors import SettingError
from glassgpt.files import atomic_write

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint

NAME = "Modelfile"


def check_modelfile(target: Path, format: str, force: bool) -> Path:
    """Where the Modelfile of a GGUF file goes: beside it."""
    if format != "gguf":
        raise SettingError(
            f"a Modelfile is for a .gguf file, and {target} is written as {format}. Name it model.gguf, say."
        )
    place = target.parent / NAME
    if place.exists() and not force:
        raise SettingError(f"{place} exists. Add --force to replace it, or choose another folder.")
    return place


def write_modelfile(checkpoint: Checkpoint, target: Path, place: Path) -> None:
    """A base model continues the prompt as it is; end-of-text ends the text."""
    lines = [f"FROM ./{target.name}", 'TEMPLATE """{{ .Prompt }}"""']
    lines.append(f"PARAMETER num_ctx {checkpoint.config.n_positions}")
    tokenizer = checkpoint.tokenizer
    if tokenizer is not None and tokenizer.eot_id is not None:
        lines.append(f"PARAMETER stop {json.dumps(tokenizer.decode([tokenizer.eot_id]))}")
    with atomic_write(place) as part:
        part.write_text("\n".join(lines) + "\n", "utf-8")
