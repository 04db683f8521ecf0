"""Does a memory help, and how far back does it reach? Loss over memory lengths, at the same segment length.

    python recipes/attention/memory.py CHARS BPE --out results/

CHARS and BPE are folders written by `glassgpt prepare`. For each, models that differ in nothing but the
memory they were trained with read the same segments for the same number of steps. Each is then tested with
other memories than its own: how long a memory it can use is its effective context.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import DEVICE, held_out_rows, save, train, vocab_size
from segments import segment_losses

from glassgpt.config import Config
from glassgpt.train.settings import TrainSettings

SEGMENT = 64
TRAINED = (0, 64, 128, 256, 512)  # memory lengths
READ = (0, 16, 32, 64, 128, 256, 512, 1024)
GAIN = 0.005  # nats: a longer memory that lowers the loss by less is of no use


def effective_context(losses: dict[int, float]) -> int:
    """The shortest memory that is within GAIN of the best."""
    best = min(losses.values())
    return min(length for length, loss in losses.items() if loss <= best + GAIN)


def measure(name: str, data: Path, smoke: bool, out: Path, results: dict[str, Any]) -> None:
    rows, length, width, layers, steps = (8, 256, 32, 2, 12) if smoke else (128, 2048, 256, 6, 1500)
    batch_size = 16 if smoke else 128
    text = held_out_rows(data, rows, length)
    for trained in TRAINED[:2] if smoke else TRAINED:
        config = Config(
            vocab_size=vocab_size(data), n_positions=SEGMENT + trained, n_embd=width, n_layer=layers,
            n_head=4, attention="memory", memory_length=trained, embd_pdrop=0.1, attn_pdrop=0.0,
            resid_pdrop=0.1,
        )  # fmt: skip
        settings = TrainSettings(
            steps=steps, batch_size=batch_size, context=SEGMENT, lr=7e-4, warmup_steps=min(50, steps // 4),
            eval_every=10**8, save_every=10**8, precision="bfloat16" if DEVICE.type == "cuda" else "float32",
        )  # fmt: skip
        model, records = train(config, data, settings)
        model.eval()
        found: dict[int, float] = {}
        by_place: list[float] = []
        for read in READ[:3] if smoke else READ:
            losses = segment_losses(model, text, SEGMENT, read)[:, length // 2 :]  # once the memory is full
            found[read] = losses.mean().item()
            if read == trained:
                by_place = losses.view(rows, -1, SEGMENT).mean(dim=(0, 1)).tolist()
        own = found.get(trained, found[max(found)])
        results[name][str(trained)] = {
            "loss": own, "by_read_length": found, "effective_context": effective_context(found),
            "loss_by_place": by_place, "steps": steps, "seconds": records[-1]["seconds"],
            "curve": [[r["step"], r["loss"]] for r in records[:: max(1, steps // 50)]],
        }  # fmt: skip
        save(results, out / "memory.json")
        reach = results[name][str(trained)]["effective_context"]
        print(f"{name}: memory {trained:4}: loss {own:.4f}, effective context {reach}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chars", type=Path)
    parser.add_argument("bpe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("chars", "bpe"), help="one of the two; the other's results stay")
    parser.add_argument("--smoke", action="store_true", help="a miniature, to see that everything runs")
    arguments = parser.parse_args()
    file = arguments.out / "memory.json"
    results: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"segment": SEGMENT}
    for name in ("chars", "bpe") if arguments.only is None else (arguments.only,):
        results[name] = {}
        measure(name, getattr(arguments, name), arguments.smoke, arguments.out, results)


if __name__ == "__main__":
    main()
