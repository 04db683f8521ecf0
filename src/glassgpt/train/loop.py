"""The loop: show a batch, measure the surprise, move the weights a little; now and then look and save."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from glassgpt.errors import NonFiniteLossError
from glassgpt.files import atomic_write, wrap_write_errors
from glassgpt.model import GPT2
from glassgpt.train.checkpoint.asynchronous import AsyncSaver
from glassgpt.train.checkpoint.load import load_run_checkpoint
from glassgpt.train.checkpoint.records import read_records
from glassgpt.train.checkpoint.run_folder import LOG, list_checkpoints, prune_checkpoints, watch_folder
from glassgpt.train.checkpoint.save import Identity, save_run_checkpoint
from glassgpt.train.distributed.parallelize import check_division, check_plan
from glassgpt.train.distributed.process_group import Team
from glassgpt.train.loss import IGNORED
from glassgpt.train.memory import Pieces, rows_at_once
from glassgpt.train.optim import make_optimizers, set_rate
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import Way

# The batches of (rows, context + 1) ids from a step on: a function of that step and nothing else. Of many
# processes each has its own rows.
Batches = Callable[[int], Iterator[Tensor]]


def train(
    model: GPT2,
    batches: Batches,
    held_out: Sequence[Tensor],
    out: Path,
    settings: TrainSettings,
    stop: Callable[[], bool] = lambda: False,
    mesh: DeviceMesh | None = None,
    plan: str = "ddp",
    data: Identity | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Train until `settings.steps`, going on from `out` if a run is saved there; a record for each step.

    The records are also appended to `out/log.jsonl`; those of steps that a kill undid are dropped first.
    When `stop()` says so, the step is finished, everything saved, and the run can go on later. With a `mesh`
    of processes all of them call this; the first one writes. `data` says what the batches are made of: a run
    does not go on with others than it began with.
    """
    check_plan(plan, settings)
    if mesh is not None and plan == "tp":
        check_division(model.config, settings.context, mesh["tensor"].size())
    out.mkdir(parents=True, exist_ok=True)
    team = Team(model, mesh, plan, Way.of(settings, model, alone=mesh is None))
    optimizers = make_optimizers(model, settings)
    device = model.wte.weight.device
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")
    first, best = load_run_checkpoint(out, model, optimizers, scaler, team, data)
    if first == 0:
        torch.manual_seed(settings.seed + team.rank)  # each process drops out other numbers
    log = out / LOG
    if team.leads:
        keep_log_until(log, first)
        # Those that the last save had no time to remove: a run that is finished will never save again.
        prune_checkpoints(out, first, None if best is None else best[1], settings.keep)
    pieces = Pieces(settings, team.world)

    stream = batches(first)
    bad = 0  # steps in a row that moved nothing
    with watch_folder(out) as check_folder, AsyncSaver() as saver:
        for step in range(first, settings.steps):
            saver.check()
            batch = next(stream)
            begun = time.perf_counter()
            set_rate(optimizers, settings.rate(step))
            model.train()
            loss, norm, moved = update(batch.to(device), optimizers, scaler, pieces, team)
            # In float16 gradients overflow now and then; the scaler makes them smaller, until it cannot.
            bad = 0 if moved or (math.isfinite(loss) and scaler.get_scale() > 1) else bad + 1
            if bad > settings.skip_bad_steps:
                saver.wait()  # so that what is said of checkpoints is true
                raise NonFiniteLossError(not_finite(step + 1, loss, norm, bad, out, settings))
            record: dict[str, Any] = {
                "step": step + 1,
                "loss": round(loss, 5),
                "lr": optimizers[0].param_groups[0]["lr"],
                "grad_norm": round(norm, 4),
                "tokens_per_s": round(settings.rows * settings.context / (time.perf_counter() - begun)),
            }
            if not moved:
                record["skipped"] = True
            if pieces.settings != settings:  # memory ran out
                settings = pieces.settings
                record["micro_rows"] = settings.micro_rows
            last = step + 1 == settings.steps or team.any(stop())
            if last or (step + 1) % settings.eval_every == 0:
                record["val_loss"] = round(evaluate(model, held_out, settings, team), 5)
            check_folder()
            if team.leads:
                write_record(log, record)
            if last or (step + 1) % settings.save_every == 0:
                best = save_run_checkpoint(
                    out, model, optimizers, scaler, step + 1, record.get("val_loss"), best, settings.keep,
                    saver, team, data,
                )  # fmt: skip
            if last:
                saver.wait()
                check_folder()
            yield record
            if last:
                return


