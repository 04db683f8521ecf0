"""`glassgpt tune my.txt`: fine-tune a model on your own text."""

from __future__ import annotations

import json as jsonlib
import time
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import duration, show_estimate
from glassgpt.cli.loading import Device
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.reporter import TerminalReporter, stop_and_say_so
from glassgpt.train.interrupt import StopTracker

if TYPE_CHECKING:
    from glassgpt.tasks.definition import Task
    from glassgpt.train.finetune.run import FinetuneRun
    from glassgpt.train.finetune.tune import TuneResult
    from glassgpt.train.settings import TrainSettings


def command(
    files: Annotated[
        Positional[tuple[str, ...]],
        Flag(
            "text files, folders or patterns, of all kinds that prepare reads; with --task, .jsonl, .tsv or "
            ".csv",
            "FILE...",
        ),
    ],
    *,
    model: Annotated[str, Flag("model to start from", "MODEL")] = "default",
    out: Annotated[str | None, Flag("output folder", "DIR", short="-o", default="FILE-tuned")] = None,
    task: Annotated[
        str | None, Flag("learn a task from pairs: the name of one, or a TOML file", "TASK")
    ] = None,
    lora: Annotated[bool, Flag("train low-rank adapters, at most 2% of the parameters: less memory")] = False,
    adapter: Annotated[bool, Flag("with --lora: write only the adapter, a few megabytes")] = False,
    format: Annotated[
        str | None,
        Flag("with --adapter: glassgpt, or peft for Hugging Face's PEFT", "NAME", default="glassgpt"),
    ] = None,
    lines: Annotated[bool, Flag("each line of a text is a document")] = False,
    column: Annotated[
        str | None,
        Flag("the column with the texts: of .csv, .parquet, .jsonl, a dataset", "NAME", default="text"),
    ] = None,
    minutes: Annotated[float | None, Flag("time limit for everything", "N", default="10")] = None,
    prompt: Annotated[
        str | None, Flag("prompt for the samples", "TEXT", default="start of the val split")
    ] = None,
    seed: Annotated[int, Flag("seed of the data order", "N")] = 0,
    device: Device = None,
    resume: Annotated[bool, Flag("resume an interrupted run, exactly")] = False,
    force: Annotated[bool, Flag("replace an existing model")] = False,
    dry_run: Annotated[bool, Flag("show the plan and exit")] = False,
    json: Annotated[bool, Flag("print the results as one line of JSON")] = False,
) -> int:
    """Fine-tune a model on your own text. The end of the text is the validation split: it decides when to
    stop and shows how much was gained. All settings are chosen for you. Ctrl-C keeps the best model so far;
    --resume continues after it, or after a kill. With --task the records of FILE are pairs (translation,
    summaries) or labeled texts, and the loss is on the target only: docs/tasks.md."""
    from glassgpt.train.preflight import check_tune_inputs

    started = time.monotonic()
    asked: dict[str, Any] = {
        "model": model, "out": out, "task": task, "lora": lora, "adapter": adapter, "format": format,
        "lines": lines, "column": column, "minutes": minutes, "seed": seed, "resume": resume, "force": force,
    }  # fmt: skip
    check_tune_inputs(files, **asked)
    from glassgpt.train.finetune.tune import plan_tune, run_tune

    reporter, stopping = TuneReporter(), StopTracker(stop_and_say_so)
    run, target = plan_tune(files, **asked, device=device, reporter=reporter, started=started)
    if dry_run:
        return 0
    result = run_tune(run, target, prompt=prompt, reporter=reporter, stopping=stopping, started=started)
    if stopping.requested():
        kept = f"; the best model so far is in {target}" if result.improved else ""
        terminal.note(f"stopped after {result.steps} steps{kept}")
        if not result.finished:
            terminal.note("to continue, add --resume to the same command")
    if not result.improved:
        terminal.note(
            "the validation loss did not improve, so nothing was written. Use more text or more --minutes."
        )
        return 1
    show_result(result, json, run.data.task)
    return 0


class TuneReporter(TerminalReporter):
    title = "tuning"

    def show_plan(self, run: FinetuneRun) -> None:
        from glassgpt.train.micro_batch import micro_batch_size

        settings, data = run.settings, run.data
        show_estimate(run.plan, settings, run.batches.tokens_per_epoch, run.model.wte.weight.device.type)
        trained, total = run.trained_parameters, run.checkpoint.config.n_parameters
        eval_tokens = f"{run.eval_tokens:,}" if data.unit == "tokens" else f"{run.eval_tokens:,} tokens"
        self.info(
            f"training {trained:,} parameters ({trained / total:.1%} of the model) on "
            f"{len(data.train):,} {data.unit}: batch size {settings.batch_size} "
            f"(micro-batch {micro_batch_size(settings)}), {describe_lr(settings)}; "
            f"evaluating {eval_tokens} of {len(data.valid):,} validation {data.unit} "
            f"every {settings.eval_every} steps: at most {duration(run.expected_seconds)}"
        )
        if run.exceeds_memory:
            self.info("note: that is more memory than is free. Try --lora, or a smaller --model.")


def describe_lr(settings: TrainSettings) -> str:
    if settings.matrix_lr is None:
        return f"learning rate {settings.lr:.1e}"
    return f"learning rates {settings.matrix_lr:.1e} (Muon, matrices) and {settings.lr:.1e} (AdamW, the rest)"


def next_command(task: Task | None) -> str:
    """What one does with the tuned model."""
    if task is None:
        return "generate"
    if task.classifies:
        return "classify"
    if task.chat is not None:
        return "serve"
    ways = [direction.name for direction in task.directions if direction.name]
    return f"translate --to {ways[0]}" if ways else "summarize"


def show_result(result: TuneResult, json: bool, task: Task | None = None) -> None:
    assert result.perplexity_after is not None
    assert result.sample_after is not None
    if json:
        figures = {
            "out": str(result.out),
            "perplexity_before": round(result.perplexity_before, 3),
            "perplexity_after": round(result.perplexity_after, 3),
            "val_tokens": result.val_tokens,
            "trained_parameters": result.trained_parameters,
            "parameters": result.parameters,
            "best_step": result.best_step,
            "steps": result.steps,
            "epochs": round(result.epochs, 2),
            "seconds": round(result.seconds, 1),
        }
        print(jsonlib.dumps(figures))
        return
    table = terminal.table("", ">perplexity", "sample")
    for name, perplexity, text in (
        ("before", result.perplexity_before, result.sample_before),
        ("after", result.perplexity_after, result.sample_after),
    ):
        table.add_row(name, f"{perplexity:.2f}", terminal.sanitize(" ".join(text.split())))
    table.columns[2].no_wrap = False
    terminal.show(table)
    terminal.note(
        f"validation perplexity {result.perplexity_after / result.perplexity_before - 1:+.1%}, best at step "
        f"{result.best_step} of {result.steps} ({result.epochs:.1f} epochs), {duration(result.seconds)}"
    )
    terminal.note(f"report: {result.out / 'report.html'}")
    terminal.note(f"done: glassgpt {next_command(task)} --model {result.out}")
