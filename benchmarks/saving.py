"""How long a save holds up training: written in the background, and, beside it, waited for.

    python benchmarks/saving.py [--shape 4x256x4] [--batch-size 8] [--rounds 3] [--device cpu]

Both ways take turns; a save falls into every fourth step. `held` is how long the loop stands still for it.
`lost` is what it and the three steps after it take longer than four steps without a save: there also counts
what the writing thread takes away from them (on a machine with other work it says little). A table for
people, then one line of JSON.
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
SAVES = 3  # in a run; the first one makes room for the copy and is not counted
IN_BACKGROUND, SAVE = AsyncSaver.start, loop.save_run_checkpoint


def waited_for(saver: AsyncSaver, write: Callable[[], None]) -> None:
    IN_BACKGROUND(saver, write)
    saver.wait()


def measure(model: GPT2, rows: int, save_every: int, out: Path) -> tuple[list[float], list[float]]:
    """The time of every step after the first save, and how long each save but the first held the loop."""
    context, device = model.config.n_positions, model.wte.weight.device
    batch = torch.randint(0, model.config.vocab_size, (rows, context + 1), device=device)
    held: list[float] = []

    def batches(step: int) -> Iterator[Tensor]:
        while True:
            yield batch

    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        result = SAVE(*arguments)
        held.append(time.perf_counter() - begun)
        return result

    loop.save_run_checkpoint = timed
    settings = TrainSettings(
        steps=EVERY * SAVES + EVERY, batch_size=rows, context=context, eval_every=10**6,
        save_every=save_every, keep_checkpoints=1,
        precision="bfloat16" if device.type == "cuda" else "float32",
    )  # fmt: skip
    times, before = [], time.perf_counter()
    for record in loop.train_loop(model, batches, [batch], out, settings):
        now = time.perf_counter()
        times.append(now - before)
        before = now
        if record["step"] == settings.steps - 1:  # the last step would save in any case
            break
    return times[2 * EVERY - 1 :], held[1:]


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
    fours: dict[str, list[float]] = {"in the background": [], "waited for": []}
    held: dict[str, list[float]] = {variant: [] for variant in fours}
    size = 0
    for _ in range(options.rounds):
        for variant in ("none", *fours):
            AsyncSaver.start = waited_for if variant == "waited for" else IN_BACKGROUND  # type: ignore[method-assign]
            with tempfile.TemporaryDirectory() as folder:
                model = GPT2(config).to(options.device)
                every = 10**6 if variant == "none" else EVERY
                times, pauses = measure(model, options.batch_size, every, Path(folder))
                if variant == "none":
                    plain += times
                    continue
                fours[variant] += [sum(times[i : i + EVERY]) for i in range(0, len(times), EVERY)]
                held[variant] += pauses
                size = max(file.stat().st_size for file in Path(folder).rglob("training.safetensors"))
    step = statistics.median(plain)
    print(f"{options.shape} on {options.device}: a checkpoint is {size / 2**20:.0f} MiB, a step {step:.3f} s")
    print(f"{'a save':20} {'held':>9} {'steps':>6} {'lost':>9} {'steps':>6}")
    found = {}
    for variant in fours:
        pause, loss = statistics.median(held[variant]), statistics.median(fours[variant]) - EVERY * step
        print(f"{variant:20} {pause:7.3f} s {pause / step:6.2f} {loss:7.3f} s {loss / step:6.2f}")
        found[variant] = {"held_s": pause, "lost_s": loss}
    print(
        json.dumps({"shape": options.shape, "device": options.device, "bytes": size, "step_s": step} | found)
    )


if __name__ == "__main__":
    main()
