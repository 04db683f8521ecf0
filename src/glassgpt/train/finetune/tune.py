"""Fine-tune a model on a few texts. Every setting that `train` asks for is chosen here.

The end of the text is the validation split. It decides when to stop (a small model soon overfits a small
text) and shows how much was gained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from glassgpt.backends.torch.backend import choose_device, load_model
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.tasks.definition import Task
from glassgpt.tasks.records import Problems
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.classification import set_head
from glassgpt.train.data.shards import Split
from glassgpt.train.finetune.run import FinetuneRun, measure_loss, prepare_run, train_run, write_tune_report
from glassgpt.train.finetune.task import head_of, prepare_task_run
from glassgpt.train.interrupt import StopRequested, never_stop, stop_on_interrupt
from glassgpt.train.preflight import check_tune_inputs
from glassgpt.train.report.samples import generate_sample
from glassgpt.weights import load_checkpoint

if TYPE_CHECKING:
    from glassgpt.gpt import GPT

PROMPT_TOKENS = 12

Record = Mapping[str, Any]


class TuneCallback(Protocol):
    """How `tune` reports what it does. Subclass it and override what you need."""

    def stage(self, description: str) -> AbstractContextManager[object]:
        """Entered while a longer stage lasts, such as reading the text."""
        return nullcontext()

    def on_problem(self, line: str) -> None:
        """Called with a line about each record of a task that is skipped, or not used as a whole."""
        return None

    def on_plan(self, run: FinetuneRun) -> None:
        """Called once, before the training, with the chosen settings and the estimate."""
        return None

    def training(self, run: FinetuneRun) -> AbstractContextManager[Callable[[Record], object]]:
        """Entered for the training; the function it yields is called with the record of each step."""
        return nullcontext(lambda record: None)

    def should_stop(self) -> bool:
        """Checked after each step: True stops the training, so that it can be resumed."""
        return False


class Silent(TuneCallback):
    """Reports nothing."""

    def __init__(self, stop: StopRequested = lambda: False) -> None:
        self.stop = stop

    def should_stop(self) -> bool:
        return self.stop()


@dataclass(frozen=True)
class TuneResult:
    """What `tune` made."""

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
    minutes: float | None = None,
    prompt: str | None = None,
    seed: int = 0,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    callback: TuneCallback | None = None,
) -> TuneResult:
    """Fine-tune a model on texts, as `glassgpt tune` does, and return the result.

    `files` are files, folders or patterns of all kinds that `prepare` reads. The tuned model is written to
    `out` (by default the name of the first file with -tuned), where the best so far is kept, also after a
    KeyboardInterrupt or a kill; `resume=True` then continues exactly. `minutes` limits the total time: 10 by
    default, and for a resumed run what it started with. `prompt` starts the samples before and after.

    With a `task` (the name of one, a TOML file, or a `glassgpt.tasks.Task`), `files` are records of pairs or
    of labelled texts, and the model learns the task: docs/tasks.md. `adapter=True` with `lora=True` writes
    only the low-rank changes, a few megabytes, as a folder that loads like a model.

    Without a callback, Ctrl-C finishes the step, saves, and then raises KeyboardInterrupt.
    """
    started = time.monotonic()
    with stop_on_interrupt() if callback is None else never_stop() as interrupted:
        reports = Silent(interrupted) if callback is None else callback
        run, target = plan_tune(
            files, model=model, out=out, task=task, lora=lora, adapter=adapter, minutes=minutes, seed=seed,
            device=device, resume=resume, force=force, callback=reports, started=started,
        )  # fmt: skip
        result = run_tune(run, target, prompt=prompt, callback=reports, started=started)
    if interrupted():
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
    minutes: float | None = None,
    seed: int = 0,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    callback: TuneCallback | None = None,
    started: float | None = None,
) -> tuple[FinetuneRun, Path]:
    """The first half of `tune`: choose the settings, estimate the time, and say where the model will go.

    Writes nothing. The time limit counts from `started`, by the monotonic clock.
    """
    started = time.monotonic() if started is None else started
    callback = Silent() if callback is None else callback
    asked = check_tune_inputs(
        files, model=model, out=out, task=task, lora=lora, adapter=adapter, minutes=minutes, seed=seed,
        resume=resume, force=force,
    )  # fmt: skip
    options: dict[str, Any] = {
        "lora": lora, "seconds": asked.seconds, "seed": seed, "saved": asked.saved, "out": asked.target,
        "started": started,
    }  # fmt: skip
    where = choose_device(device)
    checkpoint = load_checkpoint(model)
    with callback.stage("reading the text, timing a few steps, measuring the validation loss"):
        if asked.task is None:
            run = prepare_run(checkpoint, asked.files, where, **options)
        else:
            problems = Problems(callback.on_problem)
            run = prepare_task_run(checkpoint, asked.files, asked.task, where, problems=problems, **options)
    if adapter:
        run.adapter_for = model if not Path(model).exists() else str(Path(model).resolve())
    callback.on_plan(run)
    return run, asked.target


def run_tune(
    run: FinetuneRun,
    out: Path,
    *,
    prompt: str | None = None,
    callback: TuneCallback | None = None,
    started: float | None = None,
) -> TuneResult:
    """The second half of `tune`: train, and measure what was gained."""
    callback = Silent() if callback is None else callback
    started = time.monotonic() if started is None else started
    tokenizer, device = run.checkpoint.tokenizer, run.model.wte.weight.device
    assert tokenizer is not None, "prepare_run has refused it"
    if prompt is None and isinstance(run.val_split, Split):
        prompt = choose_prompt(run.val_split, tokenizer)

    def write_sample(model: GPT2) -> str:
        if run.data is None:
            return generate_sample(model, tokenizer, prompt)
        return run.data.write_sample(model, head_of(model))

    sampling = time.monotonic()
    sample_before = write_sample(run.model)
    # The sample after the training takes as long.
    left = max(0.5 * run.seconds_left, run.seconds_left - 2 * (time.monotonic() - sampling))
    with callback.training(run) as on_step:
        for record in train_run(run, out, left, callback.should_stop):
            on_step(record)
    loss_after = sample_after = None
    if run.best_step > 0:
        with callback.stage("measuring the tuned model"):
            written = load_checkpoint(str(out))
            tuned = load_model(written, device=str(device), dtype="float32")
            if written.score is not None:
                set_head(tuned, written.score)
            objective = None if run.data is None else run.data.objective(tuned, run.settings)
            loss_after = measure_loss(tuned, run.eval_windows, run.settings, objective)
            sample_after = write_sample(tuned)
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


def choose_prompt(val_split: Split, tokenizer: Tokenizer) -> str | None:
    """The first words of the val split, which the model is never trained on; None if there are none."""
    ids = [id for id in val_split.read(0, PROMPT_TOKENS).tolist() if id != tokenizer.eot_id]
    text = tokenizer.decode(ids).strip("\ufffd")  # it may start or end within a character
    return text if text.strip() else None
