"""Time per token of the native engine against context length, batch size and model size.

    python benchmarks/cpu_scaling.py -o docs/cpu_scaling.json && python docs/performance_pictures.py

Weights are random in the published shapes (speed does not depend on them). Each figure is the median of some
steps that add one token to every text, with int8 and int4 weights beside each other. The bytes that a step
reads and its operations are counted, and set beside the speed of this machine's memory and of its products of
bytes, which are measured. Prints a table, and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.backends.native.backend import NativeBackend
from glassgpt.backends.native.weights import Weights
from glassgpt.config import Config
from glassgpt.weights import Checkpoint

CONTEXTS = (1, 4, 16, 64, 128, 256, 512, 768, 1024)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
SIZES = ("tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
SHORT = 64  # positions before the token, where the context is not what varies
STEPS = 9


class RandomTensors(Mapping[str, np.ndarray]):
    """A model's tensors, each made when it is asked for: the largest does not fit in memory as float32."""

    def __init__(self, config: Config) -> None:
        self.shapes = config.shapes()
        self.numbers = np.random.default_rng(0).standard_normal(1 << 20, np.float32) * np.float32(0.02)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.resize(self.numbers, self.shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def config_of(size: str) -> Config:
    return Config(n_layer=4, n_embd=256, n_head=4) if size == "tiny" else Config.named(size)


def load(size: str, dtype: str, threads: int | None) -> Weights:
    config = config_of(size)
    return Weights(Checkpoint(config, RandomTensors(config)), dtype=dtype, threads=threads)  # type: ignore[arg-type]


def count(weights: Weights, batch: int, context: int, cache_bytes: int) -> dict[str, float]:
    """What a step reads and computes for each token: weights are read once for all of its batch."""
    config = weights.config
    vectors = config.n_layer * 2 * config.n_embd  # numbers in the cache for each position
    products = config.n_parameters - config.n_positions * config.n_embd  # of positions, one row is added
    return {
        "bytes": weights.n_bytes / batch + vectors * (context + 1) * cache_bytes,
        "operations": 2.0 * products + 2.0 * vectors * (context + 1),
    }


def step_ms(backend: NativeBackend, batch: int, context: int, steps: int) -> float:
    """Milliseconds per token of a step at this position."""
    rows, ids = list(range(batch)), np.arange(batch) + 100
    times = []
    for _ in range(steps + 1):  # the first warms up
        begun = time.perf_counter()
        backend.decode(rows, ids, [context] * batch)
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times[1:]) / batch


def filled(weights: Weights, batch: int, context: int) -> NativeBackend:
    """A backend whose rows hold `context` tokens."""
    backend = NativeBackend(weights, batch)
    if context:
        backend.extend([0], [np.arange(context) % 1000], logits="none")
        backend.copy(0, list(range(1, batch)), context)
    return backend


def measure(weights: Weights, batch: int, context: int, steps: int) -> dict[str, Any]:
    ms = step_ms(filled(weights, batch, context), batch, context, steps)
    cache_bytes = {"float32": 4, "float16": 2, "int8": 1}[weights.cache_dtype]
    counts = count(weights, batch, context, cache_bytes)
    return {"dtype": weights.dtype, "batch": batch, "context": context + 1, "ms": ms, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/cpu_scaling.json"))
    parser.add_argument("--dtypes", nargs="*", default=["int8", "int4"])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    small = {dtype: load("gpt2", dtype, args.threads) for dtype in args.dtypes}
    limits = [next(iter(small.values())).machine_limits()]
    found: dict[str, list[dict[str, Any]]] = {"context": [], "batch": [], "size": []}
    for context in CONTEXTS:
        found["context"] += [measure(weights, 1, context - 1, args.steps) for weights in small.values()]
        print(f"context {context} measured", file=sys.stderr, flush=True)
    for batch in BATCHES:
        found["batch"] += [measure(weights, batch, SHORT, args.steps) for weights in small.values()]
        print(f"batch {batch} measured", file=sys.stderr, flush=True)
    for size in args.sizes:
        for dtype in args.dtypes:
            weights = small[dtype] if size == "gpt2" else load(size, dtype, args.threads)
            row = measure(weights, 1, SHORT, args.steps)
            found["size"].append({"size": size, "parameters": weights.config.n_parameters, **row})
            print(f"{size} in {dtype} measured", file=sys.stderr, flush=True)
    limits.append(next(iter(small.values())).machine_limits())
    bandwidth, peak = map(max, zip(*limits, strict=True))  # what disturbs a measurement only makes it lower
    result = {
        "threads": next(iter(small.values())).threads, "bandwidth": bandwidth, "int8_peak": peak,
        "step_context": SHORT, **found,
    }  # fmt: skip
    print(f"memory {bandwidth / 1e9:.1f} GB/s, int8 {peak / 1e9:,.0f} Gop/s, {result['threads']} threads")
    print(f"{'':24}{'dtype':>7}{'ms/token':>10}{'MB':>9}{'Mop':>8}{'of memory':>11}{'of int8':>9}")
    for sweep, rows in found.items():
        for row in rows:
            at = f"{sweep} {row[sweep]}"
            reading, computing = row["bytes"] / bandwidth * 1e3, row["operations"] / peak * 1e3
            print(
                f"{at:24}{row['dtype']:>7}{row['ms']:10.3f}{row['bytes'] / 1e6:9.1f}"
                f"{row['operations'] / 1e6:8.0f}{reading / row['ms']:11.0%}{computing / row['ms']:9.0%}"
            )
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        json.dumps(
            {"benchmark": "cpu_scaling", "out": str(args.out), "bandwidth": bandwidth, "int8_peak": peak}
        )
    )


if __name__ == "__main__":
    main()
