"""Training for the recipes of tasks: the package's own step, for a given time instead of a number of steps.

A shared GPU is not equally fast all the time, so the learning rate follows the clock: it has reached zero
when the time is over, however many steps that were. Everything else is `glassgpt.train`'s.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from glassgpt.backends.torch.backend import load_model
from glassgpt.model import GPT2
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.layers.lora import merged_state_dict
from glassgpt.train.loop import evaluate_loss
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives.objective import Batch, Objective
from glassgpt.train.optim import make_optimizers, set_lr
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import train_step
from glassgpt.weights import Checkpoint, save_checkpoint

MAX_SEQUENCES = 1 << 15  # in a batch
EVALUATIONS = 8  # of the held-out loss during a training


def train_for(
    model: GPT2,
    batches: TaskBatches,
    settings: TrainSettings,
    *,
    seconds: float,
    held_out: list[Batch] | None = None,
    objective: Objective | None = None,
    log: Path | None = None,
    warmup: float = 0.05,
    max_steps: int | None = None,
    on_eval: Callable[[dict[str, Any]], None] = lambda record: None,
) -> list[dict[str, Any]]:
    """Train for some seconds, or for `max_steps` if these are done earlier; the evaluations' records."""
    loss_module = parallelize(model, settings, objective=objective)
    step_with = package_step(loss_module, settings)
    device = model.wte.weight.device

    def evaluate() -> float:
        return evaluate_loss(loss_module, held_out or [], device, ProcessGroup())

    return run_clock(
        batches, step_with, evaluate if held_out else None, seconds=seconds, log=log, warmup=warmup,
        max_steps=max_steps, on_eval=on_eval, device=device,
    )  # fmt: skip


def package_step(loss_module: nn.Module, settings: TrainSettings) -> Callable[[Batch, float], float]:
    """One optimizer step at a fraction of the learning rate, as `glassgpt train` takes it."""
    optimizers = make_optimizers(loss_module.model, settings)
    whole = dataclasses.replace(settings, batch_size=MAX_SEQUENCES)  # a batch is not divided
    micro_batch, group = AutoMicroBatch(whole), ProcessGroup()
    scaler = torch.amp.GradScaler(enabled=False)

    def step(batch: Batch, ratio: float) -> float:
        set_lr(optimizers, ratio)
        loss_module.train()
        loss, _, updated = train_step(batch, loss_module, optimizers, scaler, micro_batch, group)
        if not updated:
            raise SystemExit(f"the loss is {loss}: start again with a lower learning rate")
        return loss

    return step


def run_clock(
    batches: TaskBatches,
    step_with: Callable[[Batch, float], float],
    evaluate: Callable[[], float] | None,
    *,
    seconds: float,
    device: torch.device,
    log: Path | None = None,
    warmup: float = 0.05,
    max_steps: int | None = None,
    on_eval: Callable[[dict[str, Any]], None] = lambda record: None,
) -> list[dict[str, Any]]:
    """The loop: a step, at the learning rate of the time (or of the step, if those are limited)."""
    started, tokens = time.monotonic(), 0
    records: list[dict[str, Any]] = []
    losses: list[float] = []
    next_eval = 1 / EVALUATIONS
    for step, batch in enumerate(batches(0)):
        elapsed = time.monotonic() - started
        done = max(elapsed / seconds, 0.0 if max_steps is None else step / max_steps)
        if done >= next_eval or done >= 1:
            record = {
                "step": step, "seconds": round(elapsed, 1), "tokens": tokens,
                "epochs": round(step / batches.batches_per_epoch, 2),
                "loss": round(float(np.mean([float(one) for one in losses])), 4) if losses else None,
            }  # fmt: skip
            if evaluate is not None:
                record["val_loss"] = round(evaluate(), 4)
            records.append(record)
            losses = []
            next_eval = (math.floor(done * EVALUATIONS) + 1) / EVALUATIONS
            print(json.dumps(record), flush=True)
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            on_eval(record)
        if done >= 1:
            return records
        losses.append(step_with(batch.to(device), ratio_at(done, warmup)))
        tokens += batch.ids.numel()
    raise AssertionError("batches never end")


def ratio_at(done: float, warmup: float) -> float:
    """The learning rate, as a fraction of its peak, when this fraction of the training is done."""
    if done < warmup:
        return max(1e-3, done / warmup)
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


def save_arrays(file: Path, batches: dict[str, TaskBatches]) -> None:
    """Several sets of examples in one file that `np.load` opens, smaller than numpy would make it."""
    arrays = {}
    for name, one in batches.items():
        arrays[f"{name}.flat"] = one.flat.astype(np.uint16)
        arrays[f"{name}.lengths"] = one.lengths.astype(np.uint16)
        arrays[f"{name}.targets"] = one.targets.astype(np.uint16)
        if one.labels is not None:
            arrays[f"{name}.labels"] = one.labels.astype(np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


def load_arrays(file: Path, name: str, keep: np.ndarray | None = None, **options: Any) -> TaskBatches:
    """One set of examples of such a file, or those of them whose numbers are in `keep`."""
    arrays = np.load(file)
    lengths = arrays[f"{name}.lengths"].astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    flat, targets = arrays[f"{name}.flat"], arrays[f"{name}.targets"]
    labels = arrays.get(f"{name}.labels", None)
    if keep is not None:
        flat = np.concatenate([flat[starts[i] : starts[i + 1]] for i in keep])
        starts = np.concatenate([[0], np.cumsum(lengths[keep])])
        targets, labels = targets[keep], None if labels is None else labels[keep]
    return TaskBatches(flat, starts, targets, labels, **options)


def build_model(start: Checkpoint, device: str, dropout: float, seed: int, scratch: bool = False) -> GPT2:
    """The model to tune, or one of the same shape with random weights."""
    torch.manual_seed(seed)
    config = dataclasses.replace(start.config, embd_pdrop=dropout, attn_pdrop=0.0, resid_pdrop=dropout)
    if scratch:
        return GPT2(config).to(device)
    model = load_model(dataclasses.replace(start, config=config), device="cpu", dtype="float32")
    return model.requires_grad_(True).to(device)


def save_model(
    model: GPT2, tokenizer: Tokenizer, out: Path, task: str | None = None, format: str = "packed"
) -> None:
    """Write the model as a folder, by default in the shipped format, with its task and its head."""
    tensors = {name: tensor.float().numpy() for name, tensor in merged_state_dict(model).items()}
    score = tensors.pop("score.weight", None)
    save_checkpoint(
        Checkpoint(model.config, tensors, tokenizer, source=str(out), task=task, score=score), out, format
    )
