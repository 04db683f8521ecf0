"""Run a model in every mode and compare it with the reference; compare published weights with the published
probabilities."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.choose import load_backend
from glassgpt.backends.protocol import Backend
from glassgpt.config import check_can_continue
from glassgpt.inspect.arrays import log_softmax
from glassgpt.verify.modes import CHECKS, Run, checks_of
from glassgpt.verify.plan import EPS, Plan, backends, computable, devices, plan
from glassgpt.verify.reference import (
    CUDA_LENGTH,
    LENGTH,
    Reference,
    Texts,
    Values,
    is_missing_kernel,
    make_reference,
    plain_pass,
    sample_texts,
)

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Check:
    """One mode of running the model, and where it deviates most from the reference."""

    device: str
    dtype: str
    mode: str
    ok: bool
    deviation: float | None = None  # the largest in proportion to the tolerance there
    tolerance: float | None = None
    place: str = ""  # `h.7.resid_post, position 12`
    same_tokens: int | None = None  # positions at which the most likely next token is the reference's
    n_tokens: int | None = None
    note: str = ""
    backend: str = "torch"


def verify(
    checkpoint: Checkpoint, planned: Sequence[Plan] | None = None, texts: Texts | None = None
) -> Iterator[Check]:
    """Run all checks that are planned, by default all there are; each result as soon as it is known."""
    check_can_continue(checkpoint.config)
    if planned is None:
        planned = computable(checkpoint.config, list(plan(backends(), devices(), list(EPS))))
    if texts is None:
        on_cuda = any(device.startswith("cuda") for _, device, _ in planned)
        texts = sample_texts(checkpoint, CUDA_LENGTH if on_cuda else LENGTH)
    reference = make_reference(checkpoint, texts, list(dict.fromkeys(dtype for _, _, dtype in planned)))
    for backend, device, dtype in planned:
        loaded = load_backend(checkpoint, backend, device=device, dtype=dtype)
        for name in checks_of(backend):
            check = run_check(loaded, device, dtype, name, CHECKS[name], reference)
            yield replace(check, backend=backend)
        del loaded
        gc.collect()  # a captured step and its buffers refer to each other; GPU memory waits for neither


def run_check(backend: Backend, device: str, dtype: str, name: str, run: Run, reference: Reference) -> Check:
    """Run the model in one mode. A device that cannot do it at all is also a result."""
    try:
        # Streams, graphs and kernels go to the current device, which is otherwise the first of several.
        with current_device(device):
            seen = run(backend, reference.texts)
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        if is_missing_kernel(error):
            return Check(device, dtype, name, ok=True, note="torch has no such kernel here")
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        return Check(device, dtype, name, ok=False, note=f"failed: {reason}")
    return compare(device, dtype, name, seen, reference)


def current_device(name: str) -> AbstractContextManager[None]:
    if not name.startswith("cuda"):
        return nullcontext()
    import torch

    return torch.cuda.device(name)


def compare(device: str, dtype: str, mode: str, seen: list[Values], reference: Reference) -> Check:
    """Find the place and position with the largest deviation in proportion to the tolerance there."""
    worst, deviation, tolerance, place = -1.0, 0.0, 0.0, ""
    same = total = 0
    for one, truth in zip(seen, reference.seen, strict=True):
        for name, values in one.items():
            first = len(truth[name]) - values.shape[-2]  # the position of the first row given
            known = truth[name][first:]  # (T, C)
            values = values.reshape(-1, *known.shape)  # (rows, T, C)
            gaps = np.nan_to_num(np.abs(values - known).max(axis=(0, 2)), nan=np.inf)  # (T,)
            if name == "logits":
                agree = (values.argmax(-1) == known.argmax(-1)).all(axis=0)  # (T,)
                same, total = same + int(agree.sum()), total + len(agree)
            limit = reference.tolerance(name, dtype)
            where = int(gaps.argmax())
            gap = float(gaps[where])
            if gap / limit > worst:
                worst, deviation, tolerance = gap / limit, gap, limit
                place = f"{name}, position {first + where}"
    counts = (same, total) if total else (None, None)  # scores have no most likely token
    return Check(device, dtype, mode, worst <= 1, deviation, tolerance, place, *counts)


# What others measured with the published GPT-2 small, after <|endoftext|> alone (GLTR, 2019; five decimals).
KNOWN_ANSWERS = {"\n": 0.0623, "The": 0.0377, '"': 0.02411, "A": 0.0194, "I": 0.01832}
KNOWN_TO = 2e-5  # half of their last digit, and as much for the kernels of 2019


def is_published_small(checkpoint: Checkpoint) -> bool:
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    sizes = (config.n_layer, config.n_embd, config.n_head, config.vocab_size)
    return sizes == (12, 768, 12, 50257) and tokenizer is not None and tokenizer.eot_id is not None


def check_known_answers(checkpoint: Checkpoint) -> Check:
    """The published weights must give the published probabilities."""
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    assert tokenizer.eot_id is not None
    logits = plain_pass(checkpoint, [[tokenizer.eot_id]], "float32")[0]["logits"][-1]  # (V,)
    chances = np.exp(log_softmax(logits))
    gaps = {text: abs(float(chances[tokenizer.encode(text)[0]]) - p) for text, p in KNOWN_ANSWERS.items()}
    text = max(gaps, key=lambda text: gaps[text])
    place = f"probability of {text!r} after <|endoftext|>"
    ok = gaps[text] <= KNOWN_TO
    return Check("cpu", "float32", "known answers (GLTR)", ok, gaps[text], KNOWN_TO, place)
