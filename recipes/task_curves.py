"""Draw the curves of task trainings, from the log.jsonl files that `train_for` writes.

    python recipes/task_curves.py curve.svg "loss on held-out pairs" en-fr=runs/en-fr/log.jsonl

Each NAME=FILE is a line: `val_loss` over seconds. A file with several trainings, one after the other, has as
many names: A,B=FILE.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from glassgpt.figures.axes import Axes, chart, format_number, legend
from glassgpt.figures.svg import Point, text

COLORS = ("#1b6ca8", "#b3541e", "#2e7d4f", "#7a4ea3")


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
    end = max(seconds for points in lines.values() for seconds, _ in points)
    axes = Axes(48, 36, 520, 260, (0, end), (0.98 * min(values), 1.02 * max(values)))
    parts = [text(8, 18, title), *axes.grid(), *axes.below(format=lambda tick: f"{format_number(tick)} s")]
    for color, points in zip(COLORS, lines.values(), strict=False):
        parts += [*axes.curve(points, color), *axes.dots(points, color)]
    labels = (f"{name}: {points[-1][1]:.3f} at the end" for name, points in lines.items())
    parts += legend(278, 56, dict(zip(labels, COLORS, strict=False)))
    return chart(592, 328, parts, title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("title")
    parser.add_argument("logs", nargs="+", metavar="NAME=FILE")
    args = parser.parse_args()
    lines: dict[str, list[Point]] = {}
    for log in args.logs:
        names, _, file = log.partition("=")
        lines |= dict(zip(names.split(","), read_runs(Path(file)), strict=True))
    args.out.write_text(draw(lines, args.title), "utf-8")


if __name__ == "__main__":
    main()
