"""The training loop: steps, with an evaluation and a checkpoint at regular intervals."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from glassgpt.errors import NonFiniteLossError
from glassgpt.files import atomic_write, wrap_write_errors
from glassgpt.model import GPT2
from glassgpt.model.variants.memory import Memory
from glassgpt.train.checkpoint.asynchronous import AsyncSaver
from glassgpt.train.checkpoint.load import load_run_checkpoint
from glassgpt.train.checkpoint.log import read_log
from glassgpt.train.checkpoint.run_folder import LOG, list_checkpoints, prune_checkpoints, watch_folder
from glassgpt.train.checkpoint.save import Identity, save_run_checkpoint
from glassgpt.train.distributed.parallelize import (
    check_divisible,
    check_mode,
    parallelize,
)
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives.objective import Batch, Objective
from glassgpt.train.optim import make_optimizers, set_lr
from glassgpt.train.precision import compute_dtype
from glassgpt.train.schedule import lr_ratio
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import train_step
from glassgpt.train.variants.stream_memory import StreamMemory

# From a step to the batches from that step on, which depend on nothing else. Rows of context + 1 tokens are
# next-token prediction. Each process gets its own sequences.
Batches = Callable[[int], Iterator[Tensor | Batch]]


def train_loop(
    model: GPT2,
    batches: Batches,
    held_out: Sequence[Tensor | Batch],
    out: Path,
    settings: TrainSettings,
    stop: Callable[[], bool] = lambda: False,
    mesh: DeviceMesh | None = None,
    mode: str = "ddp",
    data: Identity | None = None,
    objective: Objective | None = None,
    restarts: Callable[[int], bool] | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Train until `settings.steps`, resuming from `out` if it has a checkpoint; yields a record for each
    step.

    The records are also appended to `out/log.jsonl`; those of steps that will be repeated are dropped first.
    When `stop()` returns True, the step is finished, everything is saved, and the run can be resumed. With a
    `mesh`, every process calls this and the main one writes. `data` identifies the source of the batches: a
    run is not resumed with other data. The default objective is that of `default_objective`.

    If the rows of a batch continue those of the step before, `restarts(step)` says at which steps they begin
    anew; a model with a memory then remembers the preceding segments, in training and in evaluations.
    """
    check_mode(mode, settings)
    if mesh is not None and mode == "tp":
        check_divisible(model.config, settings.context, mesh["tensor"].size())
    out.mkdir(parents=True, exist_ok=True)
    group = ProcessGroup(mesh, sharded=mode != "ddp")
    loss_module = parallelize(model, settings, mesh, mode, objective)
    optimizers = make_optimizers(model, settings)
    device = model.wte.weight.device
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")
    stream_memory = make_stream_memory(model, settings, restarts, group)
    first, best = load_run_checkpoint(out, model, optimizers, scaler, group, data, stream_memory)
    if first == 0:
        torch.manual_seed(settings.seed + group.rank)  # dropout differs between processes
    if group.is_main:
        truncate_log(out / LOG, first)
        # Checkpoints that the last save had no time to remove: a finished run will never save again.
        prune_checkpoints(out, first, None if best is None else best[1], settings.keep_checkpoints)
    micro_batch = AutoMicroBatch(settings, group.world_size)

    stream = batches(first)
    bad = 0  # consecutive steps without an update
    with watch_folder(out) as check_folder, AsyncSaver() as saver:
        for step in range(first, settings.steps):
            saver.check()
            batch = place_batch(next(stream), settings.batch_size, device, group)
            if stream_memory is not None:
                batch = stream_memory.attach(batch, step)
            started = time.perf_counter()
            set_lr(optimizers, lr_ratio(settings, step))
            loss_module.train()
            loss, norm, updated = train_step(batch, loss_module, optimizers, scaler, micro_batch, group)
            if stream_memory is not None:
                stream_memory.advance(batch)
            # In float16 gradients overflow now and then; the scaler reduces its scale, until it cannot.
            bad = 0 if updated or (math.isfinite(loss) and scaler.get_scale() > 1) else bad + 1
            if bad > settings.skip_bad_steps:
                saver.wait()  # so that the message is right about checkpoints
                raise NonFiniteLossError(describe_non_finite(step + 1, loss, norm, bad, out, settings))
            lr, elapsed = optimizers[0].param_groups[0]["lr"], time.perf_counter() - started
            record = make_record(step + 1, loss, lr, norm, updated, elapsed, settings)
            if micro_batch.settings != settings:  # memory ran out
                settings = micro_batch.settings
                record["micro_batch_size"] = settings.micro_batch_size
            last = step + 1 == settings.steps or group.any(stop())
            if last or (step + 1) % settings.eval_every == 0:
                empty = None if stream_memory is None else stream_memory.empty(len(held_out[0]))
                record["val_loss"] = round(evaluate_loss(loss_module, held_out, device, group, empty), 5)
            check_folder()
            if group.is_main:
                write_record(out / LOG, record)
            if last or (step + 1) % settings.save_every == 0:
                best = save_run_checkpoint(
                    out, model, optimizers, scaler, step + 1, record.get("val_loss"), best,
                    settings.keep_checkpoints, saver, group, data, stream_memory,
                )  # fmt: skip
            if last:
                saver.wait()
                check_folder()
            yield record
            if last:
                return


