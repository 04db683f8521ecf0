"""Adapters with random factors, large enough to change every text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from glassgpt.weights.peft import save_peft
from glassgpt.weights.registry import load_config


def write_adapter(folder: Path, base: str, seed: int = 0, rank: int = 4) -> Path:
    """A PEFT folder with low-rank changes to every matrix of the blocks of a model."""
    draw = np.random.default_rng(seed)
    changes = {}
    for name, shape in load_config(base).shapes().items():
        if name.startswith("h.") and len(shape) == 2:
            changes[f"{name}.lora_A"] = draw.normal(0, shape[0] ** -0.5, (shape[0], rank)).astype(np.float32)
            changes[f"{name}.lora_B"] = draw.normal(0, 0.05, (rank, shape[1])).astype(np.float32)
    save_peft(changes, base, folder)
    return folder
