"""Running tasks of lm-evaluation-harness by name, as suites are run: `glassgpt eval MODEL --tasks
triviaqa,drop`."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Any, NamedTuple

from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate.evaluate import EvalSettings, Note, open_score_cache, warn
from glassgpt.evaluate.suites.datasets import hub_is_reachable, offline_unless
from glassgpt.gpt import GPT
from glassgpt.progress import Progress, no_progress


class HarnessResult(NamedTuple):
    task: str
    metric: str
    filter: str  # how the harness extracts the answer from a text; "none" for no filter
    value: float
    stderr: float | None
    n: int
    protocol: str  # lm_eval's version, the task's version, few-shot examples, limit

    @property
    def name(self) -> str:
        return f"{self.task}.{self.metric},{self.filter}"


def check_harness_options(suite: str | None, settings: EvalSettings) -> None:
    typed = (("--suite", suite), ("--stride", settings.stride), ("--any-data", settings.any_data or None))
    for name, value in typed:
        if value is not None:
            raise SettingError(
                f"{name} does not apply to --tasks, which runs lm_eval's. Leave out one of them."
            )
    if settings.data is not None and not settings.data.is_dir():
        raise SettingError(
            f"--data {settings.data} is not a folder. With --tasks it contains task files (.yaml)."
        )


def run_harness_tasks(
    gpt: GPT, names: str, settings: EvalSettings, progress: Progress = no_progress, note: Note = warn
) -> list[HarnessResult]:
    """Run each task on its own: one that cannot be loaded is noted, and the rest runs; an error is
    raised if none can be.

    The data comes from the hub, as the harness defines it. `settings.data` is a folder with your own task
    files.
    """
    with progress("starting lm-evaluation-harness"):
        from glassgpt.evaluate.harness import GlassGPTLM, TaskManager, simple_evaluate, unknown_task_message

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        manager = TaskManager(include_path=None if settings.data is None else str(settings.data))
    model = GlassGPTLM(gpt, cache=open_score_cache(gpt.backend, settings.cache, note), progress=progress)
    results: list[HarnessResult] = []
    errors = []
    for name in (name.strip() for name in names.split(",")):
        try:
            matches = manager.match_tasks([name])
            if not matches:
                raise UserError(unknown_task_message(name, manager))
            tasks = load_tasks(name, manager, matches)
            report = simple_evaluate(
                model, tasks=tasks, limit=settings.limit, task_manager=manager, log_samples=False
            )
            results += read_results(report, settings.limit)
        except UserError as error:
            errors.append(str(error))
            note(errors[-1])
    if not results:
        raise UserError(f"no task could be run. {errors[0]}")
    return results


def load_tasks(name: str, manager: Any, names: list[str]) -> list[Any]:
    """Tasks with their data. Any error in loading it becomes one line."""
    import datasets

    try:
        with offline_unless(datasets, online=hub_is_reachable()):
            loaded = manager.load(names)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        raise UserError(f"{name}: not available: {type(error).__name__}: {first_line[:160]}") from None
    return list(loaded["tasks"].values()) if not loaded["groups"] else names


def read_results(report: dict[str, Any], limit: int | None) -> list[HarnessResult]:
    results = []
    for task, values in report["results"].items():
        protocol = describe_protocol(task, report, limit)
        n = report.get("n-samples", {}).get(task, {}).get("effective", 0)
        for key, value in values.items():
            metric, comma, filter_ = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = values.get(f"{metric}_stderr,{filter_}")
            stderr = stderr if isinstance(stderr, float) else None
            results.append(HarnessResult(task, metric, filter_, value, stderr, n, protocol))
    return results


def describe_protocol(task: str, report: dict[str, Any], limit: int | None) -> str:
    version = report.get("versions", {}).get(task)
    shots = report.get("n-shot", {}).get(task)
    parts = [f"lm_eval {metadata.version('lm_eval')}"]
    parts += [f"task version {version}"] if isinstance(version, int | float) else []  # else "Yaml" or "N/A"
    parts += [] if shots is None else [f"{shots}-shot"]
    return ", ".join(parts) + ("" if limit is None else f"; first {limit}")
