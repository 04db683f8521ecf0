"""`glassgpt.train`: from options to a trained model in a run's folder."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from glassgpt.backends.torch.backend import choose_device
from glassgpt.config import Config
from glassgpt.config.variants import VariantOptions
from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import atomic_write, expand_user, lock_folder
from glassgpt.model import GPT2
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_number, check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.tokenizer.events import NamedTokenizer
from glassgpt.train.checkpoint.run_folder import read_run_config
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import (
    INDEX,
    Shards,
    Split,
    check_hashes,
    open_splits,
)
from glassgpt.train.distributed.parallelize import check_mode
from glassgpt.train.distributed.process_group import data_parallel, init_distributed
from glassgpt.train.estimate import Estimate, estimate_training
from glassgpt.train.init_model import (
    differing_attention,
    format_shape,
    init_model,
    new_attention,
    parse_shape,
    sides,
)
from glassgpt.train.interrupt import Stopping, StopRequested, StopTracker, never_stop, stop_on_interrupt
from glassgpt.train.loop import train_loop
from glassgpt.train.micro_batch import micro_batch_size
from glassgpt.train.precision import pick_precision
from glassgpt.train.preflight import check_resume, find_data, refuse_foreign_folder
from glassgpt.train.report.environment import write_environment
from glassgpt.train.report.html import write_report
from glassgpt.train.report.reporter import Reporter
from glassgpt.train.report.samples import generate_sample
from glassgpt.train.report.trackers import check_trackers, open_trackers
from glassgpt.train.run import Run
from glassgpt.train.settings import (
    SETTINGS,
    RunOptions,
    TrainSettings,
    read_settings,
    settings_from_dict,
    with_recipe,
)
from glassgpt.train.variants.segments import SegmentLoader
from glassgpt.weights import load_config
from glassgpt.weights.tokenizers import find_tokenizer

MAY_CHANGE = (  # when a run is resumed
    "save_every", "keep_checkpoints", "skip_bad_steps", "micro_batch_size", "auto_micro_batch",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunOptions, VariantOptions):
    """All options of a run. The settings of a resumed run are those of `read_settings`, with changes."""

    data: str | None  # None: the data of the run that is resumed
    out: Path
    settings: TrainSettings
    init_from: str | None = None

    def __post_init__(self) -> None:
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1, "0.1 is usual, 0 is none", below=True)
        if self.tensor_parallel_size is not None:
            check_whole("tensor_parallel_size", self.tensor_parallel_size, 1, 2**31 - 1)
        if self.shape is not None:
            parse_shape(self.shape)
        Config(**new_attention(self, Config.vocab_size))  # raises if they do not belong together


def train(
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    recipe: str | None = None,
    reporter: Reporter | None = None,
    stop: StopRequested | None = None,
    **options: Any,
) -> Run:
    """Train a GPT-2 on prepared tokens, as `glassgpt train` does, and return the run.

    `options` are the fields of `TrainSettings` and `RunConfig`, named like the flags of the command: `steps`
    (needed unless `resume=True`, as is `data`), `batch_size`, `lr`, `shape`, `device`, `resume`, ... It
    writes the same files to `out`. It is silent apart from warnings; give a `reporter` to see more.

    The run ends early when `stop()` returns True. Without `stop`, Ctrl-C finishes the step, saves, and then
    raises KeyboardInterrupt; a second Ctrl-C raises it immediately. Either way `resume=True` continues
    exactly.
    """
    if out is None:
        raise SettingError("out is missing: name the folder of the run, such as out='runs/mine'.")
    if not isinstance(data, str | Path) and not (data is None and options.get("resume", False)):
        raise SettingError(f"data is {data!r}. Name a folder written by prepare, or a .bin file.")
    names = {field.name for kind in (RunConfig, TrainSettings) for field in dataclasses.fields(kind)}
    names.remove("settings")
    for name in options.keys() - names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"glassgpt.train() got an unexpected keyword argument {name!r}.{hint}")
    own = {field.name for field in dataclasses.fields(TrainSettings)}
    out = expand_user(out)
    settings = complete_settings(
        out, options.get("resume", False), recipe, {k: v for k, v in options.items() if k in own}
    )
    if isinstance(options.get("tracker"), str):
        options["tracker"] = (options["tracker"],)
    if isinstance(options.get("init_from"), Path):
        options["init_from"] = str(expand_user(options["init_from"]))
    config = RunConfig(
        data=None if data is None else str(expand_user(data)), out=out, settings=settings,
        **{k: v for k, v in options.items() if k not in own},
    )  # fmt: skip
    interrupts = StopTracker(stop_on_interrupt)
    run = run_training(config, reporter, interrupts if stop is None else lambda alone: nullcontext(stop))
    assert run is not None
    if interrupts.requested():
        raise KeyboardInterrupt
    return run


def complete_settings(out: Path, resume: bool, recipe: str | None, typed: Mapping[str, Any]) -> TrainSettings:
    """Settings as typed; the others are those of the run that is resumed, of a recipe, or the defaults."""
    if check_resume(out, resume):
        settings = read_settings(out)[0]
    elif "steps" not in typed:
        raise SettingError("steps is missing: add the number of optimizer steps, such as steps=2000.")
    else:
        settings = TrainSettings(steps=1)
    return settings_from_dict({**with_recipe(settings, recipe).to_dict(), **typed})


def run_training(
    config: RunConfig,
    reporter: Reporter | None = None,
    stopping: Stopping = never_stop,
    dry_run: bool = False,
) -> Run | None:
    """Check the config, estimate the needs of the run, and train; None for a dry run.

    `stopping(alone)` is entered while the loop runs and yields the function that says when to stop.
    """
    reporter = Reporter() if reporter is None else reporter
    check_trackers(config.tensorboard, config.tracker)
    refuse_foreign_folder(config.out)
    config, resumed = check_config(config)
    tensor_parallel_size = config.tensor_parallel_size if config.parallel == "tp" else 1
    with init_distributed(choose_device(config.device), tensor_parallel_size) as (device, mesh):
        trainer = Trainer(config, resumed, device, mesh, reporter)
        if dry_run or not (resumed and Run(config.out).finished):
            trainer.estimate_needs()
        return None if dry_run else trainer.fit(stopping)


class Trainer:
    """A run that is ready to start or to resume, in one of its processes: its settings, model and data."""

    def __init__(
        self,
        config: RunConfig,
        resumed: bool,
        device: torch.device,
        mesh: DeviceMesh | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.config, self.resumed, self.device, self.mesh = config, resumed, device, mesh
        self.reporter = Reporter() if reporter is None else reporter
        self.rank = 0 if mesh is None else mesh.get_rank()
        self.world_size = 1 if mesh is None else mesh.size()
        self.estimate: Estimate | None = None
        settings = config.settings
        if settings.precision == "auto":
            settings = dataclasses.replace(settings, precision=pick_precision(device))
        self.settings = settings
        progress: Progress = self.reporter.progress if self.is_main else no_progress
        data = config.data
        assert data is not None, "check_config has found it"
        shards, held_out = open_splits(data)
        if resumed and self.is_main and (expand_user(data) / INDEX).is_file():
            for _, difference in check_hashes(expand_user(data), progress):
                if difference:
                    raise FileFormatError(difference)
        self.tokens = len(shards)  # to train on
        self.tokenizer = data_tokenizer(data)
        torch.manual_seed(settings.seed)
        model = GPT2(read_run_config(config.out)) if resumed else init_model(config, self.tokenizer)
        if settings.context > model.config.n_positions:
            raise SettingError(
                f"context {settings.context} is longer than the model's {model.config.n_positions} positions."
            )
        note = None if resumed else model.config.kind.note(model.config, settings.context)
        if note is not None and self.is_main:
            self.reporter.info(note)
        for part in (shards, held_out):
            part.check_ids(model.config.vocab_size, progress)
        self.model = model.to(device)
        self.loader = loader_class(model.config)(
            shards, settings.context, settings.batch_size, settings.seed,
            variants=transpositions(self.tokenizer, settings.transpose),
        )  # fmt: skip
        self.held_out = held_out_batches(held_out, settings, model.config)
        # What settings.json records in addition to the settings.
        recorded = read_settings(config.out)[1] if resumed else {"init_from": config.init_from}
        self.origin = {**recorded, "data": os.path.abspath(expand_user(data)), "prompt": config.prompt}

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that reports and writes."""
        return self.rank == 0

    @property
    def steps_left(self) -> int:
        done = Run(self.config.out).step if self.resumed else 0
        return max(0, self.settings.steps - done)

    def estimate_needs(self) -> None:
        """Estimate memory and speed, if there is one process, and report the plan."""
        if self.mesh is None:
            with self.reporter.stage("trying a few steps"):
                self.estimate = estimate_training(self.model, self.settings, self.loader.batch(0))
            self.settings = self.estimate.settings
        if self.is_main:
            self.reporter.show_plan(self)

    def fit(self, stopping: Stopping = never_stop) -> Run:
        """Train, in each of the run's processes."""
        out, steps_done = self.config.out, 0
        with ExitStack() as stack:
            if self.is_main:
                stack.enter_context(lock_folder(out / "checkpoints", "train"))
                self.prepare_folder()
            stop = stack.enter_context(stopping(self.mesh is None))
            report = stack.enter_context(self.reporting()) if self.is_main else lambda record: None
            for record in train_loop(
                self.model,
                lambda step: stack.enter_context(self.batches(step)),
                self.held_out,
                out,
                self.settings,
                stop,
                self.mesh,
                self.config.parallel,
                self.loader.identity,
                restarts=self.loader.restarts if isinstance(self.loader, SegmentLoader) else None,
            ):
                steps_done += 1
                report(record)
        return Run(out, steps_done)

    def batches(self, step: int) -> AbstractContextManager[Iterator[Tensor]]:
        """This process's part of every batch from a step on."""
        return self.loader.prefetch(step, *data_parallel(self.mesh), self.device)

    def prepare_folder(self) -> None:
        """Write the settings and the tokenizer, which precede the first checkpoint."""
        self.write_settings()
        if self.tokenizer is not None and find_tokenizer(self.config.out)[0] is None:
            self.tokenizer.save(self.config.out)

    def write_settings(self, **changes: Any) -> None:
        with atomic_write(self.config.out / SETTINGS) as part:
            values = {**self.settings.to_dict(), **self.origin, **changes}
            part.write_text(json.dumps(values, indent=2) + "\n", "utf-8")

    @contextmanager
    def reporting(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yields a function that adds a sample to a record and passes it to the reporter and all trackers.

        At the end, even of a run that failed, the report is written.
        """
        config, reporter = self.config, self.reporter
        trackers: list[Callable[[dict[str, Any]], None]] = []
        with ExitStack() as stack:
            stack.enter_context(reporter.training(self.settings.steps))

            def report(record: dict[str, Any]) -> None:
                if not trackers:  # only now is it known after which step the run continues
                    trackers.append(stack.enter_context(self.tracking(first=record["step"] - 1)))
                if self.estimate is not None:
                    record["mfu"] = round(self.estimate.mfu(record["tokens_per_s"]), 4)
                reporter.log(record)
                if "skipped" in record:
                    reporter.warn(
                        f"step {record['step']:,} was skipped: loss {record['loss']}, "
                        f"gradient norm {record['grad_norm']}"
                    )
                if "micro_batch_size" in record:
                    self.write_settings(micro_batch_size=record["micro_batch_size"])
                    reporter.warn(
                        f"out of memory: continuing with a micro-batch size of {record['micro_batch_size']}"
                    )
                # If the model is sharded, no process has all of it to sample from.
                can_sample = config.parallel == "ddp" and self.model.config.is_causal
                if "val_loss" in record and self.tokenizer is not None and can_sample:
                    record["sample"] = generate_sample(self.model, self.tokenizer, config.prompt)
                    reporter.show_sample(record["sample"])
                trackers[0](record)

            try:
                yield report
            finally:
                try:
                    if trackers and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                        reporter.info(f"report: {write_report(config.out)}")
                except (OSError, UserError) as error:  # the run itself is saved
                    reporter.warn(f"no report was written: {error}")

    def tracking(self, first: int) -> AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
        """Start the trackers of a run that continues after `first` steps, and record its environment."""
        config, peak = self.config, {} if self.estimate is None else self.estimate.peak
        write_environment(config.out, first, self.device, self.world_size, **peak)
        facts = {**self.settings.to_dict(), "model": self.model.config.to_dict(), "tokens": self.tokens}
        return open_trackers(config.out, facts, first, config.tensorboard, config.tracker, self.reporter.warn)


def check_config(config: RunConfig) -> tuple[RunConfig, bool]:
    """The config with the settings that apply, and whether its run is resumed."""
    resumed = check_resume(config.out, config.resume)
    settings = config.settings
    data, prompt = find_data(config.data, config.out, resumed), config.prompt
    if resumed:
        settings = check_same_settings(settings, config.out)
        check_same_model(config, read_run_config(config.out))
        prompt = read_settings(config.out)[1].get("prompt") if prompt is None else prompt
    check_mode(config.parallel, settings, config.tensor_parallel_size)
    return dataclasses.replace(config, settings=settings, data=data, prompt=prompt), resumed


def check_same_settings(settings: TrainSettings, run: Path) -> TrainSettings:
    """The settings, which must equal those of the run, except `MAY_CHANGE`."""
    saved = read_settings(run)[0]
    if settings.precision == "auto":  # settings.json has the resolved one
        settings = dataclasses.replace(settings, precision=saved.precision)
    if settings.steps != saved.steps:
        raise SettingError(
            f"steps {settings.steps} differs from the run's {saved.steps}, which its learning rates follow. "
            f"Leave it out to resume; to train longer, start a run from it: --init-from {run} --out OTHER"
        )
    for name, value in settings.to_dict().items():
        if name not in MAY_CHANGE and value != getattr(saved, name):
            raise conflict(name, value, getattr(saved, name))
    return settings


def conflict(name: str, value: object, of_run: object) -> SettingError:
    return SettingError(
        f"{name} {value} differs from the run's {of_run}. Leave it out to resume, or start a new run."
    )


def check_same_model(options: RunConfig, config: Config) -> None:
    """Refuse to resume a run with another model."""
    if options.shape is not None and sides(parse_shape(options.shape)) != sides(config):
        raise conflict("shape", options.shape, format_shape(config))
    for name, dropout, of_run in (
        ("dropout", options.dropout, config.resid_pdrop),
        ("attention_dropout", options.attention_dropout, config.attn_pdrop),
    ):
        if dropout is not None and dropout != of_run:
            raise conflict(name, dropout, of_run)
    for name, value, attention_of_run in differing_attention(options, config):
        raise conflict(name, value, attention_of_run)
    if options.init_from is None:
        return
    origin = read_settings(options.out)[1]
    if "init_from" not in origin:
        if sides(load_config(options.init_from)) != sides(config):
            raise conflict("init_from", options.init_from, f"model of {format_shape(config)}")
    elif origin["init_from"] is None:
        raise conflict("init_from", options.init_from, "random initialization")
    elif not is_same_path(options.init_from, origin["init_from"]):
        raise conflict("init_from", options.init_from, origin["init_from"])


def is_same_path(a: str, b: str) -> bool:
    return a == b or os.path.realpath(expand_user(a)) == os.path.realpath(expand_user(b))


def data_tokenizer(data: str) -> Tokenizer | None:
    return Tokenizer.load(data) if (expand_user(data) / "tokenizer.json").is_file() else None


def transpositions(tokenizer: Tokenizer | None, semitones: int) -> np.ndarray | None:
    """The ids in each of the keys, (2 * semitones + 1, V); None if music is not transposed."""
    if semitones == 0:
        return None
    if not isinstance(tokenizer, NamedTokenizer):
        raise SettingError(
            f"transpose {semitones} is for music, and this data is text. Leave out --transpose, or prepare "
            "MIDI files with glassgpt music prepare."
        )
    return tokenizer.transpositions(semitones)


def loader_class(config: Config) -> type[Loader]:
    """A model with a memory reads consecutive segments, any other reads windows in random order."""
    return SegmentLoader if config.kind.reads_segments else Loader


def held_out_batches(held_out: Shards | Split, settings: TrainSettings, config: Config) -> list[Tensor]:
    """The first `eval_batches` batches of the held-out text, in micro-batches."""
    size = micro_batch_size(settings)
    loader = loader_class(config)(held_out, settings.context, size, shuffle=False)
    count = settings.eval_batches * settings.batch_size // size
    if isinstance(loader, SegmentLoader):  # of one epoch, so that each continues the one before
        count = min(count, loader.segments_per_stream)
    return [loader.batch(i) for i in range(count)]
