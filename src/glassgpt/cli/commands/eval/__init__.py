"""`glassgpt eval MODEL`: metrics of a model, with standard errors and published results."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.dashboard import duration
from glassgpt.cli.loading import Device, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.errors import SettingError

if TYPE_CHECKING:
    from glassgpt.evaluate.suites.run import TaskResult
    from glassgpt.progress import Advance

ESTIMATE_AFTER = 3.0  # seconds after which the remaining time can be estimated


def command(
    models: Annotated[
        Positional[tuple[str, ...]],
        Flag("a model, or two to compare; --suite perplexity and bits-per-byte take a FILE too", "MODEL"),
    ] = ("default",),
    *,
    suite: Annotated[
        str | None,
        Flag(
            "smoke, paper, harness, perplexity, bits-per-byte, or tasks: lambada,piqa",
            "NAME",
            default="smoke",
        ),
    ] = None,
    tasks: Annotated[str | None, Flag("tasks run by lm-evaluation-harness: triviaqa,drop", "NAMES")] = None,
    data: Annotated[
        str | None, Flag("folder with the data files (or the FILE)", "DIR", default="the hub")
    ] = None,
    stride: Annotated[
        int | None, Flag("stride of the windows on long texts", "N", default="the context: disjoint windows")
    ] = None,
    limit: Annotated[
        int | None, Flag("only the first N documents (or windows) of each task", "N", default="all")
    ] = None,
    json: Annotated[bool, Flag("print one JSON object with all metrics")] = False,
    markdown: Annotated[bool, Flag("print a Markdown table with one row")] = False,
    any_data: Annotated[bool, Flag("accept data files that differ from the published ones")] = False,
    cache: Annotated[
        str | None,
        Flag("score cache, from which an interrupted run resumes", "DIR", default="~/.cache/glassgpt/eval"),
    ] = None,
    device: Device = None,
    dtype: Annotated[str, Flag("float32, bfloat16, float16, float64", "NAME")] = "float32",
) -> int:
    """Evaluate a model on a suite of tasks. Every metric is printed with its standard error, its protocol and
    the published results. A task whose data is missing is reported and skipped. Run the same command again to
    resume an interrupted evaluation. The exit code is 1 if a data file is not the published one."""
    from glassgpt.cli.commands.eval import output
    from glassgpt.evaluate.compare import compare
    from glassgpt.evaluate.evaluate import EvalSettings, Evaluation, all_metrics, select
    from glassgpt.evaluate.suites.suites import FILE_SUITES

    if json and markdown:
        raise SettingError("--json and --markdown exclude each other. Give one of them.")
    models = models if models else ("default",)
    if suite in FILE_SUITES and data is None and tasks is None:  # eval MODEL FILE --suite perplexity
        *models_before, data = models
        models = tuple(models_before) if models_before else ("default",)
    settings = EvalSettings(None if data is None else Path(data).expanduser(), stride, limit, any_data, cache)
    if tasks is not None:
        from glassgpt.evaluate.harness_tasks import check_harness_options, run_harness_tasks

        check_harness_options(suite, settings)
        if len(models) > 1:
            raise SettingError("--tasks takes one model. Compare two with --suite.")
        gpt = load(models[0], device, dtype, batch_size=256)
        results = run_harness_tasks(gpt, tasks, settings, progress_with_estimate, terminal.note)
        if json:
            print(jsonlib.dumps({result.name: result._asdict() for result in results}))
        elif markdown:
            print(output.markdown_row(models[0], map(output.harness_cell, results)))
        else:
            terminal.show(*output.harness_table(results))
        return 0
    selected = select("smoke" if suite is None else suite, settings, terminal.note)
    if len(models) > 2:
        raise SettingError(f"got {len(models)} models; give one, or two to compare.")
    if len(models) == 2 and markdown:
        raise SettingError("--markdown takes one model. Leave it out, or give one model.")
    evaluations = []
    for name in models:
        gpt = load(name, device, dtype, batch_size=256)
        evaluations.append(Evaluation(gpt, selected, settings, progress_with_estimate, terminal.note))
        if evaluations[-1].n_cached:
            terminal.note(f"{evaluations[-1].n_cached:,} windows are in the cache")
    if len(models) == 2:
        comparison = compare(*evaluations)
        if json:
            print(jsonlib.dumps({"models": models, **comparison.to_json()}))
        else:
            terminal.show(*output.comparison_table(comparison, *models))
        return exit_code([*comparison.a, *comparison.b])
    task_results = evaluations[0].run()
    metrics = all_metrics(task_results)
    if json:
        print(jsonlib.dumps({metric.metric: metric.to_json() for metric in metrics}))
    elif markdown:
        print(output.markdown_row(models[0], map(output.metric_cell, metrics)))
    else:
        terminal.show(*output.metric_table(task_results))
    return exit_code(task_results)


def exit_code(task_results: Sequence[TaskResult]) -> int:
    return 1 if any(task_result.altered for task_result in task_results) else 0


@contextmanager
def progress_with_estimate(
    description: str, total: int | None = None, *, unit: str = ""
) -> Iterator[Advance]:
    """The progress bar, or a spinner where the work is not known. For tokens also a note after some
    seconds with the estimated time, and one at the end with the speed."""
    if total is None:
        with progress_bar.spinner(description):
            yield lambda n: None
        return
    if total == 0:  # everything is in the cache
        yield lambda n: None
        return
    begun, done, estimated = time.monotonic(), 0, unit != "tokens"
    with progress_bar.progress(description, total, unit=unit) as advance:

        def on_tokens(n: int) -> None:
            nonlocal done, estimated
            done += n
            advance(n)
            seconds = time.monotonic() - begun
            if not estimated and seconds > ESTIMATE_AFTER and done < total:
                estimated = True
                remaining = duration(seconds / done * (total - done))
                terminal.note(f"{total:,} tokens at {done / seconds:,.0f} tokens/s: {remaining} left")

        yield on_tokens
    seconds = time.monotonic() - begun
    if seconds > 1 and unit == "tokens":
        terminal.note(f"{total:,} tokens in {duration(seconds)}, {total / seconds:,.0f} tokens/s")
