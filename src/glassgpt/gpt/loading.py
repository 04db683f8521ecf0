"""`glassgpt.load`: a name or a path to a model with its tokenizer."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassgpt.backends.choose import check_backend, load_backend
from glassgpt.backends.torch.openmp import shorten_spin_wait
from glassgpt.gpt.gpt import GPT
from glassgpt.progress import Progress, no_progress


def load(
    name_or_path: str | Path = "default",
    *,
    device: str | None = None,
    dtype: str | None = None,
    backend: str | None = None,
    draft: str | Path | None = None,
    cache_dtype: str | None = None,
    progress: Progress = no_progress,
) -> GPT:
    """Open a model: a shipped one by name, a published one from the hub, a folder or a file.

    `device` and `dtype` default to the best of this machine; `backend` is a name in
    `backends.choose.BACKENDS`. `draft` is a smaller model with the same vocabulary, which guesses ahead
    (`tiny` for `default`). `cache_dtype` int8 halves the native engine's KV cache, which is float16 with int8
    weights.
    """
    if backend is not None:
        check_backend(backend)
    from glassgpt.weights import load_checkpoint

    shorten_spin_wait()
    with _no_garbage_collection():
        checkpoint = load_checkpoint(str(name_or_path), progress=progress)
        for remark in checkpoint.remarks:
            warnings.warn(remark, stacklevel=2)
        loaded = load_backend(checkpoint, backend, device=device, dtype=dtype, cache_dtype=cache_dtype)
        again = None if hasattr(loaded, "model") else checkpoint  # read again for a trace
        task, score = checkpoint.task, checkpoint.score
        gpt = GPT(loaded, checkpoint.tokenizer, str(name_or_path), again, task=task, classifier=score)
        if draft is not None:
            other = load_checkpoint(str(draft), progress=progress)
            gpt.use_draft(load_backend(other, backend, device=device, dtype=dtype), other.tokenizer)
        return gpt


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while loading, which makes no garbage: each pass walks all of torch.

    Loading 47 million parameters takes 0.31 s this way, 0.42 s without.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
