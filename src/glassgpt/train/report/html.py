"""`report.html`: a run on one page, made from the files in its folder, with nothing loaded from elsewhere.

Samples and settings are always escaped, and the page forbids every request (Content-Security-Policy).
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from glassgpt.config import Config
from glassgpt.errors import FileFormatError
from glassgpt.figures.svg import Point
from glassgpt.files import atomic_write
from glassgpt.train.checkpoint.log import read_log
from glassgpt.train.checkpoint.run_folder import LOG, read_run_config
from glassgpt.train.report.chart import Chart, Curve, smooth
from glassgpt.train.report.environment import ENVIRONMENT
from glassgpt.train.report.trackers import SAMPLES
from glassgpt.train.settings import read_settings

REPORT = "report.html"
SHOWN_SAMPLES = 8  # the others are collapsed


def write_report(out: Path) -> Path:
    """Write the report of the run in `out`; returns its path."""
    with atomic_write(out / REPORT) as part:
        part.write_text(render_page(out), "utf-8")
    return out / REPORT


def render_page(out: Path) -> str:
    """The page of a run, from the files in its folder."""
    records = [record for record in read_log(out / LOG) if record["step"] > 0]
    if not records:
        raise FileFormatError(f"{out / LOG} has no record of a step, so there is nothing to report.")
    return render_run(
        out.resolve().name, records, read_settings(out)[0].to_dict(), read_run_config(out),
        read_log(out / SAMPLES), read_log(out / ENVIRONMENT),
    )  # fmt: skip


def render_run(
    name: str,
    records: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    config: Config,
    samples: Iterable[Mapping[str, Any]],
    environment: Iterable[Mapping[str, Any]],
) -> str:
    """The page of a run with these records, of which there is at least one."""
    sessions = [start for start in environment if is_session(start)]
    title = html.escape(name)
    parts = [
        f"<h1>{title}</h1>",
        render_cards(records, settings, config),
        '<div class="charts">',
        *(chart.to_html(number) for number, chart in enumerate(make_charts(records, sessions))),
        "</div>",
        render_samples([sample for sample in samples if "text" in sample], records),
        '<div class="tables">',
        render_table("settings", settings),
        render_table("model", {**config.to_dict(), "parameters": f"{config.n_parameters:,}"}),
        *render_environment(sessions),
        "</div>",
    ]
    module = Path(__file__)
    return TEMPLATE.format(
        title=title,
        style=module.with_name("report.css").read_text("utf-8"),
        script=module.with_name("report.js").read_text("utf-8"),
        body="\n".join(part for part in parts if part),
    )


TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title} · GlassGPT</title>
<style>
{style}</style>
<main>
{body}
</main>
<script>
{script}</script>
</html>
"""


def is_session(line: Mapping[str, Any]) -> bool:
    """Whether a line has all that is shown of a session; the file may have been edited."""
    try:
        datetime.fromisoformat(line["time"])
    except (KeyError, TypeError, ValueError):
        return False
    peak = (line.get("peak_flops"), line.get("flops_per_token"))
    named = isinstance(line.get("device"), str) and isinstance(line.get("versions", {}), dict)
    return named and (peak == (None, None) or all(map(is_number, peak)))


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e30 < value < 1e30


def get_curve(records: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    return [(record["step"], record[name]) for record in records if is_number(record.get(name))]


def render_cards(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], config: Config) -> str:
    """The key figures."""
    last, tokens_per_step = records[-1], settings["batch_size"] * settings["context"]
    evals = get_curve(records, "val_loss")
    displayed = []
    if evals:
        step, best = min(evals, key=lambda point: point[1])
        displayed.append(("validation loss", f"{best:.3f}", f"best, at step {step:,}"))
        displayed.append(("perplexity", f"{math.exp(min(best, 700)):,.1f}", "on the validation split"))
    speeds = [rate for _, rate in get_curve(records, "tokens_per_s")]
    speed = statistics.median(speeds) if speeds else 0.0
    time, unit = format_duration(sum(tokens_per_step / max(1, rate) for rate in speeds))
    displayed += [
        ("steps", f"{last['step']:,}", f"of {settings['steps']:,}"),
        ("tokens", format_count(last["step"] * tokens_per_step), f"{tokens_per_step:,} per step"),
        ("speed", format_count(speed), "tokens/s, median"),
        ("training time", time, f"{unit}, without evaluation"),
        ("parameters", format_count(config.n_parameters), f"{config.n_layer} layers, width {config.n_embd}"),
    ]
    cards = "".join(
        f"<div><dt>{name}</dt><dd>{html.escape(value)}<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in displayed
    )
    return f'<dl class="cards">{cards}</dl>'


