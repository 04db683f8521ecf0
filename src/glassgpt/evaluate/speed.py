"""How fast a model is on this machine, compared with what the machine allows and with peers (speed_peers.py).

A step that gives one text its next token reads every weight once, so no CPU can be faster than its memory:
bandwidth divided by the bytes of the weights. A batch of texts, or a prompt, reads them once for many
tokens and is limited by arithmetic instead: products of bytes where the native engine has int8 or int4
weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassgpt.gpt import GPT
from glassgpt.progress import Progress, no_progress

PROMPT, NEW_TOKENS, BATCH_SIZE = 32, 128, 16
ROUNDS = 3  # the median is reported
MATRIX_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Speed:
    name: str
    tokens_per_s: float  # the median
    spread: tuple[float, float]
    limit: float | None = None  # the machine's, where it is known
    limited_by: str | None = None  # "memory" or "int8 arithmetic"


@dataclass(frozen=True)
class Workload:
    """The same for all contestants: random texts, the length of a prompt, the number of tokens to write."""

    texts: list[list[int]]  # (BATCH_SIZE, context - 1)
    start: int
    new: int

    @classmethod
    def of(cls, gpt: GPT) -> Workload:
        context, draw = gpt.backend.context, np.random.default_rng(0)
        texts = draw.integers(0, gpt.config.vocab_size, (BATCH_SIZE, context - 1)).tolist()
        return cls(texts, min(PROMPT, context // 4), min(NEW_TOKENS, context - context // 4))

    def prompts(self, count: int) -> list[list[int]]:
        return [text[: self.start] for text in self.texts[:count]]

    @property
    def names(self) -> tuple[str, str, str]:
        read = f"reading a prompt of {len(self.texts[0]):,} tokens"
        return "one text", f"{BATCH_SIZE} texts at once", read


def measure_speed(gpt: GPT, *, peers: Iterable[str] = (), progress: Progress = no_progress) -> list[Speed]:
    """Single text, a batch, a prompt: tokens per second of each, measured in turns; `peers` are names of
    `speed_peers.PEERS`, which run the same weights."""
    from glassgpt.evaluate.speed_peers import PEERS

    load = Workload.of(gpt)
    ways = _ways(gpt, load)
    for peer in peers:
        ways |= {f"{peer}: {name}": run for name, run in PEERS[peer](gpt, load).items()}
    seen: dict[str, list[float]] = {name: [] for name in ways}
    with progress("measuring", len(ways) * (ROUNDS + 1)) as advance:
        for number in range(ROUNDS + 1):  # the first only warms up
            for name, run in ways.items():
                begun = time.perf_counter()
                tokens = run()
                if number:
                    seen[name].append(tokens / (time.perf_counter() - begun))
                advance(1)
    limits = machine_limits(gpt, load)
    return [
        Speed(name, float(np.median(rates)), (min(rates), max(rates)), *limits.get(name, (None, None)))
        for name, rates in seen.items()
    ]


def _ways(gpt: GPT, load: Workload) -> dict[str, Callable[[], int]]:
    """Names and runs; each run returns the number of tokens it wrote or read."""

    def generate(count: int) -> int:
        generations = gpt.generate(
            load.prompts(count), max_new_tokens=load.new, temperature=0, ignore_eot=True, speculate="off"
        )
        return sum(len(generation.tokens) for generation in generations)

    def read() -> int:
        gpt.next_ids(load.texts[0], k=1)
        return len(load.texts[0])

    single, batch, prompt = load.names
    return {single: lambda: generate(1), batch: lambda: generate(BATCH_SIZE), prompt: read}


def machine_limits(gpt: GPT, load: Workload) -> dict[str, tuple[float, str]]:
    """The most tokens per second that this machine allows, and what limits it. Empty on a GPU."""
    config, backend = gpt.config, gpt.backend
    dtype = str(getattr(backend, "dtype", "")).removeprefix("torch.")
    if dtype not in MATRIX_BYTES or not str(getattr(backend, "device", "cpu")).startswith("cpu"):
        return {}
    single, batch, prompt = load.names
    head = config.vocab_size * config.n_embd
    cache = 4 * config.n_layer * config.n_embd  # operations for each position attended to
    products = config.n_parameters - config.n_positions * config.n_embd  # all but the position embeddings
    weights: Any = getattr(backend, "weights", None)
    if not hasattr(weights, "machine_limits"):  # torch computes with floats, whose peak is not measured
        return {single: (read_bandwidth() / (products * MATRIX_BYTES[dtype]), "memory")}
    bandwidth, peak = weights.machine_limits()
    by_memory = bandwidth / weights.n_bytes
    limits = {single: (by_memory, "memory")}
    if dtype in ("int8", "int4"):
        writing = 2 * products + cache * (load.start + load.new / 2)
        reading = 2 * (products - head) + cache * backend.context / 2  # the head only for the last token
        limits[batch] = _nearer(BATCH_SIZE * by_memory, peak / writing)
        limits[prompt] = _nearer(len(load.texts[0]) * by_memory, peak / reading)
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
