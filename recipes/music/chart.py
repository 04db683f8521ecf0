"""Draws the curves of docs/music.md: python recipes/music/chart.py results/*.json -o docs/music_curves.svg

The loss on held-out pieces over the minutes of training, a line for each result of train.py; the published
figures as dashed lines.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassgpt.figures.axes import Axes, chart
from glassgpt.figures.svg import path, text

WIDTH = 360  # of a panel
COLORS = {"causal": "#b3541e", "relative": "#1b6ca8"}
NAMES = {"causal": "plain", "relative": "relative"}
TITLES = {"maestro": "MAESTRO v3", "pop909": "POP909", "jsb": "JSB chorales"}
PUBLISHED = {"maestro": {"causal": 1.861, "relative": 1.835}, "jsb": {"causal": 0.417, "relative": 0.335}}


def draw_task(task: str, results: list[dict[str, Any]], left: int) -> list[str]:
    """One panel."""
    published = PUBLISHED.get(task, {})
    lines = {
        result["name"].split("-")[1]: [
            (r["seconds"] / 60, r["val_loss"]) for r in result["curve"] if "val_loss" in r and r["step"] > 1
        ]
        for result in results
    }
    values = [value for points in lines.values() for _, value in points]
    low = min([*values, *published.values()]) * 0.98
    end = max(minute for points in lines.values() for minute, _ in points)
    axes = Axes(left + 40, 30, 304, 260, (0, end), (low, min(max(values), low + 0.8)))
    parts = [text(left + 40, 16, TITLES[task], "title"), *axes.grid(), *axes.below()]
    for row, (attention, points) in enumerate(sorted(lines.items())):
        color = COLORS[attention]
        parts += axes.curve(points, color)
        label = f"{NAMES[attention]}: {min(value for _, value in points):.3f}"
        parts.append(text(left + 340, 44 + 16 * row, label, anchor="end", style=f"fill:{color}"))
        if attention in published:
            y, tip = axes.y(published[attention]), f"published: {published[attention]}"
            line = f"M{axes.left} {y}h{axes.width}"
            parts.append(path(line, stroke=color, stroke_dasharray="3 4", tip=tip))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    results = [json.loads(path.read_text()) for path in args.results]
    tasks = [task for task in TITLES if any(result["name"].startswith(task) for result in results)]
    parts = []
    for place, task in enumerate(tasks):
        of_task = [result for result in results if result["name"].startswith(task)]
        parts += draw_task(task, of_task, place * WIDTH)
    parts.append(text(40, 326, "minutes of training; dashed: published"))
    label = "Loss on held-out music, nats per event"
    args.out.write_text(chart(WIDTH * len(tasks), 334, parts, label))


if __name__ == "__main__":
    main()
