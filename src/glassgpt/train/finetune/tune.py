"""Fine-tune a model on a few texts. Every setting that `train` asks for is chosen here.

The end of the text is the validation split. It decides when to stop (a small model soon overfits a small
text) and shows how much was gained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.backends.torch.backend import choose_device, load_model
from glassgpt.errors import SettingError
from glassgpt.tasks.definition import Task
from glassgpt.tasks.records import Problems
from glassgpt.train.finetune.run import FinetuneRun, measure_loss, prepare_run, train_run, write_tune_report
from glassgpt.train.interrupt import Stopping, StopRequested, StopTracker, never_stop, stop_on_interrupt
from glassgpt.train.objectives.classification import set_head
from glassgpt.train.preflight import check_tune_inputs
from glassgpt.train.report.reporter import Reporter
from glassgpt.weights import load_checkpoint, load_config

if TYPE_CHECKING:
    from glassgpt.gpt import GPT


@dataclass(frozen=True)
class TuneResult:
    """What `tune` returns."""

    out: Path  # the tuned model, if it improved
    perplexity_before: float  # of the val split, in float32
    perplexity_after: float | None  # None if it did not improve
    sample_before: str
    sample_after: str | None
    best_step: int  # 0 if it did not improve
    steps: int
    epochs: float
    val_tokens: int
    trained_parameters: int
    parameters: int
    seconds: float
    finished: bool  # False if it was stopped, and can be resumed

    @property
    def improved(self) -> bool:
        return self.best_step > 0

    def load(self, device: str | None = None, dtype: str | None = None) -> GPT:
        """The tuned model, as `glassgpt.load` opens it."""
        from glassgpt.gpt import load

        if not self.improved:
            raise SettingError("the model did not improve, so none was written. Use more text or minutes.")
        return load(str(self.out), device=device, dtype=dtype)


def tune(
    files: str | Path | Iterable[str | Path],
    *,
    model: str = "default",
    out: str | Path | None = None,
    task: str | Path | Task | None = None,
    lora: bool = False,
    adapter: bool = False,
    format: str | None = None,
    lines: bool = False,
    column: str | None = None,
    minutes: float | None = None,
    prompt: str | None = None,
    seed: int = 0,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    reporter: Reporter | None = None,
    stop: StopRequested | None = None,
) -> TuneResult:
    """Fine-tune a model on texts, as `glassgpt tune` does, and return the result.

    `files` are files, folders or patterns of all kinds that `prepare` reads; `lines` and `column` say what a
    document is, as there. The tuned model is written to
    `out` (by default the name of the first file with -tuned), where the best so far is kept, also after a
    KeyboardInterrupt or a kill; `resume=True` then continues exactly. `minutes` limits the total time: 10 by
    default, and for a resumed run what it started with. `prompt` starts the samples before and after.

    With a `task` (the name of one, a TOML file, or a `glassgpt.tasks.Task`), `files` are records of pairs or
    of labeled texts, and the model learns the task: docs/tasks.md. `adapter=True` with `lora=True` writes
    only the low-rank changes, a few megabytes, as a folder that loads like a model; with `format="peft"` it
    trains the blocks' matrices alone, and writes a folder that PEFT opens.

    It is silent; give a `reporter` to see more. The run ends early when `stop()` returns True. Without
    `stop`, Ctrl-C finishes the step, saves, and then raises KeyboardInterrupt.
    """
    started = time.monotonic()
    interrupts = StopTracker(stop_on_interrupt)
    run, target = plan_tune(
        files, model=model, out=out, task=task, lora=lora, adapter=adapter, format=format, lines=lines,
        column=column, minutes=minutes, seed=seed, device=device, resume=resume, force=force,
        reporter=reporter, started=started,
    )  # fmt: skip
    stopping = interrupts if stop is None else lambda alone: nullcontext(stop)
    result = run_tune(run, target, prompt=prompt, reporter=reporter, stopping=stopping, started=started)
    if interrupts.requested():
        raise KeyboardInterrupt
    return result


def plan_tune(
    files: str | Path | Iterable[str | Path],
    *,
    model: str = "default",
    out: str | Path | None = None,
    task: str | Path | Task | None = None,
    lora: bool = False,
    adapter: bool = False,
    format: str | None = None,
    lines: bool = False,
    column: str | None = None,
    minutes: float | None = None,
    seed: int = 0,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    reporter: Reporter | None = None,
    started: float | None = None,
) -> tuple[FinetuneRun, Path]:
    """The first half of `tune`: choose the settings, estimate the time, and say where the model will go.

    Writes nothing. The time limit counts from `started`, by the monotonic clock.
    """
    started = time.monotonic() if started is None else started
    reporter = Reporter() if reporter is None else reporter
    inputs = check_tune_inputs(
        files, model=model, out=out, task=task, lora=lora, adapter=adapter, format=format, lines=lines,
        column=column, minutes=minutes, seed=seed, resume=resume, force=force,
    )  # fmt: skip
    adapter_format = None if format == "glassgpt" else format
    with reporter.stage("reading the text, timing a few steps, measuring the validation loss"):
        run = prepare_run(
            load_checkpoint(model), inputs.files, choose_device(device), task=inputs.task, lora=lora,
            adapter_format=adapter_format, seconds=inputs.seconds, seed=seed, saved=inputs.saved,
            out=inputs.target, reading=inputs.reading, started=started,
            problems=Problems(lambda line: reporter.info(f"note: {line}")),
        )  # fmt: skip
    if adapter:
        run.adapter_for = model if not Path(model).exists() else str(Path(model).resolve())
        run.adapter_format = adapter_format
        if adapter_format is not None and run.checkpoint.config.vocab_size > load_config(model).vocab_size:
            raise SettingError(
                "this task adds tokens to the vocabulary, which --format peft has no place for. Leave it out."
            )
    for note in run.data.notes:
        reporter.info(f"note: {note}")
    reporter.show_plan(run)
    return run, inputs.target


def run_tune(
    run: FinetuneRun,
    out: Path,
    *,
    prompt: str | None = None,
    reporter: Reporter | None = None,
    stopping: Stopping = never_stop,
    started: float | None = None,
) -> TuneResult:
    """The second half of `tune`: train, and measure the gain."""
    reporter = Reporter() if reporter is None else reporter
    started = time.monotonic() if started is None else started
    sampling = time.monotonic()
    sample_before = run.data.write_sample(run.model, prompt)
    # The sample after the training takes as long.
    seconds = max(0.5 * run.seconds_left, run.seconds_left - 2 * (time.monotonic() - sampling))
    with stopping(True) as stop, reporter.training(run.settings.steps):
        for record in train_run(run, out, seconds, stop):
            reporter.log(record)
    loss_after = sample_after = None
    if run.best_step > 0:
        with reporter.stage("measuring the tuned model"):
            written = load_checkpoint(str(out))
            tuned = load_model(written, device=str(run.model.wte.weight.device), dtype="float32")
            if written.score is not None:
                set_head(tuned, written.score)
            objective = run.data.objective(tuned, run.settings)
            loss_after = measure_loss(tuned, run.eval_windows, run.settings, objective)
            sample_after = run.data.write_sample(tuned, prompt)
        samples = [{"step": 0, "text": sample_before}, {"step": run.best_step, "text": sample_after}]
        write_tune_report(run, out, samples)
    return TuneResult(
        out=out,
        perplexity_before=math.exp(run.loss_before),
        perplexity_after=None if loss_after is None else math.exp(loss_after),
        sample_before=sample_before,
        sample_after=sample_after,
        best_step=run.best_step,
        steps=run.steps,
        epochs=run.epochs,
        val_tokens=run.eval_tokens,
        trained_parameters=run.trained_parameters,
        parameters=run.checkpoint.config.n_parameters,
        seconds=time.monotonic() - started,
        finished=run.finished,
    )
