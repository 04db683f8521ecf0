"""How long an atlas takes: CPU and wall-clock seconds for a number of tokens of a text.

python benchmarks/atlas.py --data TEXTS --tokens 100000
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import glassgpt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    gpt = glassgpt.load(args.model, device=args.device)
    with tempfile.TemporaryDirectory() as folder:
        glassgpt.atlas(gpt, args.data, Path(folder) / "warm", tokens=2_000)
        cpu, wall = time.process_time(), time.perf_counter()
        atlas = glassgpt.atlas(gpt, args.data, Path(folder) / "atlas", tokens=args.tokens)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        size = (Path(folder) / "atlas" / "atlas.safetensors").stat().st_size
    tokens = len(atlas.state.tokens)
    print(f"{'tokens':>10}  {'wall s':>8}  {'CPU s':>8}  {'a million, wall s':>18}  {'MB':>6}")
    print(f"{tokens:>10,}  {wall:>8.1f}  {cpu:>8.1f}  {wall / tokens * 1e6:>18.0f}  {size / 1e6:>6.1f}")
    print(json.dumps({"tokens": tokens, "wall_s": wall, "cpu_s": cpu, "bytes": size, "device": args.device}))


if __name__ == "__main__":
    main()
