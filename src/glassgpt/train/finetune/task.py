"""Fine-tuning for a task: pairs instead of text, a loss on the target only, added tokens and a head.

`TaskData` is to pairs what `text.TextData` is to a text; `run.py` does the rest for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from glassgpt.tasks.classify import classify_task
from glassgpt.tasks.definition import Task
from glassgpt.tasks.encode import Encoder, Example
from glassgpt.tasks.generate import run_task
from glassgpt.tasks.records import Problems, Record, read_records
from glassgpt.tasks.vocabulary import grow_vocabulary
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.train.estimate import Estimate, estimate_training
from glassgpt.train.finetune.settings import choose_settings, floor_power_of_two, schedule
from glassgpt.train.objectives.classification import HEAD, Classification, add_head
from glassgpt.train.objectives.objective import Batch, Objective
from glassgpt.train.precision import pick_precision
from glassgpt.train.settings import TrainSettings
from glassgpt.weights import Checkpoint

TOKENS_PER_STEP = 4096
MIN_STEPS_PER_EPOCH = 16  # with few pairs: fewer, larger steps would learn less
VAL_FRACTION, MAX_VAL_EXAMPLES = 0.1, 500
EPOCHS, MIN_STEPS = 4, 200  # fewer pairs are seen more often, MAX_EPOCHS times at most
MAX_EPOCHS = 12


@dataclass(frozen=True)
class TaskData:
    """The pairs of a task as a model reads them, as `run.FinetuneData`."""

    task: Task
    start: Checkpoint  # with the tokens and the classes of the task
    train: TaskBatches
    valid: TaskBatches
    sample: tuple[str, str | None]  # a held-out source, and its direction
    problems: Problems
    records: int
    unit: str = "examples"

    @property
    def digest(self) -> str:
        return self.train.digest + self.valid.digest

    @property
    def notes(self) -> Sequence[str]:
        summary = self.problems.summary(self.records)
        return () if summary is None else (summary,)

    def choose_settings(
        self, config: Config, device: torch.device, lora: bool, seed: int
    ) -> tuple[TrainSettings, Config]:
        return choose_task_settings(self.train, config, lora, pick_precision(device), seed), config

    def add_head(self, model: GPT2, seed: int) -> None:
        if self.task.has_head:
            add_head(model, len(self.task.labels), seed)

    def estimate(self, model: GPT2, settings: TrainSettings) -> Estimate:
        """Time a typical batch. A step reads about `tokens_per_batch` tokens, however long its sequences
        are."""
        typical = self.train.batch(0).ids
        rows = torch.cat([typical, typical[:, :1]], dim=1)
        plan = estimate_training(model, settings, rows, seconds=1.0)
        return dataclasses.replace(plan, tokens_per_step=self.train.mean_tokens)

    def batches(self, settings: TrainSettings) -> TaskBatches:
        return self.train

    def eval_batches(self, plan: Estimate, seconds: float) -> list[Batch]:
        return self.valid.in_order()

    def objective(self, model: GPT2, settings: TrainSettings) -> Objective | None:
        """Language modeling on the target, or GPT-1's classification."""
        if not self.task.has_head:
            return None
        assert self.start.tokenizer is not None
        extract = Encoder(self.task, self.start.tokenizer, model.config.n_positions).separator[-1]
        return Classification.from_settings(settings, model, extract, self.task.lm_weight)

    def write_sample(self, model: GPT2, prompt: str | None) -> str:
        """The model's output for a held-out source."""
        source, direction = self.sample
        was_training = model.training
        try:
            gpt = GPT(TorchBackend(model), self.start.tokenizer, "this model", classifier=head_of(model))
            if self.task.classifies:
                result = classify_task(gpt, self.task, [source])[0]
                output = f"{result.label} ({result.probabilities[result.label]:.0%})"
            else:
                output = run_task(gpt, self.task, [source], direction, seed=1, beams=None)[0].text
        finally:
            model.train(was_training)
        return f"{source[:200]} → {output}"


def read_task_data(
    checkpoint: Checkpoint, files: Iterable[str | Path], task: Task, seed: int, problems: Problems
) -> TaskData:
    """Read the pairs, report those that cannot be used, hold some out, and encode them all."""
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
            encoded = encode_record(record, encoders, problems)
            if encoded:
                examples.append(encoded)
    if len(examples) < 4:
        raise SettingError(
            f"{len(examples)} of {records} records can be used; at least four are needed, and a few hundred "
            f"are recommended. A record needs the fields {needed_fields(task)}."
        )
    order = np.random.default_rng(seed).permutation(len(examples))
    n_valid = max(1, min(int(VAL_FRACTION * len(examples)), MAX_VAL_EXAMPLES))
    valid = [encoded for i in order[:n_valid] for encoded in examples[i]]
    train = [encoded for i in order[n_valid:] for encoded in examples[i]]
    average = sum(len(example.ids) for example, _, _ in train) / MIN_STEPS_PER_EPOCH
    options = {"tokens_per_batch": int(max(256, min(TOKENS_PER_STEP, average))), "seed": seed}
    return TaskData(
        task, start, TaskBatches.from_examples([example for example, _, _ in train], **options),
        TaskBatches.from_examples([example for example, _, _ in valid], **options), valid[0][1:],
        problems, records,
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
    examples: list[tuple[Example, str, str | None]] = []
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
        examples.append((example, source, direction.name if direction.name else None))
    return examples


def choose_task_settings(
    batches: TaskBatches, config: Config, lora: bool, precision: str, seed: int
) -> TrainSettings:
    """The settings for a text, with the batches of the pairs."""
    largest_batch = max(stop - start for start, stop in batches.cuts)
    base = choose_settings(config, int(batches.starts[-1]), lora=lora, precision=precision, seed=seed)
    epoch = batches.batches_per_epoch
    steps = max(EPOCHS * epoch, min(MAX_EPOCHS * epoch, MIN_STEPS))
    batch_size = floor_power_of_two(largest_batch)
    if batch_size < largest_batch:
        batch_size *= 2
    return schedule(
        dataclasses.replace(
            base, steps=steps, batch_size=batch_size, micro_batch_size=None,
            context=min(int(batches.lengths.max()), config.n_positions),
        )
    )  # fmt: skip


def head_of(model: GPT2) -> np.ndarray | None:
    """The classifier's head, as a checkpoint has it."""
    score = getattr(model, HEAD, None)
    return None if score is None else score.weight.detach().float().cpu().numpy()
