"""What the scripts of this folder share: a timed training run, held-out rows of text, saved results."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import open_splits
from glassgpt.train.loop import train_loop
from glassgpt.train.settings import TrainSettings
from glassgpt.train.variants.segments import SegmentLoader

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def save(results: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def vocab_size(data: Path) -> int:
    size: int = json.loads((data / "shards.json").read_text("utf-8"))["tokenizer"]["vocab_size"]
    return size


def held_out_rows(data: Path, rows: int, length: int) -> Tensor:
    """Rows of consecutive held-out tokens (rows, length + 1), evenly spread."""
    _, val = open_splits(str(data))
    starts = np.linspace(0, len(val) - length - 1, rows).astype(int)
    return torch.stack([torch.from_numpy(val.read(int(s), length + 1).astype(np.int64)) for s in starts]).to(
        DEVICE
    )


def train(
    config: Config, data: Path, settings: TrainSettings, seconds: float | None = None
) -> tuple[GPT2, list[dict[str, Any]]]:
    """A model and its records. With `seconds`, twenty steps are timed first, and as many done as fit."""
    shards, _ = open_splits(str(data))
    segments = config.attention == "memory"
    loader = (SegmentLoader if segments else Loader)(
        shards, settings.context, settings.batch_size, settings.seed
    )

    def run(settings: TrainSettings) -> tuple[GPT2, list[dict[str, Any]]]:
        torch.manual_seed(settings.seed)
        model = GPT2(config).to(DEVICE)
        with tempfile.TemporaryDirectory() as out:
            stream = loader.prefetch(0, device=DEVICE)
            with closing(stream):
                records = train_loop(
                    model, lambda step: stream, [loader.batch(0)], Path(out), settings,
                    restarts=loader.restarts if isinstance(loader, SegmentLoader) else None,
                )  # fmt: skip
                return model, list(timed(records))

    if seconds is None:
        return run(settings)
    _, trial = run(replace(settings, steps=20))
    each = (trial[-1]["seconds"] - trial[9]["seconds"]) / 10
    return run(replace(settings, steps=max(20, int(seconds / each))))


def replace(settings: TrainSettings, **changes: Any) -> TrainSettings:
    return TrainSettings(**{**settings.to_dict(), **changes})


def timed(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    started = time.perf_counter()
    for record in records:
        yield {"step": record["step"], "loss": record["loss"], "seconds": time.perf_counter() - started}
