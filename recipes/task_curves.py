"""Draw the curves of task trainings, from the log.jsonl files that `train_for` writes.

    python recipes/task_curves.py curve.svg "loss on held-out pairs" en-fr=runs/en-fr/log.jsonl

Each NAME=FILE is a line: `val_loss` over seconds. A file with several trainings, one after the other, has as
many names: A,B=FILE.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path

from glassgpt.train.report.chart import Point, format_number, linear_ticks

LEFT, TOP, WIDTH, HEIGHT = 48, 36, 520, 260
COLOURS = ("#1b6ca8", "#b3541e", "#2e7d4f", "#7a4ea3")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#555}path{fill:none}.grid{stroke:#8884}.line{stroke-width:1.8}"
)


def read_runs(file: Path) -> list[list[Point]]:
    """The curve of each training in a log: where the time goes back, another one begins."""
    runs: list[list[Point]] = []
    for record in map(json.loads, file.read_text("utf-8").splitlines()):
        if not runs or record["seconds"] < runs[-1][-1][0]:
            runs.append([])
        runs[-1].append((record["seconds"], record["val_loss"]))
    return runs


def draw(lines: dict[str, list[Point]], title: str) -> str:
    values = [value for points in lines.values() for _, value in points]
    low, high = 0.98 * min(values), 1.02 * max(values)
    end = max(seconds for points in lines.values() for seconds, _ in points)

    def place(seconds: float, value: float) -> Point:
        return round(LEFT + WIDTH * seconds / end, 1), round(TOP + HEIGHT * (high - value) / (high - low), 1)

    parts = [f'<text x="8" y="18">{escape(title)}</text>']
    for tick in linear_ticks(low, high):
        y = place(0, tick)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y}h{WIDTH}"/><text x="8" y="{y + 4}">{tick:g}</text>')
    for tick in linear_ticks(0, end):
        x = place(tick, low)[0]
        parts.append(f'<text x="{x - 8}" y="{TOP + HEIGHT + 20}">{format_number(tick)} s</text>')
    for row, (colour, (name, points)) in enumerate(zip(COLOURS, lines.items(), strict=False)):
        places = [place(*point) for point in points]
        path = "L".join(f"{x} {y}" for x, y in places)
        parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places]
        x, y = LEFT + WIDTH - 290, TOP + 16 + 20 * row
        label = f"{name}: {points[-1][1]:.3f} at the end"
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="{y + 4}">{escape(label)}</text>')
    size = f'viewBox="0 0 {LEFT + WIDTH + 24} {TOP + HEIGHT + 32}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("title")
    parser.add_argument("logs", nargs="+", metavar="NAME=FILE")
    given = parser.parse_args()
    lines: dict[str, list[Point]] = {}
    for log in given.logs:
        names, _, file = log.partition("=")
        lines |= dict(zip(names.split(","), read_runs(Path(file)), strict=True))
    given.out.write_text(draw(lines, given.title), "utf-8")


if __name__ == "__main__":
    main()
