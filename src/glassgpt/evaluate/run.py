"""A suite, task by task: what cannot be had or scored is told in a line, and the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.evaluate import datasets
from glassgpt.evaluate.metrics import Measure
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.suites import data_folder
from glassgpt.evaluate.task import Prepared, Reader, Task
from glassgpt.evaluate.windows import Group


@dataclass
class Outcome:
    """What became of a task: figures, or why there are none."""

    task: Task
    measures: list[Measure] = field(default_factory=list)
    problem: str = ""
    altered: bool = False  # a file that is not what it should be, rather than one that is not there
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Plan:
    """The tasks that can be run, ready, and those that cannot."""

    ready: list[tuple[Task, Prepared]]
    failed: list[Outcome]

    def groups(self) -> list[Group]:
        return [group for _, prepared in self.ready for group in prepared.groups]


def prepare(tasks: Sequence[Task], reader: Reader, folder: Path | None, check: bool = True) -> Plan:
    """Read and cut every task's texts. Nothing is computed yet, so that the work is known beforehand."""
    plan = Plan([], [])
    for task in tasks:
        try:
            where = data_folder(task, folder)
            text, altered = datasets.load(task.dataset, where, check)
            ready = task.prepare(text, reader)
            ready.remark = ", ".join(
                part
                for part, holds in ((f"first {reader.limit}", reader.limit), ("altered data", altered))
                if holds
            )
            plan.ready.append((task, ready))
        except datasets.Unavailable as error:
            plan.failed.append(Outcome(task, problem=f"not available: {error}"))
        except UserError as error:
            plan.failed.append(Outcome(task, problem=str(error), altered=True))
    return plan


def run(plan: Plan, scorer: Scorer, on_tokens: Callable[[int], None]) -> Iterator[Outcome]:
    """Each task's figures as soon as they are there; first those that failed."""
    yield from plan.failed
    for task, prepared in plan.ready:
        begun = time.monotonic()
        scores = scorer.score(prepared.groups, on_tokens)
        measures = prepared.measures(scores)
        yield Outcome(task, measures, notes=prepared.notes, seconds=time.monotonic() - begun)
