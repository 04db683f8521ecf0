"""Running a suite task by task: a task that cannot be loaded or scored is reported, and the rest runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.evaluate.metrics import MetricResult
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.scoring.windows import Group
from glassgpt.evaluate.suites import datasets
from glassgpt.evaluate.suites.eval_task import EvalTask, PreparedTask, WindowBuilder
from glassgpt.evaluate.suites.suites import data_folder


@dataclass
class TaskResult:
    """The metrics of a task, or why there are none."""

    task: EvalTask
    metrics: list[MetricResult] = field(default_factory=list)
    error: str = ""
    altered: bool = False  # the data is not the published file, rather than missing
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class PreparedSuite:
    """The tasks that are ready to run, and those that failed."""

    ready: list[tuple[EvalTask, PreparedTask]]
    failed: list[TaskResult]

    def groups(self) -> list[Group]:
        return [group for _, prepared in self.ready for group in prepared.groups]


def prepare_tasks(
    tasks: Sequence[EvalTask], builder: WindowBuilder, folder: Path | None, check: bool = True
) -> PreparedSuite:
    """Load and tokenize the data of every task. Nothing is scored yet: the work is known first."""
    suite = PreparedSuite([], [])
    for task in tasks:
        try:
            where = data_folder(task, folder)
            text, altered = datasets.load(task.dataset, where, check)
            ready = task.prepare(text, builder)
            ready.remark = ", ".join(
                part
                for part, holds in ((f"first {builder.limit}", builder.limit), ("altered data", altered))
                if holds
            )
            suite.ready.append((task, ready))
        except datasets.Unavailable as error:
            suite.failed.append(TaskResult(task, error=f"not available: {error}"))
        except UserError as error:
            suite.failed.append(TaskResult(task, error=str(error), altered=True))
    return suite


def run_tasks(suite: PreparedSuite, scorer: Scorer, on_tokens: Callable[[int], None]) -> Iterator[TaskResult]:
    """Yield the result of each task as soon as it is done; the failed ones first."""
    yield from suite.failed
    for task, prepared in suite.ready:
        begun = time.monotonic()
        scores = scorer.score(prepared.groups, on_tokens)
        metrics = prepared.metrics(scores)
        yield TaskResult(task, metrics, notes=prepared.notes, seconds=time.monotonic() - begun)
