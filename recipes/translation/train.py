"""Train a decoder-only translation model from scratch on prepared pairs, both directions at once.

    python recipes/translation/train.py prepared/ tatoeba --shape 7x320x5 --minutes 8 --out runs/en-fr

A sentence, `<to-fr>`, its translation, `<|endoftext|>`: the loss is on the translation only. Muon for the
matrices and AdamW for the rest, both down to zero along a cosine when the time is over; dropout, and a
tenth of label smoothing. The folder --out/model is a Hugging Face folder with its task.toml.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from task_training import load_arrays, save_model, train_for

from glassgpt.model import GPT2
from glassgpt.tasks.definition import load_task
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.init_model import parse_shape
from glassgpt.train.settings import TrainSettings

CONTEXT = 256
ATTENTION_DROPOUT = 0.1


def settings(precision: str, seed: int = 0, compile: bool = False) -> TrainSettings:
    return TrainSettings(
        steps=1, optimizer="muon", matrix_lr=0.02, lr=2e-3, beta2=0.98, weight_decay=0.01,
        label_smoothing=0.1, precision=precision, seed=seed, compile=compile,
    )  # fmt: skip


def directions(file: Path, name: str, to: str) -> np.ndarray | None:
    """The numbers of the examples of one direction, or None for both: English to French come first."""
    if to == "both":
        return None
    half = len(np.load(file)[f"{name}.lengths"]) // 2
    return np.arange(half) + (half if to == "en" else 0)


def build(shape: str, tokenizer: Tokenizer, dropout: float, seed: int) -> GPT2:
    torch.manual_seed(seed)
    config = dataclasses.replace(
        parse_shape(shape), vocab_size=tokenizer.vocab_size, n_positions=CONTEXT, embd_pdrop=dropout,
        attn_pdrop=ATTENTION_DROPOUT, resid_pdrop=dropout, bos_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
    )  # fmt: skip
    return GPT2(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("name", help="tatoeba or benchmark")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="7x320x5")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--tokens", type=int, default=16_384, help="in a batch")
    parser.add_argument("--to", choices=("both", "fr", "en"), default="both")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    started = time.monotonic()
    tokenizer = Tokenizer.load(given.prepared / f"{given.name}-vocabulary")
    model = build(given.shape, tokenizer, given.dropout, given.seed).to(given.device)
    file = given.prepared / f"{given.name}.npz"
    batches = load_arrays(
        file, "train", directions(file, "train", given.to), tokens_per_batch=given.tokens, seed=given.seed
    )
    held_out = load_arrays(
        file, "valid", directions(file, "valid", given.to), tokens_per_batch=given.tokens
    ).in_order()
    precision = "bfloat16" if given.device.startswith("cuda") else "float32"
    task = load_task("en-fr").text
    records = train_for(
        model, batches, settings(precision, given.seed, given.compile),
        seconds=60 * given.minutes - (time.monotonic() - started), held_out=held_out,
        log=given.out / "log.jsonl", max_steps=given.max_steps,
        on_eval=lambda record: save_model(model, tokenizer, given.out / "model", task),
    )  # fmt: skip
    facts = {
        "shape": given.shape, "parameters": model.config.n_parameters, "dropout": given.dropout,
        "batch_tokens": given.tokens, "batches_per_epoch": batches.batches_per_epoch, **records[-1],
    }  # fmt: skip
    (given.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
