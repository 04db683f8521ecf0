"""`report.html`: a run on one page, made from the files in its folder. It asks nothing of any other machine.

What the model wrote, and what people typed, is text there and never markup; the page forbids itself every
request (Content-Security-Policy).
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
from glassgpt.files import writing
from glassgpt.train.checkpoint.run_folder import LOG, read_config, read_records
from glassgpt.train.environment import ENVIRONMENT
from glassgpt.train.report.chart import Chart, Curve, Point, smoothed
from glassgpt.train.report.trackers import SAMPLES
from glassgpt.train.settings import read_settings

REPORT = "report.html"
SHOWN_SAMPLES = 8  # the others are folded away


def write_report(out: Path) -> Path:
    """The page of the run in `out`, as it stands; where it is."""
    with writing(out / REPORT) as part:
        part.write_text(page(out), "utf-8")
    return out / REPORT


def page(out: Path) -> str:
    records = [record for record in read_records(out / LOG) if record["step"] > 0]
    if not records:
        raise FileFormatError(f"{out / LOG} has no record of a step, so there is nothing to show.")
    settings = read_settings(out)[0].to_dict()
    sessions = [session for session in read_records(out / ENVIRONMENT) if is_session(session)]
    config = read_config(out)
    title = html.escape(out.resolve().name)
    parts = [
        f"<h1>{title}</h1>",
        cards(records, settings, config),
        '<div class="charts">',
        *(chart.to_html(number) for number, chart in enumerate(charts(records, settings, sessions))),
        "</div>",
        samples([sample for sample in read_records(out / SAMPLES) if "text" in sample], records),
        '<div class="tables">',
        table("settings", settings),
        table("model", {**config.to_dict(), "parameters": f"{config.n_parameters:,}"}),
        *environment_tables(sessions),
        "</div>",
    ]
    here = Path(__file__)
    return TEMPLATE.format(
        title=title,
        style=here.with_name("report.css").read_text("utf-8"),
        script=here.with_name("report.js").read_text("utf-8"),
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
    """Whether a line has what is shown of a session; somebody may have edited it."""
    try:
        datetime.fromisoformat(line["time"])
    except (KeyError, TypeError, ValueError):
        return False
    peak = (line.get("peak_flops"), line.get("flops_per_token"))
    named = isinstance(line.get("device"), str) and isinstance(line.get("versions", {}), dict)
    return named and (peak == (None, None) or all(map(is_figure, peak)))


def is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e30 < value < 1e30


def curve(records: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    return [(record["step"], record[name]) for record in records if is_figure(record.get(name))]


def cards(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], config: Config) -> str:
    """The figures to see first."""
    last, tokens_a_step = records[-1], settings["batch_size"] * settings["context"]
    looks = curve(records, "val_loss")
    shown = []
    if looks:
        step, best = min(looks, key=lambda look: look[1])
        shown.append(("held-out loss", f"{best:.3f}", f"best, at step {step:,}"))
        shown.append(("perplexity", f"{math.exp(min(best, 700)):,.1f}", "of the held-out text"))
    speeds = [rate for _, rate in curve(records, "tokens_per_s")]
    speed = statistics.median(speeds) if speeds else 0.0
    time, unit = clock(sum(tokens_a_step / max(1, rate) for rate in speeds))
    shown += [
        ("steps", f"{last['step']:,}", f"of {settings['steps']:,}"),
        ("tokens seen", short(last["step"] * tokens_a_step), f"{tokens_a_step:,} a step"),
        ("speed", short(speed), "tokens a second, median"),
        ("computed in", time, f"{unit}, the steps alone"),
        ("parameters", short(config.n_parameters), f"{config.n_layer} blocks, {config.n_embd} wide"),
    ]
    made = "".join(
        f"<div><dt>{name}</dt><dd>{html.escape(value)}<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in shown
    )
    return f'<dl class="cards">{made}</dl>'


def charts(
    records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], sessions: Sequence[Mapping[str, Any]]
) -> list[Chart]:
    steps = records[-1]["step"]
    marks = [(s["step"], "resumed") for s in sessions if 0 < s["step"] <= steps]
    marks = sorted(dict(marks).items())
    loss, norm, speed = (curve(records, name) for name in ("loss", "grad_norm", "tokens_per_s"))
    whole = "{:,.0f}".format

    def with_trend(points: Sequence[Point], form: Any) -> list[Curve]:
        return [
            Curve("each step", points, "raw", form),
            Curve("running mean", smoothed(points), "smooth", form),
        ]

    losses = [
        Curve("training, each step", loss, "raw"),
        Curve("training, running mean", smoothed(loss), "smooth"),
        Curve("held out", curve(records, "val_loss"), "dots"),
    ]
    made = [
        Chart("Loss", losses, steps, marks, ("linear", "log")),
        Chart(
            "Learning rate", [Curve("rate", curve(records, "lr"), "smooth", "{:.2e}".format)], steps, marks
        ),
        Chart("Gradient norm", with_trend(norm, "{:.2f}".format), steps, marks, ("linear", "log")),
        Chart("Tokens a second", with_trend(speed, whole), steps, marks),
    ]
    peaks = [(s["step"], s["flops_per_token"] / s["peak_flops"]) for s in sessions if s.get("peak_flops")]
    if peaks:
        share = [(step, 100 * rate * peak_at(peaks, step)) for step, rate in speed]
        made.append(Chart("MFU, % of the measured peak", with_trend(share, "{:.1f}%".format), steps, marks))
    return made


def peak_at(peaks: Sequence[tuple[int, float]], step: float) -> float:
    """The peak of the session in which the step was computed."""
    return next((share for first, share in reversed(peaks) if first < step), peaks[0][1])


def samples(written: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> str:
    """What it wrote as it learned: some from beginning to end, the rest behind a click."""
    if not written:
        return ""
    looks = dict(curve(records, "val_loss"))

    def one(sample: Mapping[str, Any]) -> str:
        step = sample["step"]
        note = f"held out {looks[step]:.3f}" if step in looks else ""
        return (
            f"<li><h3>step {step:,}<small>{note}</small></h3>"
            f"<blockquote>{html.escape(closed_up(str(sample['text'])))}</blockquote></li>"
        )

    n = len(written)
    shown = {round(i * (n - 1) / max(1, SHOWN_SAMPLES - 1)) for i in range(min(n, SHOWN_SAMPLES))}
    if n <= SHOWN_SAMPLES:
        shown = set(range(n))
    made = "".join(one(written[i]) for i in sorted(shown))
    rest = "".join(one(sample) for i, sample in enumerate(written) if i not in shown)
    if rest:
        rest = f"<details><summary>the other {n - len(shown)}</summary><ol>{rest}</ol></details>"
    return f'<section class="samples"><h2>What it wrote as it learned</h2><ol>{made}</ol>{rest}</section>'


def closed_up(text: str) -> str:
    """A text of which no more than one line in a row is empty: a young model writes many."""
    return re.sub(r"\n\s*\n", "\n\n", text.strip())


def environment_tables(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return [table("environment", {**last, **versions}), table("begun and resumed", begun)]


def table(title: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(plain(value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<section><h2>{html.escape(title)}</h2><table>{rows}</table></section>"


def plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def short(value: float) -> str:
    """12.3M for 12,345,678."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}"


def clock(seconds: float) -> tuple[str, str]:
    """A time and its unit."""
    seconds = round(seconds)
    if seconds < 60:
        return str(seconds), "seconds"
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02d}", "minutes"
    return f"{seconds // 3600}:{seconds % 3600 // 60:02d}", "hours"
