"""Tune a model on pairs of a text and its summary, and write a summary of every text of the test set.

    python recipes/summarisation/train.py prepared/ aeslc --out runs/subject --epochs 4 --minutes 3
    python recipes/summarisation/train.py prepared/ wiki --lora --out runs/summarize --epochs 2 --minutes 4

The loss is on the summary only. The state with the lowest loss on the validation set is kept. With --lora,
OUT/adapter is the adapter that ships; otherwise all weights are tuned, Muon for the matrices.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from summarisation.prepare import SETS
from task_training import build_model, load_arrays, train_for

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from glassgpt.tasks.definition import Task, load_task
from glassgpt.tasks.generate import make_encoder
from glassgpt.tasks.sentences import first_sentences
from glassgpt.tasks.vocabulary import grow_vocabulary
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.train.layers.lora import Ranks, adapter_tensors, add_lora, merged_state_dict
from glassgpt.train.settings import TrainSettings
from glassgpt.weights import Checkpoint, load_checkpoint
from glassgpt.weights.adapter import save_adapter

RANKS = Ranks(blocks=16, embedding=4)
MATRIX_LR = 2e-3


def settings(lora: bool, precision: str, seed: int, matrix_lr: float = MATRIX_LR) -> TrainSettings:
    if lora:
        return TrainSettings(steps=1, lr=1e-3, beta2=0.98, weight_decay=0.0, precision=precision, seed=seed)
    return TrainSettings(
        steps=1, optimizer="muon", matrix_lr=matrix_lr, lr=1e-4, beta2=0.98, weight_decay=0.01,
        precision=precision, seed=seed,
    )  # fmt: skip


def scratch_settings(precision: str, seed: int) -> TrainSettings:
    """For a model with random weights: the learning rates of a pre-training."""
    return TrainSettings(
        steps=1, optimizer="muon", matrix_lr=0.01, lr=1e-3, beta2=0.98, weight_decay=0.01,
        precision=precision, seed=seed,
    )  # fmt: skip


def tune(
    model: GPT2,
    batches: TaskBatches,
    held_out: TaskBatches,
    chosen: TrainSettings,
    *,
    epochs: float,
    seconds: float,
    log: Path | None = None,
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Train, and return the state with the lowest validation loss, with the records."""
    best: tuple[float, dict[str, Tensor]] = (float("inf"), {})

    def keep_best(record: dict[str, float]) -> None:
        nonlocal best
        if record["val_loss"] < best[0]:
            best = (record["val_loss"], {k: v.detach().clone() for k, v in model.state_dict().items()})

    records = train_for(
        model, batches, chosen, seconds=seconds, held_out=held_out.in_order(), log=log,
        max_steps=max(1, round(epochs * batches.batches_per_epoch)), on_eval=keep_best,
    )  # fmt: skip
    model.load_state_dict(best[1])
    return best[1], records


def merged(model: GPT2, start: Checkpoint, device: str) -> GPT:
    """The tuned model for generation."""
    plain = GPT2(start.config)
    plain.load_state_dict(merged_state_dict(model))
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    return GPT(TorchBackend(plain.to(device, dtype).eval().requires_grad_(False)), start.tokenizer, "tuned")


def write_summaries(
    gpt: GPT, task: Task, test: TaskBatches, file: Path, limit: int | None, cut: int = 0, **changes: object
) -> None:
    """A line for each text of the test set; `cut` tokens of its prompt, the separator, are replaced by the
    task's own."""
    count = len(test) if limit is None else min(limit, len(test))
    separator = make_encoder(gpt, task).separator if cut else []
    ends = test.starts[:count] + test.targets[:count] - cut
    prompts = [[*test.flat[test.starts[i] : ends[i]].tolist(), *separator] for i in range(count)]
    order = sorted(range(count), key=lambda i: len(prompts[i]))
    started = time.monotonic()
    made = gpt.generate([prompts[i] for i in order], settings=task.settings(logprobs=None, **changes))
    found = (
        one.text if task.sentences is None else first_sentences(one.text, task.sentences) for one in made
    )
    texts = dict(zip(order, (" ".join(text.split()) for text in found), strict=True))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(texts[i] + "\n" for i in range(count)), "utf-8")
    print(f"{file.name}: {count} summaries in {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("name", choices=tuple(SETS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--zero-shot", action="store_true", help="do not train at all")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--minutes", type=float, default=3, help="for each learning rate, at most")
    parser.add_argument(
        "--matrix-lr", type=float, nargs="+", default=[MATRIX_LR],
        help="Muon's; of several the model with the lowest validation loss is kept",
    )  # fmt: skip
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--limit", type=int, help="texts to summarise")
    parser.add_argument("--beam-limit", type=int, help="of them with 4 beams, one by one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    task = load_task(SETS[given.name][1])
    start = grow_vocabulary(load_checkpoint(given.model), task.tokens)
    base_vocab_size = load_checkpoint(given.model).config.vocab_size
    precision = "bfloat16" if given.device.startswith("cuda") else "float32"
    arrays = given.prepared / f"{given.name}.npz"
    test = load_arrays(arrays, "test")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.zero_shot:
        gpt = merged(build_model(start, given.device, 0.1, given.seed), start, given.device)
        write_summaries(
            gpt, load_task("tldr"), test, given.out / f"{given.name}.zero-shot.txt", given.limit,
            cut=len(make_encoder(gpt, task).separator), seed=0,
        )  # fmt: skip
        return
    batches = load_arrays(arrays, "train", tokens_per_batch=given.tokens, seed=given.seed)
    some = np.arange(min(500, len(load_arrays(arrays, "valid"))))
    valid = load_arrays(arrays, "valid", some, tokens_per_batch=given.tokens)
    best: tuple[float, GPT2] | None = None
    for matrix_lr in given.matrix_lr[:1] if given.lora else given.matrix_lr:
        model = build_model(start, given.device, 0.1, given.seed)
        if given.lora:
            add_lora(model, RANKS, given.seed)
        chosen = settings(given.lora, precision, given.seed, matrix_lr)
        _, records = tune(
            model, batches, valid, chosen, epochs=given.epochs, seconds=60 * given.minutes,
            log=given.out / "log.jsonl",
        )  # fmt: skip
        lowest = min(record["val_loss"] for record in records)
        if best is None or lowest < best[0]:
            best = (lowest, model)
            facts = {"matrix_lr": chosen.matrix_lr, "lr": chosen.lr, **records[-1], "val_loss": lowest}
            (given.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    assert best is not None
    model = best[1]
    if given.lora:
        save_adapter(
            adapter_tensors(model, base_vocab_size),
            start.config,
            given.model,
            given.out / "adapter",
            task.text,
        )
    gpt = merged(model, start, given.device)
    greedy = {"beams": None, "temperature": 0.0}
    write_summaries(gpt, task, test, given.out / f"{given.name}.greedy.txt", given.limit, **greedy)
    write_summaries(gpt, task, test, given.out / f"{given.name}.beam4.txt", given.beam_limit, beams=4)


if __name__ == "__main__":
    main()
