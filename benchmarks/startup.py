"""Start-up from the shell, in seconds: `generate` to its first token; `next`, `tokens`, `info` to their end.

Every command runs in a process of its own, with the shipped model; all of them in turn, in each round.
`generate` runs a second time with torch instead of the native engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

PROMPT = "The old house stood at the end of the lane, and"
COMMANDS = {
    "generate": ["generate", PROMPT, "--seed", "1"],
    "generate, torch": ["generate", PROMPT, "--seed", "1"],
    "next": ["next", PROMPT, "-k", "10"],
    "tokens": ["tokens", PROMPT],
    "info": ["info", "default"],
}


def measure(name: str) -> float:
    environment = dict(os.environ)
    if name.endswith("torch"):
        environment["GLASSGPT_NATIVE"] = os.devnull  # as if it had not been built
    command = [sys.executable, "-m", "glassgpt", *COMMANDS[name]]
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        if name.startswith("generate"):
            found = b""
            while len(found) <= len(PROMPT):  # the prompt comes first
                found += os.read(process.stdout.fileno(), 64)
        else:
            process.stdout.read()
        seconds = time.perf_counter() - start
        process.kill()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name in COMMANDS:
            times[name].append(measure(name))
    print(f"{'command':16} {'median':>8} {'fastest':>8}")
    for name, found in times.items():
        print(f"{name:16} {statistics.median(found):7.3f}s {min(found):7.3f}s")
    print(json.dumps({name: round(statistics.median(found), 4) for name, found in times.items()}))


if __name__ == "__main__":
    main()
