"""One fine-tuning run: prepared, resumed, and trained step by step.

Whenever the validation loss reaches a new low the model is written, so what is on disk is always the best so
far. These evaluations use the training precision (bfloat16 where that is fast); the loss that is reported in
the end is measured in float32, before and after. At each evaluation everything else is saved next to the
output folder: an interrupted run resumes from there, with the same steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glassgpt.backends.torch.backend import load_model
from glassgpt.config import Config
from glassgpt.errors import NonFiniteLossError, SettingError, UserError
from glassgpt.files import atomic_write, lock_folder, recover_interrupted_write
from glassgpt.model import GPT2
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole
from glassgpt.train.checkpoint.records import read_records
from glassgpt.train.checkpoint.run_folder import LOG, checkpoint_step, list_checkpoints
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Split
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.train.environment import collect_environment, pick_precision
from glassgpt.train.estimate import Estimate, estimate_training
from glassgpt.train.finetune.settings import (
    CPU_MICRO_BATCH_TOKENS,
    EPOCHS,
    choose_micro_batch,
    choose_settings,
    eval_seconds,
    fit_to_time,
    make_eval_windows,
    read_tokens,
    sample_windows,
    split_tokens,
)
from glassgpt.train.finetune.state import (
    STATE,
    check_unchanged,
    clear_folder,
    damaged_error,
    remove_state,
    state_folder,
)
from glassgpt.train.loop import as_batch, evaluate, train_loop
from glassgpt.train.lora import (
    adapter_tensors,
    add_lora,
    choose_ranks,
    count_trainable_parameters,
    merged_state_dict,
)
from glassgpt.train.micro_batch import free_memory
from glassgpt.train.objective import Batch, Objective
from glassgpt.train.report.html import REPORT, render_run
from glassgpt.train.settings import TrainSettings, settings_from_dict
from glassgpt.weights import Checkpoint, load_config, save_checkpoint
from glassgpt.weights.adapter import save_adapter
from glassgpt.weights.registry import check_only_model_files

if TYPE_CHECKING:
    from glassgpt.train.finetune.task import TaskData

MAX_SECONDS = 60 * 60 * 24 * 366  # a year
PATIENCE = 3  # evaluations without improvement before it stops


@dataclass
class FinetuneRun:
    """A run that is ready to start, or to be resumed, and its progress."""

    model: GPT2
    checkpoint: Checkpoint  # the model it starts from
    train_split: Split | TaskBatches
    val_split: Split | TaskBatches
    eval_windows: Sequence[Tensor | Batch]
    settings: TrainSettings
    plan: Estimate
    seconds_left: float  # for training and evaluation
    loss_before: float  # validation loss in float32, nats per token
    best_loss: float
    best_step: int = 0
    steps: int = 0
    evals_without_improvement: int = 0
    seconds_total: float = 0.0  # for everything, as asked
    identity: dict[str, Any] = field(default_factory=dict)  # what must be the same to resume it
    resumed: bool = False
    finished: bool = False  # there is nothing left to resume
    objective: Objective | None = None  # language modeling unless given
    data: TaskData | None = None  # of a task
    adapter_for: str | None = None  # the model whose low-rank changes alone are written
    records: list[dict[str, Any]] = field(default_factory=list)  # of all steps, once it has ended

    @property
    def epochs(self) -> float:
        if isinstance(self.train_split, TaskBatches):
            return self.steps / self.train_split.batches_per_epoch
        return self.steps * self.plan.tokens_per_step / len(self.train_split)

    @property
    def train_tokens(self) -> int:
        """Tokens of an epoch."""
        if isinstance(self.train_split, TaskBatches):
            return self.train_split.batches_per_epoch * self.plan.tokens_per_step
        return len(self.train_split)

    @property
    def eval_tokens(self) -> int:
        """Tokens read in each evaluation."""
        return sum(as_batch(batch).ids.numel() for batch in self.eval_windows)

    def loader(self) -> Loader | TaskBatches:
        if isinstance(self.train_split, TaskBatches):
            return self.train_split
        settings = self.settings
        return Loader(self.train_split, settings.context, settings.batch_size, settings.seed)

    @property
    def trained_parameters(self) -> int:
        return count_trainable_parameters(self.model)

    @property
    def expected_seconds(self) -> float:
        """Time for training and evaluation, as far as the trial can tell."""
        evals = self.settings.steps // self.settings.eval_every
        return self.plan.seconds(self.settings.steps) + evals * eval_seconds(self.plan, self.eval_tokens)

    @property
    def exceeds_memory(self) -> bool:
        free = free_memory(self.model.wte.weight.device)
        return self.plan.memory > free + self.plan.weights

    def record_eval(self, step: int, val_loss: float) -> bool:
        """Whether this is the best so far. An evaluation because of a stop does not count against it."""
        scheduled = step % self.settings.eval_every == 0 or step == self.settings.steps
        self.evals_without_improvement += scheduled and step > self.settings.warmup_steps
        if val_loss >= self.best_loss:
            return False
        self.best_loss, self.best_step, self.evals_without_improvement = val_loss, step, 0
        return True

    def replay_evals(self, records: Iterable[Mapping[str, Any]], upto: int) -> None:
        """Restore the progress up to a step from the log."""
        self.best_loss, self.best_step = self.loss_before, 0
        self.evals_without_improvement, self.steps = 0, upto
        for record in records:
            if record["step"] <= upto and isinstance(record.get("val_loss"), float):
                self.record_eval(record["step"], record["val_loss"])

    def save(self, folder: Path, seconds_left: float) -> None:
        """What a resume needs besides the checkpoint: settings chosen by the clock would differ next time."""
        values = {
            "identity": self.identity, "config": self.model.config.to_dict(), "loss_before": self.loss_before,
            "settings": self.settings.to_dict(), "plan": dataclasses.asdict(self.plan),
            "seconds_total": float(self.seconds_total), "seconds_left": max(0.0, float(seconds_left)),
        }  # fmt: skip
        with atomic_write(folder / STATE) as part:
            part.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def prepare_run(
    checkpoint: Checkpoint,
    files: Iterable[str | Path],
    device: torch.device,
    *,
    lora: bool = False,
    seconds: float = 600.0,
    seed: int = 0,
    saved: Mapping[str, Any] | None = None,
    out: Path | None = None,
    started: float | None = None,
) -> FinetuneRun:
    """Read the text, choose the settings, time a few steps, and measure the loss to start from.

    With `saved`, the state of an interrupted run into `out`, all of that is restored instead. The time since
    `started`, by the monotonic clock, counts: `seconds` are for everything.
    """
    check_number("seconds", seconds, 0, MAX_SECONDS, "600 is usual", above=True)
    check_whole("seed", seed, 0, TRAINING_SEEDS)
    if checkpoint.tokenizer is None:
        why_not = checkpoint.notes.get("tokenizer")
        reason = "has no tokenizer" if why_not is None else f"has no tokenizer that can be read ({why_not})"
        raise SettingError(
            f"{checkpoint.source} {reason}, so no text can be tokenized. Use a model folder with a tokenizer."
        )
    started = time.monotonic() if started is None else started
    config = checkpoint.config
    if device.type == "cpu":  # where attention with dropout is not fused: see `activation_bytes`
        config = dataclasses.replace(config, attn_pdrop=0.0)
    tokens = read_tokens(files, checkpoint.tokenizer)
    tokens.check_ids(config.vocab_size)
    train_split, val_split = split_tokens(tokens, min(config.n_positions, 1024))
    identity = {
        "text": tokens.identity, "--model": hash_checkpoint(checkpoint), "--lora": lora, "--seed": seed
    }  # fmt: skip
    if saved is not None:
        assert out is not None, "a run is resumed from its folder"
        check_unchanged(out, saved["identity"], identity)
        return restore_run(checkpoint, train_split, val_split, device, saved, out, seconds, started)
    settings = choose_settings(
        config, len(train_split), lora=lora, precision=pick_precision(device), seed=seed
    )
    if settings.steps * settings.batch_size * settings.context <= EPOCHS * len(train_split):
        # Too few epochs to overfit; dropout would only slow the training down.
        config = dataclasses.replace(config, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    model = build_model(checkpoint, config, device, lora, seed)
    max_tokens = CPU_MICRO_BATCH_TOKENS if device.type == "cpu" else math.inf
    settings = choose_micro_batch(settings, config, free_memory(device), max_tokens)
    plan = estimate_training(
        model, settings, Loader(train_split, settings.context, settings.batch_size, seed).batch(0)
    )
    windows = sample_windows(make_eval_windows(val_split, plan.settings), plan, seconds)
    measuring = time.monotonic()
    before = measure_loss(model, windows, plan.settings)
    left = time_for_training(seconds, started, measuring, plan)
    run = FinetuneRun(
        model, checkpoint, train_split, val_split, windows, settings, plan, left, before, best_loss=before,
        seconds_total=seconds, identity=identity,
    )  # fmt: skip
    run.settings = fit_to_time(plan.settings, plan, run.eval_tokens, left)
    return run


def time_for_training(seconds: float, started: float, measuring: float, plan: Estimate) -> float:
    """What is left of the time limit, at least half of it. The loss, whose first measurement began at
    `measuring`, is measured twice more: when the training stops, and of the written model. The last step may
    begin a moment before the end."""
    now = time.monotonic()
    return max(0.5 * seconds, seconds - (now - started) - 2 * (now - measuring) - plan.seconds(1))


def restore_run(
    checkpoint: Checkpoint,
    train_split: Split,
    val_split: Split,
    device: torch.device,
    saved: Mapping[str, Any],
    out: Path,
    seconds: float,
    started: float,
) -> FinetuneRun:
    """The run as it was saved. The time used until then counts, and so does the time since `started`."""
    try:
        settings = settings_from_dict(saved["settings"])
        plan = Estimate(**{**saved["plan"], "settings": settings_from_dict(saved["plan"]["settings"])})
        config = Config.from_dict(saved["config"])
        windows = sample_windows(make_eval_windows(val_split, plan.settings), plan, saved["seconds_total"])
        lora, seed = saved["identity"]["--lora"], saved["identity"]["--seed"]
    except (UserError, KeyError, TypeError):
        raise damaged_error(out) from None
    model = build_model(checkpoint, config, device, lora, seed)
    left = saved["seconds_left"] + (seconds - saved["seconds_total"]) - (time.monotonic() - started)
    before = saved["loss_before"]
    return FinetuneRun(
        model, checkpoint, train_split, val_split, windows, settings, plan, max(0.0, left), before,
        best_loss=before, seconds_total=seconds, identity=saved["identity"], resumed=True,
    )  # fmt: skip


def build_model(checkpoint: Checkpoint, config: Config, device: torch.device, lora: bool, seed: int) -> GPT2:
    """The model to train, with the dropout of `config`."""
    start = dataclasses.replace(checkpoint, config=config)
    model = load_model(start, device="cpu", dtype="float32").requires_grad_(True)
    if lora:
        add_lora(model, choose_ranks(config), seed)
    return model.to(device)


def hash_checkpoint(checkpoint: Checkpoint) -> str:
    """Identifies a model by its config and some of its vectors; no two trained models share them."""
    made = hashlib.sha256(json.dumps(checkpoint.config.to_dict()).encode())
    for name in ("wpe.weight", "ln_f.weight", "ln_f.bias"):
        if name not in checkpoint.config.shapes():  # a model with relative positions only
            continue
        made.update(np.ascontiguousarray(checkpoint.tensors[name], np.float32).tobytes())
    return made.hexdigest()


def measure_loss(
    model: GPT2,
    windows: Sequence[Tensor | Batch],
    settings: TrainSettings,
    objective: Objective | None = None,
) -> float:
    """The validation loss in float32, whatever the training precision."""
    return evaluate(model, windows, dataclasses.replace(settings, precision="float32"), objective)


def train_run(
    run: FinetuneRun, out: Path, seconds: float, stop: Callable[[], bool] = lambda: False
) -> Iterator[dict[str, Any]]:
    """Train, and write the model to `out` whenever it is the best so far; yields a record per step.

    It ends when the steps are done, the time is over, or the validation loss has not improved for some time.
    `out` is not written if the loss never improved. After `stop()`, a kill or an error, everything needed to
    resume stays next to `out`.
    """
    settings, device = run.settings, run.model.wte.weight.device
    loader = run.loader()
    folder = state_folder(out)
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder, "tune"))
        recover_interrupted_write(out)
        if not run.resumed:
            clear_folder(folder)
        deadline = time.monotonic() + seconds
        run.save(folder, seconds)

        def batches(first: int) -> Iterator[Tensor | Batch]:
            run.replay_evals(read_records(folder / LOG), first)
            if run.best_step == first > 0:  # a kill may have come between the checkpoint and the model
                write_model(run, out)
            stream: Iterator[Tensor | Batch] = stack.enter_context(loader.prefetch(first, device=device))
            return stream

        found = list_checkpoints(folder)
        run.replay_evals(read_records(folder / LOG), checkpoint_step(found[-1]) if found else 0)
        if run.evals_without_improvement < PATIENCE:
            steps = train_loop(
                run.model, batches, run.eval_windows, folder, settings,
                lambda: stop() or time.monotonic() > deadline, data=loader.identity,
                objective=run.objective,
            )  # fmt: skip
            with closing(steps):
                yield from write_improvements(run, steps, out, deadline)
        run.records = [record for record in read_records(folder / LOG) if record["step"] > 0]
        done = run.steps >= settings.steps or run.evals_without_improvement >= PATIENCE
        if done or not stop():
            run.finished = True
            remove_state(folder)


def write_improvements(
    run: FinetuneRun, records: Iterable[dict[str, Any]], out: Path, deadline: float
) -> Iterator[dict[str, Any]]:
    """Pass the records on, and write the model at each new best."""
    try:
        for record in records:
            run.steps = record["step"]
            if "micro_batch_size" in record:  # memory ran out
                run.settings = dataclasses.replace(run.settings, micro_batch_size=record["micro_batch_size"])
            if "val_loss" in record:
                if run.record_eval(run.steps, record["val_loss"]):
                    write_model(run, out)
                run.save(state_folder(out), deadline - time.monotonic())
            yield record
            if run.evals_without_improvement >= PATIENCE:
                return
    except NonFiniteLossError as error:
        remove_state(state_folder(out))  # a resume would end the same way
        written = "nothing was written" if run.best_step == 0 else f"the best model so far is in {out}"
        raise NonFiniteLossError(
            f"{str(error).partition(';')[0]}; {written}. Try another --seed, or another --model."
        ) from None


def write_model(run: FinetuneRun, out: Path) -> None:
    """Write the current model as a folder that `generate` and Hugging Face load."""
    if run.adapter_for is not None:
        write_adapter(run, run.adapter_for, out)
        return
    tensors = {name: tensor.numpy() for name, tensor in merged_state_dict(run.model).items()}
    start, score = run.checkpoint, tensors.pop("score.weight", None)
    save_checkpoint(
        Checkpoint(start.config, tensors, start.tokenizer, source=str(out), task=start.task, score=score), out
    )


def write_tune_report(run: FinetuneRun, out: Path, samples: Sequence[Mapping[str, Any]]) -> Path | None:
    """log.jsonl and report.html in the folder of the tuned model, as a training run has them."""
    if not run.records:
        return None
    device = run.model.wte.weight.device
    began = {"step": 0, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    environment = {**began, **collect_environment(device), **run.plan.peak}
    page = render_run(
        out.resolve().name, run.records, run.settings.to_dict(), run.checkpoint.config, samples, [environment]
    )
    lines = "".join(json.dumps(record) + "\n" for record in run.records)
    for name, text in ((LOG, lines), (REPORT, page)):
        with atomic_write(out / name) as part:
            part.write_text(text, "utf-8")
    return out / REPORT


def write_adapter(run: FinetuneRun, base_model: str, out: Path) -> None:
    """Write what was changed, a few megabytes, as a folder that loads like a model."""
    start = run.checkpoint
    base_vocab_size = load_config(base_model).vocab_size
    grown = start.config.vocab_size > base_vocab_size
    check_only_model_files(out)
    save_adapter(
        adapter_tensors(run.model, base_vocab_size), start.config, base_model, out, start.task,
        start.tokenizer if grown else None,
    )  # fmt: skip
