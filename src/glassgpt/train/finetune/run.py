"""One fine-tuning run: prepared, resumed, and trained step by step.

Whenever the validation loss reaches a new low the model is written, so the model on disk is always the best
so far. These evaluations use the training precision (bfloat16 where that is fast); the loss that is reported
at the end is measured in float32, before and after. At each evaluation everything else is saved next to the
output folder: an interrupted run resumes from there, with the same steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glassgpt.backends.torch.backend import load_model
from glassgpt.config import Config
from glassgpt.errors import NonFiniteLossError, SettingError, UserError
from glassgpt.files import atomic_write, lock_folder, recover_interrupted_write
from glassgpt.model import GPT2
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole
from glassgpt.tasks.definition import Task
from glassgpt.tasks.records import Problems
from glassgpt.train.checkpoint.log import read_log
from glassgpt.train.checkpoint.run_folder import LOG, checkpoint_step, list_checkpoints
from glassgpt.train.data.find_files import WHOLE, Reading
from glassgpt.train.data.loader import BatchSource
from glassgpt.train.estimate import Estimate
from glassgpt.train.finetune.settings import eval_seconds, fit_to_time
from glassgpt.train.finetune.state import (
    STATE,
    check_unchanged,
    clear_folder,
    damaged_error,
    remove_state,
    state_folder,
)
from glassgpt.train.finetune.task import read_task_data
from glassgpt.train.finetune.text import read_text_data
from glassgpt.train.layers.lora import (
    adapter_tensors,
    add_lora,
    choose_ranks,
    count_trainable_parameters,
    merged_state_dict,
)
from glassgpt.train.loop import as_batch, evaluate, train_loop
from glassgpt.train.micro_batch import free_memory
from glassgpt.train.objectives.objective import Batch, Objective
from glassgpt.train.report.environment import collect_environment
from glassgpt.train.report.html import REPORT, render_run
from glassgpt.train.settings import TrainSettings, settings_from_dict
from glassgpt.weights import Checkpoint, load_config, save_checkpoint
from glassgpt.weights.adapter import save_adapter
from glassgpt.weights.peft import save_peft
from glassgpt.weights.registry import check_only_model_files

MAX_SECONDS = 60 * 60 * 24 * 366  # a year
PATIENCE = 3  # evaluations without improvement before it stops


class FinetuneData(Protocol):
    """The data to tune a model on: a text (`text.TextData`), or the pairs of a task (`task.TaskData`)."""

    @property
    def start(self) -> Checkpoint: ...  # the model it starts from, with a task's additions
    @property
    def task(self) -> Task | None: ...
    @property
    def train(self) -> Sized: ...
    @property
    def valid(self) -> Sized: ...
    @property
    def unit(self) -> str: ...  # of these lengths: tokens or examples
    @property
    def digest(self) -> str: ...  # changes with any token
    @property
    def notes(self) -> Sequence[str]: ...  # about records that were skipped

    def choose_settings(
        self, config: Config, device: torch.device, lora: bool, seed: int
    ) -> tuple[TrainSettings, Config]: ...  # the config with the dropout that suits them

    def add_head(self, model: GPT2, seed: int) -> None: ...
    def estimate(self, model: GPT2, settings: TrainSettings) -> Estimate: ...
    def batches(self, settings: TrainSettings) -> BatchSource: ...
    def eval_batches(self, plan: Estimate, seconds: float) -> Sequence[Tensor | Batch]: ...
    def objective(self, model: GPT2, settings: TrainSettings) -> Objective | None: ...
    def write_sample(self, model: GPT2, prompt: str | None) -> str: ...


@dataclass
class FinetuneRun:
    """A run that is ready to start, or to be resumed, and its progress."""

    model: GPT2
    data: FinetuneData
    eval_windows: Sequence[Tensor | Batch]
    settings: TrainSettings
    plan: Estimate
    seconds_left: float  # for training and evaluation
    loss_before: float  # validation loss in float32, nats per token
    best_loss: float
    best_step: int = 0
    steps: int = 0
    evals_without_improvement: int = 0
    seconds_total: float = 0.0  # for everything, as requested
    identity: dict[str, Any] = field(default_factory=dict)  # must be the same when it is resumed
    resumed: bool = False
    finished: bool = False  # there is nothing left to resume
    adapter_for: str | None = None  # write only the low-rank changes to this model
    adapter_format: str | None = None  # of the file with them: our own, or peft
    records: list[dict[str, Any]] = field(default_factory=list)  # of all steps, once it has ended

    @property
    def checkpoint(self) -> Checkpoint:
        """The model it starts from."""
        return self.data.start

    @property
    def batches(self) -> BatchSource:
        return self.data.batches(self.settings)

    @property
    def epochs(self) -> float:
        return self.steps * self.plan.tokens_per_step / self.batches.tokens_per_epoch

    @property
    def eval_tokens(self) -> int:
        """Tokens read in each evaluation."""
        return sum(as_batch(batch).ids.numel() for batch in self.eval_windows)

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
        """Whether this is the best so far. Evaluations because of a stop are not counted against it."""
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
        """Save what a resume needs in addition to the checkpoint, such as settings chosen by the clock."""
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
    task: Task | None = None,
    lora: bool = False,
    adapter_format: str | None = None,
    seconds: float = 600.0,
    seed: int = 0,
    saved: Mapping[str, Any] | None = None,
    out: Path | None = None,
    problems: Problems | None = None,
    reading: Reading = WHOLE,
    started: float | None = None,
) -> FinetuneRun:
    """Read the text, or the pairs of a `task`, choose the settings, time a few steps, and measure the loss to
    start from.

    With `saved`, the state of an interrupted run into `out`, all of that is restored instead. `seconds`
    limits the total time, counted from `started` by the monotonic clock.
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
    data: FinetuneData
    if task is None:
        data = read_text_data(checkpoint, files, reading)
    else:
        data = read_task_data(checkpoint, files, task, seed, Problems() if problems is None else problems)
    identity = {
        "text": data.digest, "--model": hash_checkpoint(checkpoint), "--lora": lora, "--seed": seed,
        **({} if task is None else {"--task": task.text}),
        "--format": adapter_format,
    }  # fmt: skip
    if saved is not None:
        assert out is not None, "a run is resumed from its folder"
        check_unchanged(out, saved["identity"], identity)
        return restore_run(data, device, saved, out, seconds, started)
    config = data.start.config
    if device.type == "cpu":  # where attention with dropout is not fused: see `activation_bytes`
        config = dataclasses.replace(config, attn_pdrop=0.0)
    settings, config = data.choose_settings(config, device, lora, seed)
    model = build_model(data, config, device, lora, seed, adapter_format)
    plan = data.estimate(model, settings)
    windows = data.eval_batches(plan, seconds)
    measuring = time.monotonic()
    loss_before = measure_loss(model, windows, plan.settings, data.objective(model, plan.settings))
    seconds_left = time_for_training(seconds, started, measuring, plan)
    run = FinetuneRun(
        model, data, windows, plan.settings, plan, seconds_left, loss_before, best_loss=loss_before,
        seconds_total=seconds, identity=identity,
    )  # fmt: skip
    run.settings = fit_to_time(plan.settings, plan, run.eval_tokens, seconds_left)
    return run


