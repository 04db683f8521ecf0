"""`python -m tests.fuzz --minutes 30`: run all fuzzers, then print a table and one JSON line."""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nothing listens there: model names fail at once
os.environ["NO_COLOR"] = "1"

from tests.fuzz import sandbox
from tests.fuzz.cases import KINDS
from tests.fuzz.runner import run

Fault = tuple[str, str, str]


def attack(kind: str, seed: int, template: Path, place: Path) -> tuple[str | None, str, str, bool]:
    """Run one case: its fault or None, its name, its output, and whether it had to be interrupted."""
    folder = place / f"{kind.replace(' ', '-')}-{seed}"
    sandbox.copy(template, folder)
    os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        name, work = KINDS[kind](random.Random(f"{kind} {seed}"), folder)
        before = sandbox.fingerprint(folder)
        outcome = run(work, folder)
        fault = outcome.fault
        after = sandbox.fingerprint(folder)
        lost = [path for path, hash in before.items() if after.get(path) != hash]
        if fault is None and lost and "--force" not in name:
            fault = f"lost {', '.join(lost[:3])}"
        return fault, name, outcome.output, outcome.interrupted
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; counts up from there")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be repeated")
    parser.add_argument(
        "--one", action="store_true", help="run only the case of --kind and --seed and print its output"
    )
    options = parser.parse_args()
    kinds = options.kind if options.kind is not None else list(KINDS)
    tried: collections.Counter[str] = collections.Counter()
    slow: collections.Counter[str] = collections.Counter()
    faults: list[tuple[str, int, str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        place = Path(temporary)
        sandbox.make(place / "template")
        if options.one:
            fault, name, output, _ = attack(kinds[0], options.seed, place / "template", place)
            print(f"{name}\n{output}\nfault: {fault}")
            return fault is not None
        end = time.monotonic() + 60 * options.minutes
        seed = options.seed
        while time.monotonic() < end:
            for kind in kinds:
                fault, name, output, interrupted = attack(kind, seed, place / "template", place)
                tried[kind] += 1
                slow[kind] += interrupted
                if interrupted:
                    print(f"{kind} {seed}: interrupted: {name}"[:500], file=sys.stderr, flush=True)
                if fault is not None:
                    faults.append((kind, seed, fault, name, output))
                    print(
                        f"{kind} {seed}: {fault}: {name}\n{output[-1500:]}"[:2500],
                        file=sys.stderr,
                        flush=True,
                    )
            seed += 1
    bad = collections.Counter(kind for kind, *_ in faults)
    print(f"{'kind':20} {'cases':>7} {'passed':>9} {'interrupted':>12}")
    for kind in kinds:
        print(f"{kind:20} {tried[kind]:7,} {tried[kind] - bad[kind]:9,} {slow[kind]:12,}")
    print(json.dumps({"cases": tried, "faults": [fault[:4] for fault in faults], "interrupted": slow}))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
