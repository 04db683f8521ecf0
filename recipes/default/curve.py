"""Keep a downsampled log of each run beside the recipe, and draw their loss curves.

    python recipes/default/curve.py runs/default runs/tiny

Writes NAME.log.jsonl (every look at the held-out text, and about 1,500 other steps), NAME.environment.jsonl
(where the run was begun and resumed) and curve.svg.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from glassgpt.train.checkpoint.records import read_records
from glassgpt.train.checkpoint.run_folder import LOG
from glassgpt.train.environment import ENVIRONMENT
from glassgpt.train.report.chart import Point, downsample, format_number, linear_ticks, smooth
from glassgpt.train.report.html import get_curve

HERE = Path(__file__).parent
KEPT = 1500  # records of a run's log
LEFT, TOP, WIDTH, HEIGHT = 48, 24, 720, 360
COLOURS = ("#1b6ca8", "#b3541e")
STYLE = """text{font:13px system-ui,sans-serif;fill:#555}path{fill:none}.grid{stroke:#8884}.raw{opacity:.25}
.smooth{stroke-width:1.6}.resumed{stroke:#888;stroke-dasharray:2 4}"""


def keep(run: Path, out: Path) -> None:
    records = read_records(run / LOG)
    every = max(1, len(records) // KEPT)
    kept = [record for record in records if "val_loss" in record or record["step"] % every == 0]
    lines = [json.dumps({name: v for name, v in record.items() if name != "sample"}) for record in kept]
    (out / f"{run.name}.log.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    if (run / ENVIRONMENT).is_file():
        shutil.copy(run / ENVIRONMENT, out / f"{run.name}.environment.jsonl")


def drawing(runs: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> str:
    """Loss over steps: of the training, its running mean, and of the held-out text as dots."""
    drawn = [
        point[1]
        for records, _ in runs.values()
        for n in ("loss", "val_loss")
        for point in get_curve(records, n)
    ]
    low = 0.98 * min(drawn)
    high = 1.9 * low  # the first steps, from 9.7 on, would press the rest flat
    steps = max(records[-1]["step"] for records, _ in runs.values())

    def place(point: Point) -> Point:
        step, value = point
        fraction = (min(max(value, low), high) - low) / (high - low)
        return round(LEFT + WIDTH * step / steps, 1), round(TOP + HEIGHT * (1 - fraction), 1)

    def path(points: list[Point], view: str) -> str:
        line = "L".join(f"{x} {y}" for x, y in map(place, points))
        return f'<path class="{view}" stroke="{colour}" d="M{line}"/>' if points else ""

    parts = []
    for tick in linear_ticks(low, high):
        y = place((0, tick))[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y}h{WIDTH}"/><text x="8" y="{y + 4}">{tick:g}</text>')
    for tick in linear_ticks(0, steps):
        x = place((tick, low))[0]
        parts.append(f'<text x="{x - 8}" y="{TOP + HEIGHT + 20}">{format_number(tick)}</text>')
    for row, (colour, (name, (records, sessions))) in enumerate(zip(COLOURS, runs.items(), strict=False)):
        loss = get_curve(records, "loss")
        for start in sessions:
            if start["step"]:
                x = place((start["step"], low))[0]
                parts.append(f'<path class="resumed" d="M{x} {TOP}v{HEIGHT}"><title>resumed</title></path>')
        parts += [path(downsample(loss), "raw"), path(downsample(smooth(loss)), "smooth")]
        for x, y in map(place, get_curve(records, "val_loss")):
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        last = get_curve(records, "val_loss")[-1]
        label = f"{name}: held out {last[1]:.3f} after {last[0]:,} steps"
        parts.append(f'<circle cx="{LEFT + 380}" cy="{TOP + 16 + 20 * row}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 392}" y="{TOP + 20 + 20 * row}">{label}</text>')
    parts.append('<text x="8" y="14">loss (nats per token); line: training, dots: held out</text>')
    parts.append(f'<text x="{LEFT + WIDTH - 30}" y="{TOP + HEIGHT + 36}">steps</text>')
    size = f'viewBox="0 0 {LEFT + WIDTH + 24} {TOP + HEIGHT + 44}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="none: only draw what was kept before")
    parser.add_argument("-o", "--out", type=Path, default=HERE)
    given = parser.parse_args()
    for run in given.runs:
        keep(run, given.out)
    runs = {}
    for log in sorted(given.out.glob("*.log.jsonl")):
        name = log.name.removesuffix(".log.jsonl")
        runs[name] = read_records(log), read_records(given.out / f"{name}.environment.jsonl")
    (given.out / "curve.svg").write_text(drawing(runs), "utf-8")


if __name__ == "__main__":
    main()
