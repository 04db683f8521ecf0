"""What a JSON schema costs: tokens per second of 16 sequences at once, with the schema and without.

    python benchmarks/constraints.py                      # the shipped model on this machine's best device
    python benchmarks/constraints.py --batch 1 --model tiny --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/constraints.py --cpu-time      # on a machine that is busy otherwise

Both write as many tokens, drawn with the default settings; they alternate, and the ratio is that of the
medians. A table for people, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import glassgpt
from glassgpt.generate import Engine, SamplingParams

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 5, "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["person", "place", "thing"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    },
    "minItems": 100,  # more than any of these texts can hold, so that all are of the same length
}


def run(
    engine: Engine, prompt: list[int], batch: int, settings: SamplingParams, clock: Callable[[], float]
) -> float:
    """Tokens per second of the whole batch."""
    for _ in range(batch):
        engine.add(prompt, settings)
    count, begun = 0, clock()
    while engine.busy:
        count += sum(event.token is not None for event in engine.step())
    return count / (clock() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--backend", default=None)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="the processor's time, not the clock's")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    gpt = glassgpt.load(arguments.model, backend=arguments.backend)
    engine = Engine(gpt.backend.with_rows(arguments.batch), gpt.tokenizer)
    prompt = gpt.encode("A list of people, as JSON:\n")
    length = {"max_new_tokens": arguments.new_tokens}
    kinds = {
        "plain": SamplingParams(**length, ignore_eot=True),
        "schema": SamplingParams(**length, schema=SCHEMA),
    }
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    for round_number in range(arguments.rounds + 1):
        for name, settings in kinds.items():
            speed = run(engine, prompt, arguments.batch, settings, clock)
            if round_number:  # the first is to warm up
                speeds[name].append(speed)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratio = medians["schema"] / medians["plain"]
    for name, values in speeds.items():
        print(f"{name:8s} {medians[name]:10,.1f} tokens/s   ({min(values):,.1f} to {max(values):,.1f})")
    print(f"with the schema: {ratio:.3f} of the speed")
    print(
        json.dumps(
            {"benchmark": "constraints", "batch": arguments.batch, **medians, "ratio": round(ratio, 4)}
        )
    )


if __name__ == "__main__":
    main()
