"""`glassgpt eval MODEL --tasks triviaqa,drop`: tasks of lm-evaluation-harness."""

from __future__ import annotations

import json as jsonlib
import logging
from importlib import metadata
from typing import Any, NamedTuple

from glassgpt.cli import terminal
from glassgpt.cli.commands.eval import Settings, cache_folder, check_cache, markdown_row
from glassgpt.cli.loading import load
from glassgpt.errors import SettingError, UserError


class HarnessResult(NamedTuple):
    task: str
    metric: str
    filter: str  # how the harness extracts the answer from a text; "none" for no filter
    value: float
    stderr: float | None
    n: int
    protocol: str  # lm_eval's version, the task's version, few-shot examples, limit


def run_tasks(
    models: tuple[str, ...], names: str, settings: Settings, json: bool = False, markdown: bool = False
) -> int:
    """Run each task on its own: one that cannot be loaded is reported, and the rest runs.

    The data comes from the hub, as the harness defines it. `--data` is a folder with your own task files.
    """
    if len(models) > 1:
        raise SettingError("--tasks takes one model. Compare two with --suite.")
    if settings.folder is not None and not settings.folder.is_dir():
        raise SettingError(
            f"--data {settings.folder} is not a folder. With --tasks it contains task files (.yaml)."
        )
    with terminal.spinner("starting lm-evaluation-harness"):
        from glassgpt.evaluate.harness import GlassGPTLM, TaskManager, simple_evaluate, unknown_task_message

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        manager = TaskManager(include_path=None if settings.folder is None else str(settings.folder))
    gpt = load(models[0], settings.device, settings.dtype, batch_size=256)
    model = GlassGPTLM(gpt, cache=cache_folder(settings.cache), progress=terminal.progress)
    check_cache(model.scorer.cache, settings.cache)
    all_results: list[HarnessResult] = []
    errors = []
    for name in (name.strip() for name in names.split(",")):
        try:
            found = manager.match_tasks([name])
            if not found:
                errors.append(unknown_task_message(name, manager))
                terminal.note(errors[-1])
                continue
            loaded = load_tasks(manager, found)
            results = simple_evaluate(
                model, tasks=loaded, limit=settings.limit, task_manager=manager, log_samples=False
            )
            all_results += read_results(results, settings.limit)
        except UserError as error:
            errors.append(f"{name}: {error}")
            terminal.note(errors[-1])
    from rich.text import Text

    if not all_results:
        raise UserError(f"no task could be run. {errors[0]}")
    if json:
        print(
            jsonlib.dumps(
                {f"{result.task}.{result.metric},{result.filter}": result._asdict() for result in all_results}
            )
        )
    elif markdown:
        print(markdown_row(models[0], [cell(result) for result in all_results]))
    else:
        rules = dict.fromkeys(f"{result.task}: {result.protocol}" for result in all_results)
        terminal.show(table(all_results), "", *(Text(rule, style="quiet") for rule in rules))
    return 0


def load_tasks(manager: Any, names: list[str]) -> list[Any]:
    """Tasks with their data. Any error in loading it becomes one line."""
    import datasets

    from glassgpt.evaluate.datasets import hub_is_reachable, offline_unless

    try:
        with offline_unless(datasets, online=hub_is_reachable()):
            loaded = manager.load(names)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise UserError(f"not available: {type(error).__name__}: {first[:160]}") from None
    return list(loaded["tasks"].values()) if not loaded["groups"] else names


def read_results(results: dict[str, Any], limit: int | None) -> list[HarnessResult]:
    all_results = []
    for task, found in results["results"].items():
        rule = describe_protocol(task, results, limit)
        n = results.get("n-samples", {}).get(task, {}).get("effective", 0)
        for key, value in found.items():
            metric, comma, filter_ = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = found.get(f"{metric}_stderr,{filter_}")
            all_results.append(
                HarnessResult(
                    task, metric, filter_, value, stderr if isinstance(stderr, float) else None, n, rule
                )
            )
    return all_results


def describe_protocol(task: str, results: dict[str, Any], limit: int | None) -> str:
    version = results.get("versions", {}).get(task)
    shots = results.get("n-shot", {}).get(task)
    parts = [f"lm_eval {metadata.version('lm_eval')}"]
    parts += [f"task version {version}"] if isinstance(version, int | float) else []  # else "Yaml" or "N/A"
    parts += [] if shots is None else [f"{shots}-shot"]
    return ", ".join(parts) + ("" if limit is None else f"; first {limit}")


def cell(result: HarnessResult) -> tuple[str, str]:
    rule = result.protocol if result.filter == "none" else f"{result.filter}; {result.protocol}"
    error = "" if result.stderr is None else f" ± {result.stderr:.4g}"
    return f"{result.task}.{result.metric} ({rule})", f"{result.value:.4g}{error}"


def table(all_results: list[HarnessResult]) -> Any:
    from rich.text import Text

    made = terminal.table("task", "metric", ">value", ">± error", ">n", "filter")
    for result in all_results:
        error = "" if result.stderr is None else f"{result.stderr:.4g}"
        made.add_row(
            result.task, result.metric, Text(f"{result.value:.4g}", style="number"), error, f"{result.n:,}",
            Text("" if result.filter == "none" else result.filter, style="quiet"),
        )  # fmt: skip
    return made
