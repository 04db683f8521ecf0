"""Fine-tuning for a task: pairs instead of text, the loss on the target only, tokens and a head added.

What `prepare_run` is for a text, `prepare_task_run` is for pairs; the run itself, its evaluations, what it
writes and how it resumes are `finetune_run`'s.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from glassgpt.tasks.classify import classify_task
from glassgpt.tasks.definition import Task
from glassgpt.tasks.encode import Encoder, Example
from glassgpt.tasks.generate import run_task
from glassgpt.tasks.records import Problems, Record, read_records
from glassgpt.tasks.vocabulary import grow_vocabulary
from glassgpt.train.classification import HEAD, Classification, add_head
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.train.environment import pick_precision
from glassgpt.train.estimate import Estimate, estimate_training
from glassgpt.train.finetune.run import (
    FinetuneRun,
    build_model,
    hash_checkpoint,
    measure_loss,
    time_for_training,
)
from glassgpt.train.finetune.settings import choose_settings, fit_to_time, floor_power_of_two, schedule
from glassgpt.train.finetune.state import check_unchanged, damaged_error
from glassgpt.train.objective import Objective
from glassgpt.train.settings import TrainSettings, settings_from_dict
from glassgpt.weights import Checkpoint

TOKENS_PER_STEP = 4096
MIN_STEPS_PER_EPOCH = 16  # with few pairs: fewer, larger steps would learn less
VAL_FRACTION, MAX_VAL_EXAMPLES = 0.1, 500
EPOCHS, MIN_STEPS = 4, 200  # few pairs are seen more often, up to
MAX_EPOCHS = 12


@dataclass(frozen=True)
class TaskData:
    """The pairs of a task as a model reads them."""

    task: Task
    start: Checkpoint  # with the task's tokens
    train: TaskBatches
    valid: TaskBatches
    sample: tuple[str, str | None]  # a held-out source, and its direction
    problems: Problems
    records: int

    @property
    def labels(self) -> int:
        return len(self.task.labels) if self.task.has_head else 0

    def objective(self, model: GPT2, settings: TrainSettings) -> Objective | None:
        """Language modelling on the target, or GPT-1's classification."""
        if not self.task.has_head:
            return None
        assert self.start.tokenizer is not None
        extract = Encoder(self.task, self.start.tokenizer, model.config.n_positions).separator[-1]
        return Classification.from_settings(settings, model, extract, self.task.lm_weight)

    def write_sample(self, model: GPT2, score: np.ndarray | None = None) -> str:
        """What the model makes of a held-out source."""
        source, direction = self.sample
        was = model.training
        try:
            gpt = GPT(TorchBackend(model), self.start.tokenizer, "this model", score=score)
            if self.task.classifies:
                found = classify_task(gpt, self.task, [source])[0]
                made = f"{found.label} ({found.probabilities[found.label]:.0%})"
            else:
                made = run_task(gpt, self.task, [source], direction, seed=1, beams=None)[0].text
        finally:
            model.train(was)
        return f"{source[:200]} → {made}"


def read_task_data(
    checkpoint: Checkpoint, files: Iterable[str | Path], task: Task, seed: int, problems: Problems
) -> TaskData:
    """Read the pairs, report what is wrong with them, hold some out, and encode them all."""
    if checkpoint.tokenizer is None:
        raise SettingError(
            f"{checkpoint.source} has no tokenizer, so no pairs can be read. Use another model."
        )
    start = grow_vocabulary(checkpoint, task.tokens, seed)
    start = dataclasses.replace(start, task=task.text)
    if task.has_head:
        start = with_labels(start, task)
    assert start.tokenizer is not None
    context = min(start.config.n_positions, 1024)
    encoders = [Encoder(task, start.tokenizer, context, d.name) for d in task.directions]
    examples: list[list[tuple[Example, str, str | None]]] = []  # by record
    records = 0
    files = list(files)
    for file in files:
        problems.file = str(file) if len(files) > 1 else ""
        for record in read_records(file):
            records += 1
            made = encode_record(record, encoders, problems)
            if made:
                examples.append(made)
    if len(examples) < 4:
        raise SettingError(
            f"{len(examples)} of {records} records can be used; four are the minimum, some hundred make "
            f"sense. A record needs the fields {needed_fields(task)}."
        )
    order = np.random.default_rng(seed).permutation(len(examples))
    held = max(1, min(int(VAL_FRACTION * len(examples)), MAX_VAL_EXAMPLES))
    valid = [one for i in order[:held] for one in examples[i]]
    train = [one for i in order[held:] for one in examples[i]]
    average = sum(len(one[0].ids) for one in train) / MIN_STEPS_PER_EPOCH
    options = {"tokens_per_batch": int(max(256, min(TOKENS_PER_STEP, average))), "seed": seed}
    return TaskData(
        task, start, TaskBatches.from_examples([one[0] for one in train], **options),
        TaskBatches.from_examples([one[0] for one in valid], **options), valid[0][1:], problems, records,
    )  # fmt: skip


def needed_fields(task: Task) -> str:
    names = dict.fromkeys(name for d in task.directions for name in (d.source, d.target))
    return " and ".join(repr(name) for name in names)


def with_labels(start: Checkpoint, task: Task) -> Checkpoint:
    """The config as transformers reads the classes of a classifier from it."""
    names = dict(enumerate(task.labels))
    kept = {
        **start.config.kept, "id2label": {str(i): name for i, name in names.items()},
        "label2id": {name: i for i, name in names.items()}, "pad_token_id": start.config.eos_token_id,
    }  # fmt: skip
    return dataclasses.replace(start, config=dataclasses.replace(start.config, kept=kept))