def make_charts(records: Sequence[Mapping[str, Any]], sessions: Sequence[Mapping[str, Any]]) -> list[Chart]:
    steps = records[-1]["step"]
    marks = [(s["step"], "resumed") for s in sessions if 0 < s["step"] <= steps]
    marks = sorted(dict(marks).items())
    loss, norm, speed = (get_curve(records, name) for name in ("loss", "grad_norm", "tokens_per_s"))
    full = "{:,.0f}".format

    def with_trend(points: Sequence[Point], form: Any) -> list[Curve]:
        return [
            Curve("per step", points, "raw", form),
            Curve("smoothed", smooth(points), "smooth", form),
        ]

    losses = [
        Curve("train", loss, "raw"),
        Curve("train, smoothed", smooth(loss), "smooth"),
        Curve("validation", get_curve(records, "val_loss"), "dots"),
    ]
    charts = [
        Chart("Loss", losses, steps, marks, ("linear", "log")),
        Chart(
            "Learning rate", [Curve("lr", get_curve(records, "lr"), "smooth", "{:.2e}".format)], steps, marks
        ),
        Chart("Gradient norm", with_trend(norm, "{:.2f}".format), steps, marks, ("linear", "log")),
        Chart("Tokens per second", with_trend(speed, full), steps, marks),
    ]
    peaks = [(s["step"], s["flops_per_token"] / s["peak_flops"]) for s in sessions if s.get("peak_flops")]
    if peaks:
        mfu = [(step, 100 * rate * find_peak(peaks, step)) for step, rate in speed]
        charts.append(Chart("MFU (% of the measured peak)", with_trend(mfu, "{:.1f}%".format), steps, marks))
    return charts


def find_peak(peaks: Sequence[tuple[int, float]], step: float) -> float:
    """The MFU per token/s of the session in which the step was computed."""
    return next((mfu for first, mfu in reversed(peaks) if first < step), peaks[0][1])


def render_samples(written: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> str:
    """Samples from the whole run, most of them collapsed."""
    if not written:
        return ""
    evals = dict(get_curve(records, "val_loss"))

    def render_sample(sample: Mapping[str, Any]) -> str:
        step = sample["step"]
        note = f"validation loss {evals[step]:.3f}" if step in evals else ""
        return (
            f"<li><h3>step {step:,}<small>{note}</small></h3>"
            f"<blockquote>{html.escape(collapse_blank_lines(str(sample['text'])))}</blockquote></li>"
        )

    n = len(written)
    displayed = {round(i * (n - 1) / max(1, SHOWN_SAMPLES - 1)) for i in range(min(n, SHOWN_SAMPLES))}
    if n <= SHOWN_SAMPLES:
        displayed = set(range(n))
    shown = "".join(render_sample(written[i]) for i in sorted(displayed))
    rest = "".join(render_sample(sample) for i, sample in enumerate(written) if i not in displayed)
    if rest:
        rest = f"<details><summary>{n - len(displayed)} more</summary><ol>{rest}</ol></details>"
    return f'<section class="samples"><h2>Samples</h2><ol>{shown}</ol>{rest}</section>'


def collapse_blank_lines(text: str) -> str:
    """At most one empty line in a row: an untrained model writes many."""
    return re.sub(r"\n\s*\n", "\n\n", text.strip())


def render_environment(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    if not sessions:
        return []
    last = dict(sessions[-1])
    versions = last.pop("versions", {})
    begun = {
        f"from step {s['step']:,}": datetime.fromisoformat(s["time"]).strftime("%Y-%m-%d %H:%M UTC")
        + (f", {s['device']}" if len({x.get("device") for x in sessions}) > 1 else "")
        for s in sessions
    }
    if last.get("peak_flops"):
        last["peak"] = f"{last.pop('peak_flops') / 1e9:,.0f} GFLOP/s, measured"
        last.pop("flops_per_token", None)
    for name in ("step", "time"):
        last.pop(name, None)
    return [render_table("environment", {**last, **versions}), render_table("sessions", begun)]


def render_table(title: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(format_value(value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<section><h2>{html.escape(title)}</h2><table>{rows}</table></section>"


def format_value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_count(value: float) -> str:
    """12.3M for 12,345,678."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}"


def format_duration(seconds: float) -> tuple[str, str]:
    """A duration and its unit."""
    seconds = round(seconds)
    if seconds < 60:
        return str(seconds), "seconds"
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02d}", "minutes"
    return f"{seconds // 3600}:{seconds % 3600 // 60:02d}", "hours"
