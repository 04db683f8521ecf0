"""The loop: show a batch, measure the surprise, move the weights a little; now and then look and save."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from glassgpt.errors import UserError
from glassgpt.model import GPT2
from glassgpt.train.data import Tokens
from glassgpt.train.optim import make_optimizers, schedule
from glassgpt.train.run import load_run, save_run


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    steps: int
    rows: int = 16  # windows in a step
    context: int = 256  # tokens in a window
    lr: float = 1e-3  # AdamW's
    muon_lr: float | None = None  # set it to move the blocks' matrices by Muon
    weight_decay: float = 0.1
    warmup: int = 100
    clip: float = 1.0
    bf16: bool = False
    seed: int = 0
    eval_every: int = 200
    eval_rows: int = 64
    save_every: int = 200


class NonFiniteLossError(UserError):
    """The loss became NaN or infinite; the weights were not moved."""

    exit_code = 3


def train(
    model: GPT2, data: Tokens, held_out: Tokens, out: Path, settings: TrainSettings
) -> Iterator[dict[str, Any]]:
    """Train until `settings.steps`, going on from `out` if a run is saved there; a record for each step.

    The records are also appended to `out/log.jsonl`; those of steps that a kill undid are dropped first.
    """
    out.mkdir(parents=True, exist_ok=True)
    optimizers = make_optimizers(model, settings.lr, settings.weight_decay, settings.muon_lr)
    first = load_run(out, model, optimizers)
    if first == 0:
        torch.manual_seed(settings.seed)
    log = out / "log.jsonl"
    keep_log_until(log, first)
    device = model.wte.weight.device

    for step in range(first, settings.steps):
        begun = time.perf_counter()
        batch = data.batch(settings.seed, step, settings.rows, settings.context).to(device)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * schedule(step, settings.steps, settings.warmup)
        model.train()
        loss = mean_loss(model, batch, settings.bf16)
        if not math.isfinite(loss.item()):
            raise NonFiniteLossError(
                f"the loss of step {step} is {loss.item()}; the weights were not moved. "
                f"Go on from {out} with a lower learning rate than {settings.lr}."
            )
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        record: dict[str, Any] = {
            "step": step + 1,
            "loss": round(loss.item(), 5),
            "lr": optimizers[0].param_groups[0]["lr"],
            "grad_norm": round(norm.item(), 4),
            "tokens_per_s": round(batch[:, 1:].numel() / (time.perf_counter() - begun)),
        }
        last = step + 1 == settings.steps
        if last or (step + 1) % settings.eval_every == 0:
            record["val_loss"] = round(evaluate(model, held_out, settings), 5)
        with log.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if last or (step + 1) % settings.save_every == 0:
            save_run(out, model, optimizers, step + 1)
        yield record


def mean_loss(model: GPT2, batch: torch.Tensor, bf16: bool) -> torch.Tensor:
    """How surprised the model is by each next token, on average, in nats."""
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=bf16):
        logits = model(batch[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: GPT2, held_out: Tokens, settings: TrainSettings) -> float:
    """The mean loss on the same held-out windows every time; draws no random number of the training's."""
    with evaluating(model):
        total, windows = 0.0, 0
        for index in range(0, settings.eval_rows, settings.rows):
            rows = min(settings.rows, settings.eval_rows - index)
            batch = held_out.batch(2**32 - 1, index, rows, settings.context).to(model.wte.weight.device)
            total += mean_loss(model, batch, settings.bf16).item() * rows
            windows += rows
    return total / windows


@contextmanager
def evaluating(model: GPT2) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def keep_log_until(log: Path, step: int) -> None:
    """Drop the records of steps that will be done again, and a line that a kill cut in two."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text("utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if record["step"] <= step:
            kept.append(line + "\n")
    log.write_text("".join(kept), "utf-8")
