"""How fast a model is on this machine, beside what the machine allows and beside transformers.

A step that gives one text its next token reads every weight once, so no CPU can be faster than its memory:
bandwidth divided by the bytes of the weights. Many texts at once and prompts share that reading, and are
limited by arithmetic instead: products of bytes where the native engine has int8 or int4 weights.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from glassgpt.progress import Progress, no_progress

PROMPT, NEW_TOKENS, BATCH_SIZE = 32, 128, 16
ROUNDS = 3  # of which the median counts
MATRIX_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Speed:
    name: str
    tokens_per_s: float  # the median
    spread: tuple[float, float]
    limit: float | None = None  # what the machine allows, where that is known
    limited_by: str | None = None  # "memory" or "int8 arithmetic"


def measure_speed(
    gpt: GPT, *, with_transformers: bool = False, progress: Progress = no_progress
) -> list[Speed]:
    """Single text, a batch, a prompt: tokens per second of each, measured in turns."""
    ways = _ways(gpt)
    if with_transformers:
        ways |= _transformers_ways(gpt)
    seen: dict[str, list[float]] = {name: [] for name in ways}
    with progress("measuring", len(ways) * (ROUNDS + 1)) as advance:
        for number in range(ROUNDS + 1):  # the first only warms up
            for name, run in ways.items():
                begun = time.perf_counter()
                tokens = run()
                if number:
                    seen[name].append(tokens / (time.perf_counter() - begun))
                advance(1)
    limits = machine_limits(gpt)
    return [
        Speed(name, float(np.median(rates)), (min(rates), max(rates)), *limits.get(name, (None, None)))
        for name, rates in seen.items()
    ]


def _ways(gpt: GPT) -> dict[str, Callable[[], int]]:
    """Names and runs; each run returns how many tokens it made or read."""
    context = gpt.backend.context
    start, new = min(PROMPT, context // 4), min(NEW_TOKENS, context - context // 4)
    texts = np.random.default_rng(0).integers(0, gpt.config.vocab_size, (BATCH_SIZE, context - 1)).tolist()

    def generate(count: int) -> int:
        made = gpt.generate(
            [text[:start] for text in texts[:count]],
            max_new_tokens=new, temperature=0, ignore_eot=True, speculate="off",
        )  # fmt: skip
        return sum(len(each.tokens) for each in made)

    def read() -> int:
        gpt.next_ids(texts[0], k=1)
        return len(texts[0])

    one, batch, prompt = _names(gpt)
    return {one: lambda: generate(1), batch: lambda: generate(BATCH_SIZE), prompt: read}


def _names(gpt: GPT) -> tuple[str, str, str]:
    return (
        "one text",
        f"{BATCH_SIZE} texts at once",
        f"reading a prompt of {gpt.backend.context - 1:,} tokens",
    )


def _transformers_ways(gpt: GPT) -> dict[str, Callable[[], int]]:
    """The same for transformers, with the same weights in float32."""
    if find_spec("transformers") is None or find_spec("torch") is None:
        raise UserError("comparing with transformers needs it: pip install transformers torch")
    import torch
    from transformers import GPT2LMHeadModel

    from glassgpt.weights import load_checkpoint, save_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(load_checkpoint(gpt.name), Path(folder) / "model", "hf", "float32")
        model: Any = GPT2LMHeadModel.from_pretrained(Path(folder) / "model")  # in evaluation mode
    context = gpt.backend.context
    start, new = min(PROMPT, context // 4), min(NEW_TOKENS, context - context // 4)
    texts = torch.randint(0, gpt.config.vocab_size, (BATCH_SIZE, context - 1))

    def generate(count: int) -> int:
        ids = texts[:count, :start]
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=new,
            max_new_tokens=new, pad_token_id=0,
        )  # fmt: skip
        return int(made[:, start:].numel())

    def read() -> int:
        with torch.inference_mode():
            model(texts[:1])
        return int(texts.shape[1])

    one, batch, prompt = (f"transformers: {name}" for name in _names(gpt))
    return {one: lambda: generate(1), batch: lambda: generate(BATCH_SIZE), prompt: read}


def machine_limits(gpt: GPT) -> dict[str, tuple[float, str]]:
    """Tokens per second that this machine allows at most, and by what it is limited. Nothing on a GPU."""
    config, backend = gpt.config, gpt.backend
    dtype = str(getattr(backend, "dtype", "")).removeprefix("torch.")
    if dtype not in MATRIX_BYTES or not str(getattr(backend, "device", "cpu")).startswith("cpu"):
        return {}
    head, cache = (
        config.vocab_size * config.n_embd,
        4 * config.n_layer * config.n_embd,
    )  # cache: each position
    products = config.n_parameters - config.n_positions * config.n_embd  # of positions, one row is added
    weights = getattr(backend, "weights", None)
    if not hasattr(weights, "machine_limits"):  # torch computes with floats, whose peak is not measured
        return {"one text": (read_bandwidth() / (products * MATRIX_BYTES[dtype]), "memory")}
    bandwidth, peak = weights.machine_limits()
    by_memory = bandwidth / weights.n_bytes
    one, batch, prompt = _names(gpt)
    limits = {one: (by_memory, "memory")}
    if dtype in ("int8", "int4"):
        context, start = backend.context, min(PROMPT, backend.context // 4)
        writing = 2 * products + cache * (start + min(NEW_TOKENS, context - context // 4) / 2)
        reading = 2 * (products - head) + cache * context / 2  # the head only for the last token
        limits[batch] = _nearer(BATCH_SIZE * by_memory, peak / writing)
        limits[prompt] = _nearer((context - 1) * by_memory, peak / reading)
    return limits


def _nearer(by_memory: float, by_arithmetic: float) -> tuple[float, str]:
    return (by_memory, "memory") if by_memory < by_arithmetic else (by_arithmetic, "int8 arithmetic")


def read_bandwidth(n_bytes: int = 2**28) -> float:
    """Bytes per second that all cores together read from memory: the best of five dot products."""
    values = np.ones(n_bytes // 4, np.float32)
    best = np.inf
    for _ in range(5):
        begun = time.perf_counter()
        np.dot(values, values)
        best = min(best, time.perf_counter() - begun)
    return n_bytes / best