def time_for_training(seconds: float, started: float, measuring: float, plan: Estimate) -> float:
    """The rest of the time limit, at least half of it. The loss, whose first measurement began at
    `measuring`, is measured twice more: when the training stops, and with the written model. The last step
    may begin just before the end."""
    now = time.monotonic()
    return max(0.5 * seconds, seconds - (now - started) - 2 * (now - measuring) - plan.seconds(1))


def restore_run(
    data: FinetuneData,
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
        config = dataclasses.replace(Config.from_dict(saved["config"]), kept=data.start.config.kept)
        windows = data.eval_batches(plan, saved["seconds_total"])
        identity = saved["identity"]
        lora, seed, adapter_format = identity["--lora"], identity["--seed"], identity.get("--format")
    except (UserError, KeyError, TypeError):
        raise damaged_error(out) from None
    model = build_model(data, config, device, lora, seed, adapter_format)
    seconds_left = saved["seconds_left"] + (seconds - saved["seconds_total"]) - (time.monotonic() - started)
    loss_before = saved["loss_before"]
    return FinetuneRun(
        model, data, windows, settings, plan, max(0.0, seconds_left), loss_before,
        best_loss=loss_before,        seconds_total=seconds, identity=saved["identity"], resumed=True,
    )  # fmt: skip


def build_model(
    data: FinetuneData,
    config: Config,
    device: torch.device,
    lora: bool,
    seed: int,
    adapter_format: str | None = None,
) -> GPT2:
    """The model to train, with the dropout of `config`."""
    start = dataclasses.replace(data.start, config=config)
    model = load_model(start, device="cpu", dtype="float32").requires_grad_(True)
    if lora:
        add_lora(model, choose_ranks(config, blocks_only=adapter_format == "peft"), seed)
    model = model.to(device)
    data.add_head(model, seed)
    return model


def hash_checkpoint(checkpoint: Checkpoint) -> str:
    """Identifies a model by its config and some of its vectors; no two trained models share them."""
    digest = hashlib.sha256(json.dumps(checkpoint.config.to_dict()).encode())
    for name in ("wpe.weight", "ln_f.weight", "ln_f.bias"):
        if name not in checkpoint.config.shapes():  # a model with relative positions only
            continue
        digest.update(np.ascontiguousarray(checkpoint.tensors[name], np.float32).tobytes())
    return digest.hexdigest()


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
    settings, device, source = run.settings, run.model.wte.weight.device, run.batches
    folder = state_folder(out)
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder, "tune"))
        recover_interrupted_write(out)
        if not run.resumed:
            clear_folder(folder)
        deadline = time.monotonic() + seconds
        run.save(folder, seconds)

        def batches(first: int) -> Iterator[Tensor | Batch]:
            run.replay_evals(read_log(folder / LOG), first)
            if run.best_step == first > 0:  # a kill may have come between the checkpoint and the model
                write_model(run, out)
            stream: Iterator[Tensor | Batch] = stack.enter_context(source.prefetch(first, device=device))
            return stream

        checkpoints = list_checkpoints(folder)
        run.replay_evals(read_log(folder / LOG), checkpoint_step(checkpoints[-1]) if checkpoints else 0)
        if run.evals_without_improvement < PATIENCE:
            steps = train_loop(
                run.model, batches, run.eval_windows, folder, settings,
                lambda: stop() or time.monotonic() > deadline, data=source.identity,
                objective=run.data.objective(run.model, settings),
            )  # fmt: skip
            with closing(steps):
                yield from write_improvements(run, steps, out, deadline)
        run.records = [record for record in read_log(folder / LOG) if record["step"] > 0]
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
    """Write only the changes, a few megabytes, as a folder that loads like a model."""
    start = run.checkpoint
    base_vocab_size = load_config(base_model).vocab_size
    grown = start.config.vocab_size > base_vocab_size
    check_only_model_files(out)
    if run.adapter_format == "peft":
        changes = adapter_tensors(run.model, base_vocab_size, torch.float32)
        save_peft(changes, base_model, out, start.task)
        return
    save_adapter(
        adapter_tensors(run.model, base_vocab_size), start.config, base_model, out, start.task,
        start.tokenizer if grown else None,
    )  # fmt: skip
