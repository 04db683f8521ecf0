"""Does a pre-trained model need fewer examples? The same model with its weights, and with random ones, tuned
on 1, 10 and 100 % of the data, with three seeds each.

    python recipes/sample_efficiency/run.py prepared/ classification --out runs/efficiency
    python recipes/sample_efficiency/run.py prepared/ summarisation --out runs/efficiency

A line of OUT/classification.jsonl is a run with its accuracy on SST-2's dev set; of OUT/summarisation.jsonl
one with its loss on held-out subject lines, in nats per token, whose summaries stand in a file of their own.
`picture.py` draws both; runs that are there already are not repeated. A run with random weights has the
learning rate of a pre-training; both see every example equally often, and small sets more often than large
ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from classification import train as classification
from summarisation import train as summarisation
from task_training import build_model, load_arrays

from glassgpt.tasks.definition import load_task
from glassgpt.tasks.vocabulary import grow_vocabulary
from glassgpt.weights import load_checkpoint

FRACTIONS = {0.01: (10, 32), 0.1: (5, 64), 1.0: (2, 128)}  # epochs and batch size
EMAIL_TOKENS = {0.01: 2048, 0.1: 4096, 1.0: 8192}  # in a batch
TUNED_LR, SCRATCH_LR = 1e-4, 3e-4
TEXTS = 300  # of the test set are summarised


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("what", choices=("classification", "summarisation"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, help="for all fractions")
    parser.add_argument("--lr", type=float, default=TUNED_LR, help="of the pre-trained classifier")
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    run = run_classifier if given.what == "classification" else run_summariser
    results = given.out / f"{given.what}.jsonl"
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    done = {(one["fraction"], one["seed"], one["scratch"]) for one in map(json.loads, lines)}
    for seed, fraction, scratch in product(range(given.seeds), given.fractions, (False, True)):
        if (fraction, seed, scratch) not in done:
            result = {"fraction": fraction, **run(given, fraction, seed, scratch)}
            print(json.dumps(result), flush=True)
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")


def choose(file: Path, fraction: float, seed: int) -> np.ndarray:
    """The numbers of some training examples, others for every seed."""
    total = len(np.load(file)["train.lengths"])
    return np.random.default_rng(seed).permutation(total)[: max(1, round(fraction * total))]


def run_classifier(given: argparse.Namespace, fraction: float, seed: int, scratch: bool) -> dict[str, Any]:
    start = grow_vocabulary(load_checkpoint(given.model), load_task("sentiment").tokens)
    file = given.prepared / "sst2.npz"
    epochs, batch_size = FRACTIONS[fraction]
    options = {"tokens_per_batch": 1 << 16, "max_sequences": batch_size}
    train = load_arrays(file, "train", choose(file, fraction, seed), seed=seed, **options)
    sets = {name: load_arrays(file, name, tokens_per_batch=1 << 14) for name in ("valid", "test")}
    precision = "bfloat16" if given.device.startswith("cuda") else "float32"
    _, result = classification.tune_classifier(
        start, train, sets, classification.settings(SCRATCH_LR if scratch else given.lr, precision, seed),
        device=given.device, epochs=epochs if given.epochs is None else given.epochs, scratch=scratch,
    )  # fmt: skip
    return result


def run_summariser(given: argparse.Namespace, fraction: float, seed: int, scratch: bool) -> dict[str, Any]:
    task = load_task("subject")
    start = grow_vocabulary(load_checkpoint(given.model), task.tokens)
    file = given.prepared / "aeslc.npz"
    train = load_arrays(
        file, "train", choose(file, fraction, seed), seed=seed, tokens_per_batch=EMAIL_TOKENS[fraction]
    )
    some = np.arange(min(300, len(load_arrays(file, "valid"))))
    valid = load_arrays(file, "valid", some, tokens_per_batch=16_384)
    precision = "bfloat16" if given.device.startswith("cuda") else "float32"
    model = build_model(start, given.device, 0.1, seed, scratch)
    chosen = (
        summarisation.scratch_settings(precision, seed) if scratch
        else summarisation.settings(False, precision, seed)
    )  # fmt: skip
    epochs = FRACTIONS[fraction][0] if given.epochs is None else given.epochs
    _, records = summarisation.tune(model, train, valid, chosen, epochs=epochs, seconds=600)
    name = f"subject-{fraction:g}-{'scratch' if scratch else 'pretrained'}-{seed}.txt"
    summarisation.write_summaries(
        summarisation.merged(model, start, given.device), dataclasses.replace(task, decoding={}),
        load_arrays(file, "test"), given.out / name, given.texts,
    )  # fmt: skip
    best = min(record["val_loss"] for record in records)
    return {
        "seed": seed,
        "scratch": scratch,
        "examples": len(train),
        "val_loss": best,
        "file": name,
        **{key: records[-1][key] for key in ("step", "epochs", "seconds")},
    }


if __name__ == "__main__":
    main()
