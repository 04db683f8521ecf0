"""Training tokens per second alone and beside busy neighbours, by how OpenMP's threads wait for each other.

    python benchmarks/busy.py                          # about six minutes on two cores
    python benchmarks/busy.py --seconds 3 --rounds 1

A thread that waits for another spins for a while before it sleeps. Where another program wants its core, it
spins in that program's time: the one it waits for gets its turn later. Each setting trains a small model in a
process of its own, alone and beside as many busy loops as there are cores; they take turns. The trainer's own
update (train/step.py), random tokens. The median round counts, and the slowest step of all is shown with it.
A table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

# torch's wheels for Linux bring GNU's OpenMP. Told nothing, its threads spin 300,000 times before they sleep.
SETTINGS: dict[str, dict[str, str]] = {
    "as libgomp is": {},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=100": {"GOMP_SPINCOUNT": "100"},
    "GOMP_SPINCOUNT=0": {"GOMP_SPINCOUNT": "0"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}


def train(seconds: float, threads: int, width: int, batch_size: int) -> None:
    """In a process of its own: a few seconds of training, and a line of JSON."""
    import torch

    from glassgpt.config import Config
    from glassgpt.model import GPT2
    from glassgpt.train.distributed.parallelize import parallelize
    from glassgpt.train.distributed.process_group import ProcessGroup
    from glassgpt.train.micro_batch import AutoMicroBatch
    from glassgpt.train.objectives.objective import Batch
    from glassgpt.train.optim import make_optimizers
    from glassgpt.train.settings import TrainSettings
    from glassgpt.train.step import train_step

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = Config(
        vocab_size=2048, n_positions=128, n_embd=width, n_layer=4, n_head=4,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    batch = Batch.from_tokens(torch.randint(0, config.vocab_size, (batch_size, 129)))
    settings = TrainSettings(steps=1, batch_size=batch_size, precision="float32")
    model = GPT2(config)
    optimizers = make_optimizers(model, settings)
    loss_module, micro_batch, group = parallelize(model, settings), AutoMicroBatch(settings), ProcessGroup()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    steps: list[float] = []
    for _ in range(2):
        train_step(batch, loss_module, optimizers, scaler, micro_batch, group)
    begun = time.perf_counter()
    while not steps or time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        train_step(batch, loss_module, optimizers, scaler, micro_batch, group)
        steps.append(time.perf_counter() - before)
    tokens = batch.targets.numel()
    print(json.dumps({"tokens_per_s": tokens * len(steps) / sum(steps), "slowest": tokens / max(steps)}))


@contextlib.contextmanager
def neighbours(count: int, seconds: float) -> Iterator[None]:
    """Busy loops, which end by themselves if nobody ends them."""
    loop = f"import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measured(arguments: argparse.Namespace, setting: dict[str, str]) -> dict[str, float]:
    unset = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_", "KMP_"))}
    command = [sys.executable, __file__, "--child"]
    for name in ("seconds", "threads", "width", "batch_size"):
        command += [f"--{name}", str(getattr(arguments, name))]
    limit = 180 + 10 * arguments.seconds
    try:
        done = subprocess.run(
            command, env={**unset, **setting}, capture_output=True, text=True, check=True, timeout=limit
        )
    except subprocess.TimeoutExpired:  # not even two steps in that time
        print(setting, f"not done in {limit:.0f} s", file=sys.stderr, flush=True)
        return {"tokens_per_s": 0.0, "slowest": 0.0}
    found: dict[str, float] = json.loads(done.stdout)
    print(setting, {name: round(value) for name, value in found.items()}, file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of training, each time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME=VALUE"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences of 128 tokens")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        train(arguments.seconds, arguments.threads, arguments.width, arguments.batch_size)
        return
    n_cores = len(os.sched_getaffinity(0))
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {"alone": [], "beside": []} for name in arguments.settings
    }
    for _ in range(arguments.rounds):
        for name in arguments.settings:
            setting = SETTINGS[name]
            found[name]["alone"].append(measured(arguments, setting))
            with neighbours(n_cores, seconds=200 + 20 * arguments.seconds):
                found[name]["beside"].append(measured(arguments, setting))
    print(
        f"{n_cores} cores, {arguments.threads} threads, beside {n_cores} busy loops: tokens/s, mean and worst"
    )
    print(f"{'':24} {'alone':>9} {'slowest':>9} {'beside':>9} {'slowest':>9} {'kept':>6}")
    result = {}
    for name, variants in found.items():
        line = {
            f"{variant}{of}": round(pick([one[key] for one in rounds]))
            for variant, rounds in variants.items()
            for of, key, pick in (("", "tokens_per_s", statistics.median), ("_slowest", "slowest", min))
        }
        result[name] = {**line, "kept": round(line["beside"] / max(line["alone"], 1), 3)}
        print(
            "{:24} {alone:9,} {alone_slowest:9,} {beside:9,} {beside_slowest:9,} {kept:6.2f}".format(
                name, **result[name]
            )
        )
    asked = {
        name: getattr(arguments, name) for name in ("seconds", "rounds", "threads", "width", "batch_size")
    }
    print(json.dumps({"benchmark": "busy", "cores": n_cores, **asked, "settings": result}))


if __name__ == "__main__":
    main()
