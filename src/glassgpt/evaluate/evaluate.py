"""`glassgpt.evaluate(...)`, and its steps: select tasks, prepare them for a model, score them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.backends.protocol import Backend
from glassgpt.config import SIZES, check_can_continue
from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate.metrics import MetricResult
from glassgpt.evaluate.scoring.score_cache import ScoreCache
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.suites.eval_task import EvalTask, WindowBuilder
from glassgpt.evaluate.suites.lambada import stop_tokens
from glassgpt.evaluate.suites.perplexity import STRIDED, TokenPerplexity
from glassgpt.evaluate.suites.run import TaskResult, prepare_tasks, run_tasks
from glassgpt.evaluate.suites.suites import FILE_SUITES, select_tasks, tasks_for_file
from glassgpt.gpt import GPT, load
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole

Note = Callable[[str], None]  # gets what a user should know about the data: a task was skipped

MOST_ITEMS = 2**31 - 1  # more than any task has documents, or any model positions


def warn(message: str) -> None:
    """The default `Note`."""
    warnings.warn(message, stacklevel=3)


@dataclass(frozen=True)
class EvalSettings:
    """What applies to every task and every model of an evaluation."""

    data: Path | None = None  # folder with the data files, or the file to score; None: the hub
    stride: int | None = None  # of the windows on long texts; None: the context, so that they are disjoint
    limit: int | None = None  # the first N documents (or windows) of each task
    any_data: bool = False  # also score data files that differ from the published ones
    cache: str | Path | None = None  # folder of the score cache; None: ~/.cache/glassgpt/eval

    def __post_init__(self) -> None:
        for name, value in (("--limit", self.limit), ("--stride", self.stride)):
            if value is not None:
                check_whole(name, value, 1, MOST_ITEMS)


def evaluate(
    model: str | Path | GPT = "default",
    suite: str | None = None,
    *,
    tasks: str | None = None,
    data: str | Path | None = None,
    stride: int | None = None,
    limit: int | None = None,
    any_data: bool = False,
    cache: str | Path | None = None,
    device: str | None = None,
    dtype: str = "float32",
    progress: Progress = no_progress,
) -> dict[str, dict[str, Any]]:
    """Evaluate a model and return its metrics: `{name: {value, stderr, n, protocol}}`.

    `suite` is `smoke` (the default), `paper`, `harness`, a list of tasks like `lambada,piqa`, or
    `perplexity` or `bits-per-byte` with a file as `data`; `tasks` are tasks that lm-evaluation-harness
    runs. The other arguments are the options of `glassgpt eval`. A task that cannot be run is a warning,
    and the rest runs; an error is raised if none can.
    """
    settings = EvalSettings(None if data is None else Path(data).expanduser(), stride, limit, any_data, cache)
    if tasks is not None:
        from glassgpt.evaluate.harness_tasks import check_harness_options, run_harness_tasks

        check_harness_options(suite, settings)
        gpt = model if isinstance(model, GPT) else load(model, device=device, dtype=dtype, progress=progress)
        results = run_harness_tasks(gpt, tasks, settings, progress)
        return {result.name: result._asdict() for result in results}
    selected = select("smoke" if suite is None else suite, settings)
    gpt = model if isinstance(model, GPT) else load(model, device=device, dtype=dtype, progress=progress)
    task_results = Evaluation(gpt, selected, settings, progress).run()
    return {metric.metric: metric.to_json() for metric in all_metrics(task_results)}


def select(suite: str, settings: EvalSettings, note: Note = warn) -> list[EvalTask]:
    """The tasks of a suite, or those named. An unknown name is noted if others are known."""
    data = settings.data
    if suite in FILE_SUITES:
        if data is None or not data.is_file():
            raise SettingError(f"{data} is not a file. Type: glassgpt eval MODEL FILE --suite {suite}")
        return tasks_for_file(suite, data)
    if data is not None and not data.is_dir():
        raise SettingError(f"--data {data} is not a folder. Give the folder with the data files.")
    tasks, messages = select_tasks(suite)
    if settings.stride is not None and not any(isinstance(task, STRIDED) for task in tasks):
        raise SettingError(f"--stride: no task of {suite} takes a stride. Leave it out.")
    for message in messages:
        note(message)
    return tasks


class Evaluation:
    """A model, the tasks prepared for it, and the scorer."""

    def __init__(
        self,
        gpt: GPT,
        tasks: Sequence[EvalTask],
        settings: EvalSettings,
        progress: Progress = no_progress,
        note: Note = warn,
    ) -> None:
        check_can_continue(gpt.config)
        tokenizer = gpt.tokenizer
        if tokenizer is None:
            raise UserError(f"{gpt.name} has no tokenizer. Put its tokenizer.json beside the weights.")
        self.gpt, self.progress, self.note = gpt, progress, note
        with progress(f"tokenizing the data for {gpt.name}"):
            builder = WindowBuilder(tokenizer, gpt.backend.context, settings.stride, settings.limit)
            self.suite = prepare_tasks(tasks, builder, settings.data, not settings.any_data)
            cache = open_score_cache(gpt.backend, settings.cache, note)
            self.scorer = Scorer(gpt.backend, cache, stop_tokens(tokenizer))
            groups = self.suite.groups()
            uncached = self.scorer.uncached(groups)
        self.n_tokens = sum(len(window.ids) for group in uncached for window in group)
        self.n_cached = sum(map(len, groups)) - sum(map(len, uncached))  # windows
        by_token = any(isinstance(task, TokenPerplexity) for task, _ in self.suite.ready)
        if by_token and gpt.config.vocab_size != SIZES["gpt2"].vocab_size:
            note(
                f"{gpt.name} does not have GPT-2's vocabulary ({gpt.config.vocab_size:,} tokens): its "
                "perplexity per token is not comparable with others; per word and per byte it is"
            )

    def run(self) -> list[TaskResult]:
        """Score every task. A task that cannot be run is noted; an error is raised if none can."""
        task_results = []
        with self.progress(f"scoring {self.gpt.name}", self.n_tokens, unit="tokens") as advance:
            for task_result in run_tasks(self.suite, self.scorer, advance):
                task_results.append(task_result)
                for message in (*([task_result.error] if task_result.error else []), *task_result.notes):
                    self.note(f"{task_result.task.name}: {message}")
        if not any(task_result.metrics for task_result in task_results):
            raise UserError(f"no task could be run. {task_results[0].task.name}: {task_results[0].error}.")
        return task_results


def all_metrics(task_results: Sequence[TaskResult]) -> list[MetricResult]:
    return [metric for task_result in task_results for metric in task_result.metrics]


def open_score_cache(backend: Backend, folder: str | Path | None, note: Note = warn) -> ScoreCache:
    """The scores that a backend computed in earlier runs. If the file cannot be written, that is an error for
    a folder that was named, and noted for the default one."""
    if folder is None:
        cache_home = os.environ.get("XDG_CACHE_HOME")
        path = (Path(cache_home) if cache_home else Path.home() / ".cache") / "glassgpt" / "eval"
    else:
        path = Path(folder).expanduser()
    cache = ScoreCache(path / f"{backend.fingerprint()}.scores")
    if cache.problem is not None and folder is not None:
        raise UserError(f"--cache {folder}: {cache.problem}. Name another folder.")
    if cache.problem is not None:
        note(f"note: {cache.problem}: an interrupted run starts over. --cache DIR names another")
    return cache