def encode_record(
    record: Record, encoders: list[Encoder], problems: Problems
) -> list[tuple[Example, str, str | None]]:
    """The examples of a record, one for each direction; none, and a problem, if something is wrong."""
    made: list[tuple[Example, str, str | None]] = []
    for encoder in encoders:
        direction = encoder.direction
        source = record.text(direction.source, problems)
        target = None if source is None else record.text(direction.target, problems)
        if source is None or target is None:
            return []
        try:
            example = encoder.example(source, target)
        except SettingError as error:
            problems.skip(record.number, str(error).rstrip("."), "with another label")
            return []
        prompt = encoder.prompt(source)
        if prompt.was_cut:
            problems.note(
                record.number,
                f"{direction.source} has {prompt.source_tokens:,} tokens; {prompt.kept_tokens:,} of them fit",
                "cut",
            )
        made.append((example, source, direction.name if direction.name else None))
    return made


def prepare_task_run(
    checkpoint: Checkpoint,
    files: Iterable[str | Path],
    task: Task,
    device: torch.device,
    *,
    lora: bool = False,
    seconds: float = 600.0,
    seed: int = 0,
    saved: Mapping[str, Any] | None = None,
    out: Path | None = None,
    problems: Problems | None = None,
    started: float | None = None,
) -> FinetuneRun:
    """Read the pairs, choose the settings, time a few steps, and measure the loss to start from."""
    started = time.monotonic() if started is None else started
    problems = Problems() if problems is None else problems
    data = read_task_data(checkpoint, files, task, seed, problems)
    identity = {
        "text": data.train.digest + data.valid.digest, "--model": hash_checkpoint(checkpoint), "--lora": lora,
        "--seed": seed, "--task": task.text,
    }  # fmt: skip
    if saved is not None:
        assert out is not None, "a run is resumed from its folder"
        check_unchanged(out, saved["identity"], identity)
        return restore_task_run(data, device, saved, out, seconds, started)
    config = data.start.config
    if device.type == "cpu":  # where attention with dropout is not fused
        config = dataclasses.replace(config, attn_pdrop=0.0)
    settings = choose_task_settings(data, config, lora, pick_precision(device), seed)
    model = build_model(data.start, config, device, lora, seed)
    if data.labels:
        add_head(model, data.labels, seed)
    plan = estimate(model, settings, data)
    objective = data.objective(model, plan.settings)
    windows = list(data.valid.in_order())
    measuring = time.monotonic()
    before = measure_loss(model, windows, plan.settings, objective)
    left = time_for_training(seconds, started, measuring, plan)
    run = FinetuneRun(
        model, data.start, data.train, data.valid, windows, plan.settings, plan, left, before,
        best_loss=before, seconds_total=seconds, identity=identity, objective=objective, data=data,
    )  # fmt: skip
    run.settings = fit_to_time(plan.settings, plan, run.eval_tokens, left)
    return run


def choose_task_settings(
    data: TaskData, config: Config, lora: bool, precision: str, seed: int
) -> TrainSettings:
    """As for a text, with the batches of the pairs."""
    batches = data.train
    most = max(stop - start for start, stop in batches.cuts)
    base = choose_settings(config, int(batches.starts[-1]), lora=lora, precision=precision, seed=seed)
    epoch = batches.batches_per_epoch
    steps = max(EPOCHS * epoch, min(MAX_EPOCHS * epoch, MIN_STEPS))
    batch_size = (
        floor_power_of_two(most) if floor_power_of_two(most) == most else 2 * floor_power_of_two(most)
    )
    return schedule(
        dataclasses.replace(
            base, steps=steps, batch_size=batch_size, micro_batch_size=None,
            context=min(int(batches.lengths.max()), config.n_positions),
        )
    )  # fmt: skip


def estimate(model: GPT2, settings: TrainSettings, data: TaskData) -> Estimate:
    """Time a typical batch. A step reads about as many tokens as `tokens_per_batch`, however long its
    sequences are."""
    batches = data.train
    typical = batches.batch(0).ids
    rows = torch.cat([typical, typical[:, :1]], dim=1)
    plan = estimate_training(model, settings, rows, seconds=1.0)
    return dataclasses.replace(plan, tokens_per_step=batches.mean_tokens)


def restore_task_run(
    data: TaskData, device: torch.device, saved: Mapping[str, Any], out: Path, seconds: float, started: float
) -> FinetuneRun:
    """The run as it was saved."""
    try:
        settings = settings_from_dict(saved["settings"])
        plan = Estimate(**{**saved["plan"], "settings": settings_from_dict(saved["plan"]["settings"])})
        config = Config.from_dict(saved["config"])
        lora, seed = saved["identity"]["--lora"], saved["identity"]["--seed"]
    except (UserError, KeyError, TypeError):
        raise damaged_error(out) from None
    config = dataclasses.replace(config, kept=data.start.config.kept)
    model = build_model(data.start, config, device, lora, seed)
    if data.labels:
        add_head(model, data.labels, seed)
    left = saved["seconds_left"] + (seconds - saved["seconds_total"]) - (time.monotonic() - started)
    before = saved["loss_before"]
    return FinetuneRun(
        model, data.start, data.train, data.valid, list(data.valid.in_order()), settings, plan,
        max(0.0, left), before, best_loss=before, seconds_total=seconds, identity=saved["identity"],
        resumed=True, objective=data.objective(model, settings), data=data,
    )  # fmt: skip


def head_of(model: GPT2) -> np.ndarray | None:
    """The classifier's head, as a checkpoint has it."""
    score = getattr(model, HEAD, None)
    return None if score is None else score.weight.detach().float().cpu().numpy()
