"""What a person sees of a model that learns: moving figures on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from glassgpt.cli import terminal

Record = Mapping[str, Any]
SPARK_WIDTH = 32
QUIET_SECONDS = 30.0  # without a terminal: the longest silence between two lines


@contextmanager
def watching(what: str, steps: int) -> Iterator[Callable[[Record], None]]:
    """Yields the function to call with each record. A look at the held-out text leaves a line that stays."""
    with moving(what, steps) if terminal.is_terminal(sys.stderr) else now_and_then(steps) as show:
        yield show


@contextmanager
def now_and_then(steps: int) -> Iterator[Callable[[Record], None]]:
    begun = told = time.monotonic()
    first: int | None = None

    def show(record: Record) -> None:
        nonlocal told, first
        now = time.monotonic()
        if first is None:
            first = record["step"] - 1
        elif "val_loss" not in record and now - told < QUIET_SECONDS:
            return
        told = now
        left = (now - begun) / (record["step"] - first) * (steps - record["step"])
        terminal.note(line(record) + (f"  {duration(left)} left" if left else ""))

    yield show


@contextmanager
def moving(what: str, steps: int) -> Iterator[Callable[[Record], None]]:
    """A bar, the figures of the last step, and the course of the loss so far."""
    from rich.console import RenderableType
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    # Asked now: what rich puts in the place of stderr has no encoding.
    signs = "▁▂▃▄▅▆▇█" if terminal.supports_unicode(sys.stderr) else "_.-=+*#@"
    losses: list[float] = []
    latest: dict[str, Any] = {}

    class WithFigures(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if losses:
                yield Text(line(latest, step=False), overflow="ellipsis", no_wrap=True)
                yield (
                    Text(f"{losses[0]:.2f} ").append(spark(losses, signs), "bar").append(f" {losses[-1]:.2f}")
                )

    bar = WithFigures(
        TextColumn("{task.description}"),
        BarColumn(bar_width=terminal.BAR_WIDTH),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=terminal.console(sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=steps)

        def show(record: Record) -> None:
            if not latest:  # a run that goes on has not done its first steps just now
                bar.reset(task, total=steps, completed=record["step"] - 1)
            if math.isfinite(record["loss"]):
                losses.append(record["loss"])
            latest.update(record)
            bar.update(task, completed=record["step"])
            if "val_loss" in record:
                terminal.note(line(record))

        yield show


def line(record: Record, step: bool = True) -> str:
    """A record in words: what of it there is."""
    forms: dict[str, Callable[[Any], str]] = {
        "step": lambda n: f"step {n:,}" if step else "",
        "loss": lambda loss: f"loss {loss:.3f}",
        "val_loss": lambda loss: f"held out {loss:.3f}",
        "lr": lambda rate: f"rate {rate:.1e}",
        "grad_norm": lambda norm: f"gradient {norm:.2f}",
        "tokens_per_s": lambda speed: f"{speed:,.0f} tokens/s",
        "mfu": lambda share: f"MFU {share:.0%}",
    }
    return "  ".join(text for name, form in forms.items() if name in record and (text := form(record[name])))


def spark(values: list[float], signs: str, width: int = SPARK_WIDTH) -> str:
    """The course of the values in one line, from the lowest to the highest of them."""
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