def update(
    batch: Tensor,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    pieces: Pieces,
    team: Team,
) -> tuple[float, float, bool]:
    """Learn from a batch: the loss, the norm of its gradient, and whether the weights were moved.

    They are not if either is no finite number. Both are the same in all processes, so all decide alike.
    """
    with repeatable(pieces.settings.deterministic):
        mean_loss, tokens = pieces.attempt(team.surprise, lambda now: learn(batch, now, scaler, team))
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        seen = torch.stack([mean_loss, team.mean_and_clip(tokens, pieces.settings.clip)])
        if seen.is_cuda and team.mesh is None and not scaler.is_enabled() and all(map(can_skip, optimizers)):
            # While the CPU waits for these numbers a GPU would stand still. So the optimizers are told first,
            # and that they shall leave the weights as they are if one of the numbers is not finite.
            told = Told(seen)
            for optimizer in optimizers:
                optimizer.found_inf = 1 - seen.isfinite().all().float()  # type: ignore[attr-defined]
                optimizer.step()
            loss, norm = told.read()
            moved = math.isfinite(loss) and math.isfinite(norm)
        else:
            loss, norm = seen.tolist()
            moved = math.isfinite(loss) and math.isfinite(norm)
            for optimizer in optimizers if moved else ():
                scaler.step(optimizer)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        scaler.update()
    return loss, norm, moved


def can_skip(optimizer: Optimizer) -> bool:
    """Whether it heeds `found_inf`, a number on the GPU: torch's fused ones do, for the sake of float16."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


class Told:
    """A GPU's numbers on their way to the CPU. To read them is to wait for them, not for what comes after."""

    def __init__(self, numbers: Tensor) -> None:
        self.here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self.here.copy_(numbers, non_blocking=True)
        self.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.arrived.record()

    def read(self) -> list[float]:
        self.arrived.synchronize()
        numbers: list[float] = self.here.tolist()
        return numbers


def not_finite(step: int, loss: float, norm: float, bad: int, out: Path, settings: TrainSettings) -> str:
    steps = f"step {step}" if bad == 1 else f"step {step} (bad steps in a row: {bad})"
    what = f"the loss of {steps} is {loss}, its gradient's norm {norm}; the weights were not moved."
    skipping = f"--skip-bad-steps {max(3, 2 * bad)}"
    lower = f"begin anew with a lower --lr than {settings.lr}"
    if not list_checkpoints(out):
        return f"{what} Nothing was saved before it: {lower}, or with {skipping}."
    return f"{what} Go on with --resume {skipping}, or {lower} (--start {out} keeps what was learned)."


def learn(
    batch: Tensor, settings: TrainSettings, scaler: torch.amp.GradScaler, team: Team
) -> tuple[Tensor, Tensor]:
    """Put the gradient of the batch's summed loss into the parameters.

    Returns the loss in nats per token and the number of tokens, of all micro-batches and processes. The sum
    is divided by the tokens once, after everything is added up: so it is the mean over an update however it
    was divided, and a token's gradient is the same size in a batch of any size, which low precision needs.
    """
    micro = rows_at_once(settings)
    inputs, targets = team.evened(batch, settings.rows)  # (B, T) each
    tokens = team.total((targets != IGNORED).sum())
    total = torch.zeros((), device=batch.device)
    parts = list(zip(inputs.split(micro), targets.split(micro), strict=True))  # type: ignore[no-untyped-call]
    for number, (ids, wanted) in enumerate(parts, start=1):
        with team.accumulating(more=number < len(parts)):
            loss = team.surprise(ids, wanted)
            # The wrappers take the mean over the groups of gradients whose sum is wanted.
            scaler.scale(loss * team.groups).backward()
        total = total + loss.detach()
    return team.total(total) / tokens, tokens


@torch.no_grad()
def evaluate(
    model: GPT2, held_out: Sequence[Tensor], settings: TrainSettings, team: Team | None = None
) -> float:
    """The mean loss on the same held-out windows every time; draws no random number of the training's."""
    team = Team(model, way=Way.of(settings, model)) if team is None else team
    device = model.wte.weight.device
    total, tokens = 0.0, 0
    with evaluating(model):
        for batch in held_out:
            ids, wanted = team.evened(team.mine(batch).to(device), len(batch))
            total += team.surprise(ids, wanted).item()
            tokens += batch[:, 1:].numel()
    team.evaluated()
    return team.sum(total) / tokens


@contextmanager
def repeatable(wanted: bool) -> Iterator[None]:
    """On a GPU sums may be added up in any order unless torch is told otherwise, which is slower."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch insists
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def evaluating(model: GPT2) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def write_record(log: Path, record: dict[str, Any]) -> None:
    """As a line of JSON, which has no word for NaN and infinity: they become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    with wrap_write_errors(log), log.open("a") as file:
        file.write(json.dumps(plain) + "\n")


def keep_log_until(log: Path, step: int) -> None:
    """Drop the records of steps that will be done again, and a line that a kill cut in two."""
    if not log.exists():
        return
    kept = [json.dumps(record) + "\n" for record in read_records(log) if record["step"] <= step]
    with atomic_write(log) as part:
        part.write_text("".join(kept), "utf-8")
