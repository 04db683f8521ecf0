"""How long models take to open: the packed int8 form against float32 safetensors, same numbers, same process.

    python benchmarks/weights.py [--parameters 47]      (millions)

Prints a table for people, then one JSON line for programs. Times are medians over interleaved rounds; the
files are in the page cache, as they are when a model was used a moment ago.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from glassgpt.config import Config
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint


def model_of(millions: float) -> Checkpoint:
    """Random numbers in the shape of a small GPT-2 with 16,384 tokens, as deep as the count asks for."""
    width = 576
    n_layer = max(1, round((millions * 1e6 - 17_408 * width) / (12 * width**2)))
    config = Config(vocab_size=16_384, n_positions=1024, n_embd=width, n_layer=n_layer, n_head=9)
    random = np.random.default_rng(0)
    tensors = {
        name: 0.02 * random.standard_normal(shape, np.float32) for name, shape in config.shapes().items()
    }
    return Checkpoint(config, tensors)


def opened(path: Path) -> None:
    """Read every tensor as float32 arrays that are really in memory."""
    checkpoint = load_checkpoint(path)
    for name in checkpoint.tensors:
        np.array(checkpoint.tensors[name], np.float32, copy=checkpoint.format != "packed")


def seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=float, default=47.0, help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = model_of(options.parameters)
    with tempfile.TemporaryDirectory() as folder:
        paths = {format: Path(folder) / format for format in ("hf", "packed")}
        written = {}
        for format, path in paths.items():
            written[format] = seconds(lambda path=path, format=format: save_checkpoint(model, path, format))
        times: dict[str, list[float]] = {format: [] for format in paths}
        for _ in range(options.rounds):
            for format, path in paths.items():
                times[format].append(seconds(lambda path=path: opened(path)))
        sizes = {format: sum(f.stat().st_size for f in path.iterdir()) for format, path in paths.items()}
    print(f"{model.config.n_parameters:,} parameters, {options.rounds} rounds")
    print(f"{'format':8} {'MB':>8} {'write s':>9} {'open s':>9} {'best':>9}")
    for format in paths:
        middle, best = statistics.median(times[format]), min(times[format])
        print(f"{format:8} {sizes[format] / 1e6:8.1f} {written[format]:9.3f} {middle:9.3f} {best:9.3f}")
    result = {
        "benchmark": "weights",
        "parameters": model.config.n_parameters,
        "open_s": {format: statistics.median(times[format]) for format in paths},
        "write_s": written,
        "bytes": sizes,
        "packed_over_hf": statistics.median(times["packed"]) / statistics.median(times["hf"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
