"""The tables of `glassgpt eval`: metrics next to published results, two models side by side, tasks of
lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from glassgpt.cli import terminal
from glassgpt.evaluate.evaluate import all_metrics
from glassgpt.evaluate.metrics import MetricResult
from glassgpt.evaluate.published import SIZES, published

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.evaluate.compare import Comparison
    from glassgpt.evaluate.harness_tasks import HarnessResult
    from glassgpt.evaluate.metrics import Difference
    from glassgpt.evaluate.suites.run import TaskResult

PUBLISHED = "117M to 1542M: the published GPT-2 models, accuracies in percent (docs/evaluation.md)"


def format_value(metric: MetricResult, value: float | None) -> str:
    """Accuracies in percent, four significant digits for the rest."""
    if value is None:
        return ""
    if metric.kind.in_percent:
        return f"{100 * value:.2f}%"
    return f"{value:#.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def with_error(value: str, stderr: str) -> str:
    return f"{value} ± {stderr}" if stderr else value


def markdown_row(model: str, cells: Iterable[tuple[str, str]]) -> str:
    """A table of one row, from the head and the value of each column."""
    heads, values = zip(("model", model), *cells, strict=True)
    lines = (heads, ["---"] * len(heads), values)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# One model.


def metric_cell(m: MetricResult) -> tuple[str, str]:
    return f"{m.metric} ({m.protocol})", with_error(format_value(m, m.value), format_value(m, m.stderr))


def metric_table(task_results: Sequence[TaskResult]) -> list[Any]:
    """The table; below it the protocols, if the table is too narrow for them, and the tasks that failed."""
    metrics = all_metrics(task_results)
    table, below = _metric_table(metrics, protocols=True), []
    target = terminal.console()
    if target.measure(table, options=target.options.update(width=terminal.PIPE_WIDTH)).maximum > target.width:
        table = _metric_table(metrics, protocols=False)
        by_protocol: dict[str, list[str]] = {}
        for metric in metrics:
            by_protocol.setdefault(metric.protocol, []).append(metric.metric)
        below = [f"{', '.join(names)}: {protocol}" for protocol, names in by_protocol.items()]
    if len(table.columns) > 5:  # with the published results
        below.append(PUBLISHED)
    failed = dict.fromkeys(task_result.task.name for task_result in task_results if task_result.error)
    if failed:
        below.append(f"not run: {', '.join(failed)}")
    return [table, *([""] if below else []), *(Text(line, style="quiet") for line in below)]


def _metric_table(metrics: Sequence[MetricResult], protocols: bool) -> Table:
    figures = [published(m.metric, m.protocol) for m in metrics]
    sizes = [f">{size}" for size in SIZES] if any(figures) else []
    table = terminal.table("metric", ">value", ">± error", ">n", *sizes, *(["protocol"] if protocols else []))
    for m, others in zip(metrics, figures, strict=True):
        cells = ["" if x is None else f"{x:g}" for x in (others or [None] * len(sizes))] if sizes else []
        protocol = [Text(m.protocol, style="quiet")] if protocols else []
        value = Text(format_value(m, m.value), style="number")
        table.add_row(m.metric, value, format_value(m, m.stderr), f"{m.n:,}", *cells, *protocol)
    return table


# Two models.


def comparison_table(comparison: Comparison, name_a: str, name_b: str) -> list[Any]:
    lines = []
    for m in comparison.agreement:
        unit = " nats per token" if m.metric.endswith(".kl") else " of the tokens"
        value = with_error(format_value(m, m.value), format_value(m, m.stderr))
        lines.append(f"{m.metric}  {value}{unit} (n {m.n:,})")
    return [side_by_side(comparison), "", f"A: {name_a}, B: {name_b}", *lines]


def side_by_side(comparison: Comparison) -> Table:
    wide = terminal.console().width >= 140
    protocol = ["protocol"] if wide else []
    table = terminal.table("metric", ">A", ">B", ">B - A", "95% interval", ">n", *protocol)
    metrics_b = {metric.metric: metric for metric in all_metrics(comparison.b)}
    for a in all_metrics(comparison.a):
        if a.metric not in metrics_b:
            continue
        b = metrics_b[a.metric]
        values = [a.metric, format_value(a, a.value), format_value(b, b.value)]
        difference = difference_cells(a, comparison.differences[a.metric])
        table.add_row(*values, *difference, f"{a.n:,}", *([Text(a.protocol, style="quiet")] if wide else []))
    return table


def difference_cells(metric: MetricResult, difference: Difference | None) -> list[str | Text]:
    if difference is None:
        return ["", Text("different units", style="quiet")]
    better = (difference.value < 0) == metric.kind.lower_is_better
    style = ("good" if better else "bad") if difference.is_significant else "quiet"
    value, low, high = (
        ("+" if x >= 0 else "") + format_value(metric, x)
        for x in (difference.value, difference.low, difference.high)
    )
    return [Text(value, style=style), f"{low} to {high}"]


# Tasks of lm-evaluation-harness.


def harness_cell(result: HarnessResult) -> tuple[str, str]:
    protocol = result.protocol if result.filter == "none" else f"{result.filter}; {result.protocol}"
    stderr = "" if result.stderr is None else f"{result.stderr:.4g}"
    return f"{result.task}.{result.metric} ({protocol})", with_error(f"{result.value:.4g}", stderr)


def harness_table(results: Sequence[HarnessResult]) -> list[Any]:
    table = terminal.table("task", "metric", ">value", ">± error", ">n", "filter")
    for result in results:
        stderr = "" if result.stderr is None else f"{result.stderr:.4g}"
        filter_ = Text("" if result.filter == "none" else result.filter, style="quiet")
        value = Text(f"{result.value:.4g}", style="number")
        table.add_row(result.task, result.metric, value, stderr, f"{result.n:,}", filter_)
    protocols = dict.fromkeys(f"{result.task}: {result.protocol}" for result in results)
    return [table, "", *(Text(protocol, style="quiet") for protocol in protocols)]
