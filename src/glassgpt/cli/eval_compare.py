"""`glassgpt eval A B`: two models on the same data, with the significance of the differences."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgpt.cli import terminal
from glassgpt.cli.commands.eval import (
    ModelEvaluation,
    Settings,
    as_json,
    exit_code,
    format_value,
    scoring_progress,
)

if TYPE_CHECKING:
    from glassgpt.evaluate.metrics import Difference, MetricResult
    from glassgpt.evaluate.task import Task


def compare(a: str, b: str, tasks: Sequence[Task], settings: Settings, json: bool) -> int:
    evaluations = [ModelEvaluation(name, tasks, settings) for name in (a, b)]
    task_results = [evaluation.run() for evaluation in evaluations]
    found = [{m.metric: m for task_result in one for m in task_result.metrics} for one in task_results]
    differences = {
        metric: difference(first, found[1][metric])
        for metric, first in found[0].items()
        if metric in found[1]
    }
    code = max(exit_code(one) for one in task_results)
    agreement = compare_texts(*evaluations)
    if json:
        both = {
            "models": [a, b],
            "a": as_json(list(found[0].values())),
            "b": as_json(list(found[1].values())),
            "difference": {
                metric: None if one is None else dataclasses.asdict(one)
                for metric, one in differences.items()
            },
            "agreement": as_json(agreement),
        }
        print(jsonlib.dumps(both))
        return code
    terminal.show(side_by_side(found[0], found[1], differences), "", f"A: {a}, B: {b}")
    for result in agreement:
        unit = " nats per token" if result.metric.endswith(".kl") else " of the tokens"
        error = "" if result.stderr is None else f" ± {format_value(result, result.stderr)}"
        terminal.show(f"{result.metric}  {format_value(result, result.value)}{error}{unit} (n {result.n:,})")
    return code


def difference(a: MetricResult, b: MetricResult) -> Difference | None:
    """None where the units differ: windows of models with different tokenizers."""
    from glassgpt.evaluate.metrics import paired_bootstrap

    return paired_bootstrap(a, b) if len(a.totals) == len(b.totals) > 1 else None


def compare_texts(a: ModelEvaluation, b: ModelEvaluation) -> list[MetricResult]:
    """KL divergence and argmax agreement per token, on every running text that both tokenize alike."""
    from glassgpt.errors import SettingError
    from glassgpt.evaluate.compare import compare_distributions

    made: list[MetricResult] = []
    texts = [(task, ready) for task, ready in a.suite.ready if ready.is_text]
    if not texts:
        return made
    if a.gpt.encode(PROBE) != b.gpt.encode(PROBE) or a.scorer.n_positions != b.scorer.n_positions:
        terminal.note("the models tokenize text differently: no comparison per token")
        return made
    windows = {task.name: [w for group in ready.groups for w in group] for task, ready in texts}
    total = sum(2 * len(window.ids) for some in windows.values() for window in some)
    with scoring_progress("comparing distributions", total) as on_tokens:
        for name, some in windows.items():
            try:
                made += compare_distributions(name, a.scorer, b.scorer, some, on_tokens)
            except SettingError as error:
                terminal.note(f"{name}: {error}")
    return made


PROBE = "The quick brown fox, aged 37, didn't jump over the lazy dog's 1,024 naïve friends.\n\n"


def side_by_side(
    a: dict[str, MetricResult], b: dict[str, MetricResult], differences: dict[str, Difference | None]
) -> Any:
    from rich.text import Text

    wide = terminal.console().width >= 140
    made = terminal.table(
        "metric", ">A", ">B", ">B - A", "95% interval", ">n", *(["protocol"] if wide else [])
    )
    for metric, first in a.items():
        second = b.get(metric)
        if second is None:
            continue
        gap = differences[metric]
        cells: list[Text | str] = [
            metric,
            format_value(first, first.value),
            format_value(second, second.value),
        ]
        if gap is None:
            cells += ["", Text("different units", style="quiet")]
        else:
            better = (gap.value < 0) == first.kind.lower_is_better
            style = ("good" if better else "bad") if gap.is_significant else "quiet"
            cells += [
                Text(signed(first, gap.value), style=style),
                f"{signed(first, gap.low)} to {signed(first, gap.high)}",
            ]
        cells.append(f"{first.n:,}")
        made.add_row(*cells, *([Text(first.protocol, style="quiet")] if wide else []))
    return made


def signed(result: MetricResult, value: float) -> str:
    return ("+" if value >= 0 else "") + format_value(result, value)
