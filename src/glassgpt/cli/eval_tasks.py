"""`glassgpt eval MODEL --tasks triviaqa,drop`: lm-evaluation-harness itself, with our model in it."""

from __future__ import annotations

import json as jsonlib
import logging
from importlib import metadata
from typing import Any, NamedTuple

from glassgpt.cli import terminal
from glassgpt.cli.commands.eval import Settings, cache_folder, markdown_row
from glassgpt.cli.loading import load
from glassgpt.errors import SettingError, UserError


class Figure(NamedTuple):
    task: str
    metric: str
    filter: str  # by which the harness took the answer out of a text; "none" where it did not
    value: float
    stderr: float | None
    n: int
    protocol: str  # which task of which harness, with how many examples before it, on how much of the data


def run_tasks(
    models: tuple[str, ...], names: str, settings: Settings, json: bool = False, markdown: bool = False
) -> int:
    """Each task by itself: what cannot be had is told in a line, and the rest goes on.

    The data comes from the hub, as the harness has it. `--data` is a folder with tasks of one's own.
    """
    if len(models) > 1:
        raise SettingError("--tasks takes one model. Compare two with --suite.")
    if settings.folder is not None and not settings.folder.is_dir():
        raise SettingError(
            f"--data {settings.folder} is no folder. With --tasks it holds task files (.yaml)."
        )
    with terminal.spinner("starting lm-evaluation-harness"):
        from glassgpt.evaluate.harness import Harness, TaskManager, simple_evaluate, unknown

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        manager = TaskManager(include_path=None if settings.folder is None else str(settings.folder))
    gpt = load(models[0], settings.device, settings.dtype, batch_size=256)
    model = Harness(gpt, cache=cache_folder(settings.cache))
    figures: list[Figure] = []
    problems = []
    for name in (name.strip() for name in names.split(",")):
        try:
            found = manager.match_tasks([name])
            if not found:
                problems.append(unknown(name, manager))
                terminal.note(problems[-1])
                continue
            loaded = loaded_tasks(manager, found)
            results = simple_evaluate(
                model, tasks=loaded, limit=settings.limit, task_manager=manager, log_samples=False
            )
            figures += figures_of(results, settings.limit)
        except UserError as error:
            problems.append(f"{name}: {error}")
            terminal.note(problems[-1])
    from rich.text import Text

    if not figures:
        raise UserError(f"nothing could be measured. {problems[0]}")
    if json:
        print(jsonlib.dumps({f"{one.task}.{one.metric},{one.filter}": one._asdict() for one in figures}))
    elif markdown:
        print(markdown_row(models[0], [cell(one) for one in figures]))
    else:
        rules = dict.fromkeys(f"{one.task}: {one.protocol}" for one in figures)
        terminal.show(table(figures), "", *(Text(rule, style="quiet") for rule in rules))
    return 0


def loaded_tasks(manager: Any, names: list[str]) -> list[Any]:
    """Tasks with their data. Whatever goes wrong in fetching that (there are many ways) becomes one line."""
    import datasets

    from glassgpt.evaluate.datasets import hub_answers, only_what_is_here

    try:
        with only_what_is_here(datasets, unless=hub_answers()):
            loaded = manager.load(names)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise UserError(f"not available: {type(error).__name__}: {first[:160]}") from None
    return list(loaded["tasks"].values()) if not loaded["groups"] else names


def figures_of(results: dict[str, Any], limit: int | None) -> list[Figure]:
    figures = []
    for task, found in results["results"].items():
        rule = rule_of(task, results, limit)
        n = results.get("n-samples", {}).get(task, {}).get("effective", 0)
        for key, value in found.items():
            metric, comma, filter_ = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = found.get(f"{metric}_stderr,{filter_}")
            figures.append(
                Figure(task, metric, filter_, value, stderr if isinstance(stderr, float) else None, n, rule)
            )
    return figures


def rule_of(task: str, results: dict[str, Any], limit: int | None) -> str:
    version = results.get("versions", {}).get(task)
    shots = results.get("n-shot", {}).get(task)
    parts = [f"lm_eval {metadata.version('lm_eval')}"]
    parts += [f"task version {version}"] if isinstance(version, int | float) else []  # else "Yaml" or "N/A"
    parts += [] if shots is None else [f"{shots}-shot"]
    return ", ".join(parts) + ("" if limit is None else f"; first {limit}")


def cell(one: Figure) -> tuple[str, str]:
    rule = one.protocol if one.filter == "none" else f"{one.filter}; {one.protocol}"
    error = "" if one.stderr is None else f" ± {one.stderr:.4g}"
    return f"{one.task}.{one.metric} ({rule})", f"{one.value:.4g}{error}"


def table(figures: list[Figure]) -> Any:
    from rich.text import Text

    made = terminal.table("task", "metric", ">value", ">± error", ">n", "filter")
    for one in figures:
        error = "" if one.stderr is None else f"{one.stderr:.4g}"
        made.add_row(
            one.task, one.metric, Text(f"{one.value:.4g}", style="number"), error, f"{one.n:,}",
            Text("" if one.filter == "none" else one.filter, style="quiet"),
        )  # fmt: skip
    return made
