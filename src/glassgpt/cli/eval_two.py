"""`glassgpt eval A B`: two models on the same data, and whether they really differ."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgpt.cli import terminal
from glassgpt.cli.commands.eval import Bench, Settings, as_json, exit_code, shown, working

if TYPE_CHECKING:
    from glassgpt.evaluate.metrics import Difference, Measure
    from glassgpt.evaluate.task import Task


def compare(a: str, b: str, tasks: Sequence[Task], settings: Settings, json: bool) -> int:
    benches = [Bench(name, tasks, settings) for name in (a, b)]
    outcomes = [bench.run() for bench in benches]
    found = [{m.metric: m for outcome in one for m in outcome.measures} for one in outcomes]
    differences = {
        metric: difference(first, found[1][metric])
        for metric, first in found[0].items()
        if metric in found[1]
    }
    code = max(exit_code(one) for one in outcomes)
    agreeing = agreements(*benches)
    if json:
        both = {
            "models": [a, b],
            "a": as_json(list(found[0].values())),
            "b": as_json(list(found[1].values())),
            "difference": {
                metric: None if one is None else dataclasses.asdict(one)
                for metric, one in differences.items()
            },
            "agreement": as_json(agreeing),
        }
        print(jsonlib.dumps(both))
        return code
    terminal.show(side_by_side(found[0], found[1], differences), "", f"A is {a}, B is {b}")
    for measure in agreeing:
        unit = " nats per token" if measure.metric.endswith(".kl") else " of the tokens"
        error = "" if measure.stderr is None else f" ± {shown(measure, measure.stderr)}"
        terminal.show(f"{measure.metric}  {shown(measure, measure.value)}{error}{unit} (n {measure.n:,})")
    return code


def difference(a: Measure, b: Measure) -> Difference | None:
    """None where the two were cut into different units: windows of models with other vocabularies."""
    from glassgpt.evaluate.metrics import paired_bootstrap

    return paired_bootstrap(a, b) if len(a.totals) == len(b.totals) > 1 else None


def agreements(a: Bench, b: Bench) -> list[Measure]:
    """KL divergence and the same choice, token by token, on every running text that both read alike."""
    from glassgpt.errors import SettingError
    from glassgpt.evaluate.compare import agreement

    made: list[Measure] = []
    texts = [(task, ready) for task, ready in a.plan.ready if ready.is_text]
    if not texts:
        return made
    if a.gpt.encode(PROBE) != b.gpt.encode(PROBE) or a.scorer.n_positions != b.scorer.n_positions:
        terminal.note("the models read text in different tokens: no comparison token by token")
        return made
    rows = {task.name: [row for group in ready.groups for row in group] for task, ready in texts}
    total = sum(2 * len(row.ids) for some in rows.values() for row in some)
    with working("comparing token by token", total) as on_tokens:
        for name, some in rows.items():
            try:
                made += agreement(name, a.scorer, b.scorer, some, on_tokens)
            except SettingError as error:
                terminal.note(f"{name}: {error}")
    return made


PROBE = "The quick brown fox, aged 37, didn't jump over the lazy dog's 1,024 naïve friends.\n\n"


def side_by_side(
    a: dict[str, Measure], b: dict[str, Measure], differences: dict[str, Difference | None]
) -> Any:
    from rich.text import Text

    roomy = terminal.console().width >= 140
    made = terminal.table(
        "metric", ">A", ">B", ">B - A", "95% of resamples", ">n", *(["rule"] if roomy else [])
    )
    for metric, first in a.items():
        second = b.get(metric)
        if second is None:
            continue
        gap = differences[metric]
        cells: list[Text | str] = [metric, shown(first, first.value), shown(second, second.value)]
        if gap is None:
            cells += ["", Text("not the same units", style="quiet")]
        else:
            better = (gap.value < 0) == first.kind.lower_is_better
            style = ("good" if better else "bad") if gap.is_clear else "quiet"
            cells += [
                Text(signed(first, gap.value), style=style),
                f"{signed(first, gap.low)} to {signed(first, gap.high)}",
            ]
        cells.append(f"{first.n:,}")
        made.add_row(*cells, *([Text(first.protocol, style="quiet")] if roomy else []))
    return made


def signed(measure: Measure, value: float) -> str:
    return ("+" if value >= 0 else "") + shown(measure, value)