def make_stream_memory(
    model: GPT2, settings: TrainSettings, restarts: Callable[[int], bool] | None, group: ProcessGroup
) -> StreamMemory | None:
    if restarts is None or not model.config.kind.n_past(model.config):
        return None
    return StreamMemory(model, settings.batch_size, compute_dtype(settings, model), restarts, group)


def place_batch(tokens: Tensor | Batch, batch_size: int, device: torch.device, group: ProcessGroup) -> Batch:
    """This process's part of a batch, on its device; all processes' parts have the same number of rows."""
    batch = as_batch(tokens).to(device)
    if group.data_parallel_size > 1:
        batch = batch.pad(group.local_batch_size(batch_size))
    return batch


def as_batch(tokens: Tensor | Batch) -> Batch:
    return tokens if isinstance(tokens, Batch) else Batch.from_tokens(tokens)


def make_record(
    step: int, loss: float, lr: float, norm: float, updated: bool, elapsed: float, settings: TrainSettings
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step": step,
        "loss": round(loss, 5),
        "lr": lr,
        "grad_norm": round(norm, 4),
        "tokens_per_s": round(settings.batch_size * settings.context / elapsed),
    }
    if not updated:
        record["skipped"] = True
    return record


def describe_non_finite(
    step: int, loss: float, norm: float, bad: int, out: Path, settings: TrainSettings
) -> str:
    steps = f"step {step}" if bad == 1 else f"step {step} ({bad} consecutive bad steps)"
    problem = f"the loss of {steps} is {loss} and its gradient norm {norm}; the weights were not updated."
    skipping = f"--skip-bad-steps {max(3, 2 * bad)}"
    lower = f"start a new run with a lower --lr than {settings.lr}"
    if not list_checkpoints(out):
        return f"{problem} There is no checkpoint yet: {lower}, or with {skipping}."
    return f"{problem} Continue with --resume {skipping}, or {lower} (--init-from {out} keeps its weights)."


def evaluate(
    model: GPT2,
    held_out: Sequence[Tensor | Batch],
    settings: TrainSettings,
    objective: Objective | None = None,
) -> float:
    """The mean loss over the targets of the held-out batches, by one process."""
    loss_module = parallelize(model, settings, objective=objective)
    return evaluate_loss(loss_module, held_out, model.wte.weight.device, ProcessGroup())


@torch.no_grad()
def evaluate_loss(
    loss_module: nn.Module,
    held_out: Sequence[Tensor | Batch],
    device: torch.device,
    group: ProcessGroup,
    memory: Memory | None = None,
) -> float:
    """The mean loss over the targets of the held-out batches, without using the training's random numbers.

    With a `memory`, which must be empty, each batch continues the one before.
    """
    loss_sum, count = 0.0, 0
    with eval_mode(loss_module):
        for tokens in held_out:
            batch = as_batch(tokens)
            local = batch[group.local_sequences(len(batch))].to(device)
            local = local.pad(group.local_batch_size(len(batch)))
            loss, targets = loss_module(*dataclasses.replace(local, memory=memory).inputs)
            memory = None if memory is None else memory.advance(local.ids.shape[1])
            loss_sum += loss.item()
            count += int(targets)
    if isinstance(loss_module, FSDPModule):
        loss_module.reshard()  # after a forward pass without a backward pass nothing else would
    return group.sum(loss_sum) / max(1, group.sum(count))


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def write_record(log: Path, record: dict[str, Any]) -> None:
    """Append a record as a line of JSON, which has no NaN or infinity: they become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    with wrap_write_errors(log), log.open("a") as file:
        file.write(json.dumps(plain) + "\n")


def truncate_log(log: Path, step: int) -> None:
    """Drop the records of steps that will be repeated, and a last line that a kill cut short."""
    if not log.exists():
        return
    lines = [json.dumps(record) + "\n" for record in read_log(log) if record["step"] <= step]
    with atomic_write(log) as part:
        part.write_text("".join(lines), "utf-8")
