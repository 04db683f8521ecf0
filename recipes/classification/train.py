"""Tune a classifier by GPT-1's scheme with several learning rates, and report the accuracies.

    python recipes/classification/train.py prepared/ --lr 5e-5 1e-4 2e-4 --epochs 3 --out runs/sst2

The head, `score`, reads the final vector of the extract token; the loss of the text itself counts half.
Results go to OUT/results.jsonl, a line for each run; the model that is best on the dev set to OUT/model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
from task_training import build_model, load_arrays, save_model, train_for

from glassgpt.model import GPT2
from glassgpt.tasks.definition import load_task
from glassgpt.tasks.vocabulary import grow_vocabulary
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.train.objectives.classification import Classification, add_head, extract
from glassgpt.train.settings import TrainSettings
from glassgpt.weights import Checkpoint, load_checkpoint


def settings(lr: float, precision: str, seed: int, muon: bool = False) -> TrainSettings:
    matrices: dict[str, Any] = {"optimizer": "muon", "matrix_lr": 20 * lr} if muon else {}
    return TrainSettings(
        steps=1, lr=lr, beta2=0.98, weight_decay=0.01, precision=precision, seed=seed, **matrices
    )


@torch.no_grad()
def accuracy(model: GPT2, examples: TaskBatches, extract_id: int) -> float:
    model.eval()
    device, right, precision = model.wte.weight.device, 0, torch.bfloat16
    for batch in examples.in_order():
        ids = batch.ids.to(device)
        with torch.autocast(device.type, precision, enabled=device.type == "cuda"):
            hidden = model.hidden(ids)
        logits = F.linear(extract(hidden, ids, extract_id).float(), model.score.weight.float())
        right += int((logits.argmax(-1).cpu() == batch.targets).sum())
    return right / len(examples)


def tune_classifier(
    start: Checkpoint,
    train: TaskBatches,
    sets: dict[str, TaskBatches],
    chosen: TrainSettings,
    *,
    device: str,
    epochs: float,
    seconds: float = 600,
    scratch: bool = False,
    lm_weight: float | None = None,
    log: Path | None = None,
) -> tuple[GPT2, dict[str, Any]]:
    """Train a classifier; the model, and its accuracy on each of the sets, at the end and at its best."""
    task = load_task("sentiment")
    model = add_head(build_model(start, device, 0.1, chosen.seed, scratch), len(task.labels))
    assert start.tokenizer is not None
    (extract_id,) = start.tokenizer.encode("<extract>", True)
    objective = Classification.from_settings(
        chosen, model, extract_id, task.lm_weight if lm_weight is None else lm_weight
    )
    begun = time.monotonic()
    curve: list[float] = []
    records = train_for(
        model, train, chosen, seconds=seconds, objective=objective, log=log, warmup=0.1,
        max_steps=max(1, round(epochs * train.batches_per_epoch)),
        on_eval=lambda record: curve.append(accuracy(model, sets["valid"], extract_id)),
    )  # fmt: skip
    result = {
        "lr": chosen.lr, "optimizer": chosen.optimizer, "seed": chosen.seed, "examples": len(train),
        "scratch": scratch, "epochs": epochs, "steps": records[-1]["step"], "curve": curve,
        "seconds": round(time.monotonic() - begun, 1),
        **{name: round(accuracy(model, one, extract_id), 4) for name, one in sets.items()},
    }  # fmt: skip
    return model, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-5, 1e-4, 2e-4])
    parser.add_argument("--muon", action="store_true", help="for the matrices, at 20 times the learning rate")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=2, help="for each learning rate, at most")
    parser.add_argument("--examples", type=int, help="to train on; all if left out")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    task = load_task("sentiment")
    start = grow_vocabulary(load_checkpoint(given.model), task.tokens)
    file = given.prepared / "sst2.npz"
    options = {"tokens_per_batch": 1 << 16, "max_sequences": given.batch_size}
    keep = (
        None
        if given.examples is None
        else np.random.default_rng(given.seed).permutation(len(load_arrays(file, "train")))[: given.examples]
    )
    train = load_arrays(file, "train", keep, seed=given.seed, **options)
    sets = {name: load_arrays(file, name, **options) for name in ("valid", "test")}
    precision = "bfloat16" if given.device.startswith("cuda") else "float32"
    given.out.mkdir(parents=True, exist_ok=True)
    best = 0.0
    for lr in given.lr:
        model, result = tune_classifier(
            start, train, sets, settings(lr, precision, given.seed, given.muon), device=given.device,
            epochs=given.epochs, seconds=60 * given.minutes, log=given.out / f"log-{lr:g}.jsonl",
        )  # fmt: skip
        print(json.dumps(result), flush=True)
        with (given.out / "results.jsonl").open("a") as out:
            out.write(json.dumps(result) + "\n")
        if given.save and result["valid"] > best:
            best = result["valid"]
            assert start.tokenizer is not None
            save_model(model, start.tokenizer, given.out / "model", task.text)


if __name__ == "__main__":
    main()
