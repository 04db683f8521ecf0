"""Training on the command line: the estimate, live metrics on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassgpt.cli import progress_bar, terminal

if TYPE_CHECKING:
    from glassgpt.train.checkpoint.log import StepRecord
    from glassgpt.train.estimate import Estimate
    from glassgpt.train.settings import TrainSettings

SPARK_WIDTH = 32
LOG_SECONDS = 30.0  # without a terminal: at least a line this often


def show_estimate(
    estimate: Estimate, settings: TrainSettings, tokens: int, device: str, steps_left: int | None = None
) -> None:
    """What a run needs. Of a resumed one, `steps_left` are the steps that are left."""
    from glassgpt.train.micro_batch import micro_batch_size

    total = settings.steps * estimate.tokens_per_step
    table = terminal.table("estimate", "")
    table.add_row("parameters", f"{estimate.parameters:,}")
    table.add_row(
        "memory",
        f"about {terminal.size(estimate.memory)}: weights {terminal.size(estimate.weights)}, gradients "
        f"{terminal.size(estimate.gradients)}, optimizer {terminal.size(estimate.optimizer)}, "
        f"activations {terminal.size(estimate.activations)}",
    )
    largest = estimate.largest_micro_batch
    fits = (
        f"up to {largest} fits"
        if largest
        else "not even 1 fits: try --activation-checkpointing or a smaller --shape"
    )
    table.add_row(
        "batch size",
        f"{settings.batch_size}, micro-batch size {micro_batch_size(settings)}; {fits}"
        + ("" if device == "cuda" else " (estimated)"),
    )
    table.add_row(
        "tokens", f"{estimate.tokens_per_step:,} per step, {total:,} in total ({total / tokens:.2f} epochs)"
    )
    table.add_row(
        "speed",
        f"{estimate.tokens_per_s:,.0f} tokens/s on {device} in {settings.precision} "
        f"(MFU {estimate.mfu():.0%} of {estimate.peak_flops / 1e9:,.0f} GFLOP/s measured)",
    )
    steps = settings.steps if steps_left is None else steps_left
    left = "" if steps == settings.steps else f" for the {steps:,} steps that are left"
    table.add_row("time", duration(estimate.seconds(steps)) + left)
    terminal.show(table, stream=sys.stderr)


def note_stopping() -> None:
    terminal.note("stopping after this step; press again to stop immediately")


@contextmanager
def live_metrics(what: str, steps: int) -> Iterator[Callable[[StepRecord], None]]:
    """Yields the function to call with each record. An evaluation leaves a line that stays."""
    with bar_with_metrics(what, steps) if terminal.is_terminal(sys.stderr) else log_lines(steps) as show:
        yield show


@contextmanager
def log_lines(steps: int) -> Iterator[Callable[[StepRecord], None]]:
    started = logged = time.monotonic()
    first: int | None = None

    def show(record: StepRecord) -> None:
        nonlocal logged, first
        now = time.monotonic()
        if first is None:
            first = record["step"] - 1
        elif "val_loss" not in record and now - logged < LOG_SECONDS:
            return
        logged = now
        left = (now - started) / (record["step"] - first) * (steps - record["step"])
        terminal.note(line(record) + (f"  {duration(left)} left" if left else ""))

    yield show


@contextmanager
def bar_with_metrics(what: str, steps: int) -> Iterator[Callable[[StepRecord], None]]:
    """A bar, the metrics of the last step, and a sparkline of the loss."""
    from rich.progress import TextColumn
    from rich.text import Text

    # Now, because rich's replacement of stderr has no encoding.
    signs = "▁▂▃▄▅▆▇█" if terminal.supports_unicode(sys.stderr) else "_.-=+*#@"
    losses: list[float] = []
    latest: dict[str, Any] = {}

    def lines() -> Iterator[Text]:
        if losses:
            yield Text(line(latest, step=False), overflow="ellipsis", no_wrap=True)
            yield Text(f"{losses[0]:.2f} ").append(spark(losses, signs), "bar").append(f" {losses[-1]:.2f}")

    bar = progress_bar.make_progress_bar(TextColumn("{task.completed:,.0f}/{task.total:,.0f}"), lines)
    with bar:
        task = bar.add_task(what, total=steps)

        def show(record: StepRecord) -> None:
            if not latest:  # a resumed run starts at its own step
                bar.reset(task, total=steps, completed=record["step"] - 1)
            if math.isfinite(record["loss"]):
                losses.append(record["loss"])
            latest.update(record)
            bar.update(task, completed=record["step"])
            if "val_loss" in record:
                terminal.note(line(record))

        yield show


def line(record: StepRecord, step: bool = True) -> str:
    """A record as a line of text."""
    formats: dict[str, Callable[[Any], str]] = {
        "step": lambda n: f"step {n:,}" if step else "",
        "loss": lambda loss: f"loss {loss:.3f}",
        "val_loss": lambda loss: f"val loss {loss:.3f}",
        "lr": lambda lr: f"lr {lr:.1e}",
        "grad_norm": lambda norm: f"grad norm {norm:.2f}",
        "tokens_per_s": lambda speed: f"{speed:,.0f} tokens/s",
        "mfu": lambda mfu: f"MFU {mfu:.0%}",
    }
    return "  ".join(
        text for name, format in formats.items() if name in record and (text := format(record[name]))
    )


def spark(values: list[float], signs: str, width: int = SPARK_WIDTH) -> str:
    """The values as a line of characters, scaled from the lowest to the highest."""
    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if not high > low:
        return signs[0] * width
    return "".join(signs[round((mean - low) / (high - low) * (len(signs) - 1))] for mean in means)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
