"""Adapters that share their model, beside the model alone: tokens/s of one batch.

    python benchmarks/adapters.py [--model default] [--adapters 3] [--rank 8] [--requests 64] [--rounds 5]

The contestants alternate in every round: the base for all requests, the adapters in turn, and the adapters
with the base among them. A table of medians and their ratio to the base, by the clock and per CPU second,
then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import glassgpt
from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.weights.peft import save_peft
from glassgpt.weights.registry import load_config

PROMPT = "The old house stood at the end of the lane, and"


def write_adapter(folder: Path, base: str, rank: int, seed: int) -> Path:
    draw, changes = np.random.default_rng(seed), {}
    for name, (n_in, *n_out) in load_config(base).shapes().items():
        if name.startswith("h.") and n_out:
            changes[f"{name}.lora_A"] = draw.normal(0, n_in**-0.5, (n_in, rank)).astype(np.float32)
            changes[f"{name}.lora_B"] = draw.normal(0, 0.01, (rank, n_out[0])).astype(np.float32)
    save_peft(changes, base, folder)
    return folder


def tokens_per_second(engine: Engine, adapters: list[int], tokens: int) -> tuple[float, float]:
    """By the clock, and per second of CPU time."""
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(PROMPT)
    for seed, adapter in enumerate(adapters):
        settings = SamplingParams(max_new_tokens=tokens, seed=seed, ignore_eot=True)
        engine.add(ids, settings, adapter=adapter)
    begun, used = time.perf_counter(), time.process_time()
    while engine.busy:
        engine.step()
    count = len(adapters) * tokens
    return count / (time.perf_counter() - begun), count / (time.process_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--backend")
    parser.add_argument("--adapters", type=int, default=3)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    gpt = glassgpt.load(options.model, backend=options.backend)
    with tempfile.TemporaryDirectory() as folder:
        numbers = [
            gpt.add_adapter(write_adapter(Path(folder) / str(seed), options.model, options.rank, seed))
            for seed in range(options.adapters)
        ]
    engine = Engine(gpt.backend.with_rows(options.requests), gpt.tokenizer)
    everyone = range(options.requests)
    contestants = {
        "base": [0 for _ in everyone],
        f"{options.adapters} adapters": [numbers[i % len(numbers)] for i in everyone],
        "mixed with the base": [[0, *numbers][i % (len(numbers) + 1)] for i in everyone],
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for adapters in contestants.values():
        tokens_per_second(engine, adapters, 4)
    for _ in range(options.rounds):
        for name, adapters in contestants.items():
            measured[name].append(tokens_per_second(engine, adapters, options.tokens))
    base = measured["base"]
    print(f"{'':22}{'tokens/s':>10}{'of the base':>13}{'per CPU second':>16}")
    figures = {}
    for name, rounds in measured.items():
        rate = statistics.median(clock for clock, _ in rounds)
        ratios = [
            statistics.median(mine[i] / other[i] for mine, other in zip(rounds, base, strict=True))
            for i in (0, 1)
        ]
        figures[name] = {"tokens_per_s": round(rate), "of_base": ratios[0], "of_base_per_cpu_s": ratios[1]}
        print(f"{name:22}{rate:>10,.0f}{ratios[0]:>13.2f}{ratios[1]:>16.2f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
