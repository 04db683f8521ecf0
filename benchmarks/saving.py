"""What a checkpoint costs the training loop: saved asynchronously, and for comparison synchronously.

    python benchmarks/saving.py [--shape 4x256x4] [--batch-size 8] [--rounds 3] [--device cpu]

The two take turns; every fourth step saves. `blocked` is how long the loop waits for a save. `lost` is how
much longer a save and the three steps after it take than four steps without one, which includes what the
writing thread takes from them (on a busy machine this figure means little). A table for people, then one line
of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.train import loop
from glassgpt.train.checkpoint.asynchronous import AsyncSaver
from glassgpt.train.settings import TrainSettings

EVERY = 4  # steps between saves
SAVES = 3  # per run; the first one allocates the copy and is not counted
START_ASYNC, SAVE = AsyncSaver.start, loop.save_run_checkpoint


def start_sync(saver: AsyncSaver, write: Callable[[], None]) -> None:
    START_ASYNC(saver, write)
    saver.wait()


def measure(model: GPT2, batch_size: int, save_every: int, out: Path) -> tuple[list[float], list[float]]:
    """The time of every step after the first save, and how long each save but the first blocked the loop."""
    context, device = model.config.n_positions, model.wte.weight.device
    batch = torch.randint(0, model.config.vocab_size, (batch_size, context + 1), device=device)
    blocked: list[float] = []

    def batches(step: int) -> Iterator[Tensor]:
        while True:
            yield batch

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = SAVE(*arguments)
        blocked.append(time.perf_counter() - started)
        return result

    loop.save_run_checkpoint = timed
    settings = TrainSettings(
        steps=EVERY * SAVES + EVERY, rows=batch_size, context=context, eval_every=10**6,
        save_every=save_every, keep=1, precision="bfloat16" if device.type == "cuda" else "float32",
    )  # fmt: skip
    times, before = [], time.perf_counter()
    for record in loop.train(model, batches, [batch], out, settings):
        now = time.perf_counter()
        times.append(now - before)
        before = now
        if record["step"] == settings.steps - 1:  # the last step would save in any case
            break
    return times[2 * EVERY - 1 :], blocked[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="4x256x4")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    n_layer, n_embd, n_head = (int(part) for part in options.shape.split("x"))
    config = Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head, vocab_size=4096, n_positions=128)
    plain: list[float] = []
    fours: dict[str, list[float]] = {"asynchronous": [], "synchronous": []}
    blocked: dict[str, list[float]] = {mode: [] for mode in fours}
    size = 0
    for _ in range(options.rounds):
        for mode in ("none", *fours):
            AsyncSaver.start = start_sync if mode == "synchronous" else START_ASYNC  # type: ignore[method-assign]
            with tempfile.TemporaryDirectory() as folder:
                model = GPT2(config).to(options.device)
                every = 10**6 if mode == "none" else EVERY
                times, pauses = measure(model, options.batch_size, every, Path(folder))
                if mode == "none":
                    plain += times
                    continue
                fours[mode] += [sum(times[i : i + EVERY]) for i in range(0, len(times), EVERY)]
                blocked[mode] += pauses
                size = max(file.stat().st_size for file in Path(folder).rglob("training.safetensors"))
    step = statistics.median(plain)
    print(f"{options.shape} on {options.device}: a checkpoint is {size / 2**20:.0f} MiB, a step {step:.3f} s")
    print(f"{'a save':20} {'blocked':>9} {'steps':>6} {'lost':>9} {'steps':>6}")
    found = {}
    for mode in fours:
        pause, loss = statistics.median(blocked[mode]), statistics.median(fours[mode]) - EVERY * step
        print(f"{mode:20} {pause:7.3f} s {pause / step:6.2f} {loss:7.3f} s {loss / step:6.2f}")
        found[mode] = {"blocked_s": pause, "lost_s": loss}
    print(
        json.dumps({"shape": options.shape, "device": options.device, "bytes": size, "step_s": step} | found)
    )


if __name__ == "__main__":
    main()
