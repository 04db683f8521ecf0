"""compare.py for two models in torch: the head's logits are never held for more than a chunk of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.backends.torch.scoring import batch_limits
from glassgpt.backends.torch.scoring_batches import pack_texts, scored_hidden
from glassgpt.backends.torch.threads import map_over_threads
from glassgpt.evaluate.compare import Agreements
from glassgpt.inspect.divergence import kl_divergence
from glassgpt.model import GPT2


def torch_agreements(a: TorchBackend, b: TorchBackend, windows: Sequence[ScoreRequest]) -> Agreements:
    """On a CPU each thread compares one window at a time."""
    chunk = batch_limits(a.model).chunk
    if all(backend.device.type == "cpu" for backend in (a, b)):
        return map_over_threads(lambda window: _agree(a.model, b.model, window, chunk), windows)
    return ((window, _agree(a.model, b.model, window, chunk)) for window in windows)


@torch.inference_mode()
def _agree(a: GPT2, b: GPT2, window: ScoreRequest, chunk: int) -> tuple[float, float]:
    packed = pack_texts([window])
    x, y = scored_hidden(a, packed), scored_hidden(b, packed)  # (N, C) each
    divergence = same = 0.0
    for start in range(0, len(x), chunk):
        rows = slice(start, start + chunk)
        p = a.head(x[rows]).float().log_softmax(dim=-1)  # (chunk, V)
        q = b.head(y[rows]).float().to(p.device).log_softmax(dim=-1)
        divergence += float(kl_divergence(p, q).cpu().sum(dtype=torch.float64))
        same += float((p.argmax(dim=-1) == q.argmax(dim=-1)).sum())
    return divergence, same
