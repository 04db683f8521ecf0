"""`gpt.embed(texts)`: a vector for each text, from the residual stream after a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.inspect.arrays import to_float64
from glassgpt.inspect.batches.prompts import Prompts
from glassgpt.inspect.forward import make_forward
from glassgpt.inspect.taps import check_index
from glassgpt.progress import Progress, no_progress

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

POOLS = ("mean", "last", "first")


def embed(
    gpt: TraceableModel,
    texts: Any,
    layer: int = -1,
    pool: str = "mean",
    name: str = "texts",
    progress: Progress = no_progress,
) -> np.ndarray:
    """See `GPT.embed`."""
    if pool not in POOLS:
        raise SettingError(f"pool is {pool!r}; use one of {', '.join(POOLS)}.")
    prompts = Prompts(gpt, texts, name)
    forward = make_forward(gpt.model)
    blocks = range(check_index("layer", layer, gpt.config.n_layer) + 1)
    found = np.empty((len(prompts), gpt.config.n_embd), np.float32)
    with progress("embedding texts", len(prompts)) as advance:
        for number, ids in enumerate(prompts.ids):
            start = forward.embed(ids, lambda step, x: x)
            stream = to_float64(forward.blocks(blocks, start, [ids], {})[0])  # (T, C)
            found[number] = {"mean": stream.mean(axis=0), "last": stream[-1], "first": stream[0]}[pool]
            advance(1)
    return found
